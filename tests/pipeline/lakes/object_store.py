"""An object store with the S3 interface for tests: moto's server, made atomic, and interrupted.

moto checks the condition of a write and writes in two steps, from several threads, so that both of
two racing writers can win. Here a lock is held for each request, as if it were one step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "the-secret-key-of-the-test"


class Request(NamedTuple):
    """A request that arrived."""

    method: str
    path: str
    condition: str


class Refusal(NamedTuple):
    """An answer instead of that of the store."""

    status: str
    code: str
    performed: bool
    """Whether the request is performed nevertheless, as if the answer got lost."""


DENIED = Refusal("403 Forbidden", "AccessDenied", False)
"""Clients do not repeat a request that is denied. So if all requests from one on are denied, what
the store has then is what a job would have left that was killed before that request."""


class ObjectStore:
    """The server; ``decide`` may refuse a request, which is given by its number and its line."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.requests: list[Request] = []
        self.decide: Callable[[int, Request], Refusal | None] = lambda number, request: None

    @contextmanager
    def serving(self) -> Iterator[ObjectStore]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    @contextmanager
    def refusing(self, decide: Callable[[int, Request], Refusal | None]) -> Iterator[None]:
        """Ask ``decide`` about every request; the numbers begin at 0."""
        with self._lock:
            self.requests.clear()
            self.decide = decide
        try:
            yield
        finally:
            self.decide = lambda number, request: None

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        condition = environ.get("HTTP_IF_MATCH") or environ.get("HTTP_IF_NONE_MATCH") or ""
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], condition)
        with self._lock:
            refusal = self.decide(len(self.requests), request)
            self.requests.append(request)
            if refusal is None:
                return list(self._moto(environ, start))
            if refusal.performed:
                list(self._moto(environ, lambda *_: None))
            else:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{refusal.code}</Code><Message>no</Message></Error>".encode()
        start(refusal.status, [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
        return [] if request.method == "HEAD" else [body]


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        """Log nothing."""
