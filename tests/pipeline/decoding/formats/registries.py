"""A schema registry in a thread: paths and their answers, and the requests that came."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Registry:
    """A registry with the address ``url``; ``answers`` may be changed while it runs."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.requests: list[str] = []
        self.credentials: list[str | None] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                registry.credentials.append(self.headers["Authorization"])
                answer = registry.answers.get(self.path, 404)
                self.send_response(answer if isinstance(answer, int) else 200)
                self.end_headers()
                if not isinstance(answer, int):
                    raw = isinstance(answer, bytes)
                    self.wfile.write(answer if raw else json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def running(answers: Mapping[str, Any]) -> Iterator[Registry]:
    registry = Registry(answers)
    thread = Thread(target=registry.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        thread.join()
        registry.server.server_close()
