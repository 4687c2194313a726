"""A small etcd: the requests of its JSON gateway that elections need, over real HTTP.

Every endpoint is a server of its own before the same entries, so that a test can cut off one client
(:attr:`Endpoint.cut`), or lose the answer to a request that was executed (:attr:`Endpoint.mute`).
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
_NOTHING: Json = {"key": "", "range_end": ""}


@dataclass(frozen=True)
class Backup:
    """All data of an etcd at one moment; by default that of a new one."""

    revision: int = 1
    keys: dict[str, Json] = field(default_factory=dict)
    leases: dict[int, tuple[int, float]] = field(default_factory=dict)


class FakeEtcd:
    """Keys, leases and revisions."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.revision = 1
        self.keys: dict[str, Json] = {}
        self.leases: dict[int, tuple[int, float]] = {}  # time to live, and when it ends
        self.events: list[int] = []  # revisions at which a key changed
        self.restores = 0
        self.ttl_granted: int | None = None
        self.password = "secret"
        self.valid_token = ""
        self._next_lease = 100
        self._is_stopping = False
        self._endpoints: list[Endpoint] = []
        self._thread = threading.Thread(target=self._expire_regularly, daemon=True)
        self._thread.start()

    def endpoint(self, tls: ssl.SSLContext | None = None) -> Endpoint:
        endpoint = Endpoint(self, tls)
        self._endpoints.append(endpoint)
        return endpoint

    def stop(self) -> None:
        with self.changed:
            self._is_stopping = True
            self.changed.notify_all()
        for endpoint in self._endpoints:
            endpoint.stop()
        self._thread.join()

    def _expire_regularly(self) -> None:
        with self.changed:
            while not self._is_stopping:
                self.expire()
                self.changed.wait(0.05)

    def expire(self) -> None:
        now = time.monotonic()
        for lease in [lease for lease, (_, ends_at) in self.leases.items() if ends_at <= now]:
            self.end_lease(lease)

    def end_lease(self, lease: int) -> None:
        """Forget a lease and delete its keys."""
        del self.leases[lease]
        bound = [key for key, entry in self.keys.items() if entry.get("lease") == str(lease)]
        if bound:
            self._change()
        for key in bound:
            del self.keys[key]

    def _change(self) -> None:
        self.revision += 1
        self.events.append(self.revision)
        self.changed.notify_all()

    def backup(self) -> Backup:
        with self.changed:
            return Backup(self.revision, dict(self.keys), dict(self.leases))

    def restore(self, backup: Backup) -> None:
        """Replace all data by that of a backup, which may be empty, and end all watches."""
        with self.changed:
            self.restores += 1
            self.revision, self.events = backup.revision, []
            self.keys, self.leases = dict(backup.keys), dict(backup.leases)
            self.changed.notify_all()

    # -- requests -----------------------------------------------------------------------------

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        """Return the HTTP status and the answer of a request that is no watch."""
        with self.changed:
            self.expire()
            handler = getattr(self, "_" + path.replace("/", "_"), None)
            if handler is None:
                return 404, {"error": f"no such path: {path}", "code": 12}
            result: tuple[int, Json] = handler(body)
            return result

    @property
    def _header(self) -> Json:
        return {"revision": str(self.revision)}

    def _auth_authenticate(self, body: Json) -> tuple[int, Json]:
        if (body["name"], body["password"]) != ("firetrail", self.password):
            return 400, {"error": "etcdserver: authentication failed", "code": 3}
        self.valid_token = f"token-{self.revision}-{time.monotonic_ns()}"
        return 200, {"header": self._header, "token": self.valid_token}

    def _lease_grant(self, body: Json) -> tuple[int, Json]:
        ttl = int(body["TTL"]) if self.ttl_granted is None else self.ttl_granted
        self._next_lease += 1
        self.leases[self._next_lease] = ttl, time.monotonic() + ttl
        return 200, {"header": self._header, "ID": str(self._next_lease), "TTL": str(ttl)}

    def _lease_keepalive(self, body: Json) -> tuple[int, Json]:
        lease = int(body["ID"])
        if lease not in self.leases:
            return 200, {"result": {"header": self._header, "ID": str(lease)}}
        ttl, _ = self.leases[lease]
        self.leases[lease] = ttl, time.monotonic() + ttl
        return 200, {"result": {"header": self._header, "ID": str(lease), "TTL": str(ttl)}}

    def _lease_revoke(self, body: Json) -> tuple[int, Json]:
        if int(body["ID"]) not in self.leases:
            return 404, {"error": "etcdserver: requested lease not found", "code": 5}
        self.end_lease(int(body["ID"]))
        return 200, {"header": self._header}

    def _kv_range(self, body: Json) -> tuple[int, Json]:
        return 200, {"header": self._header, **self._found(body)}

    def _found(self, body: Json) -> Json:
        begin = b64decode(body["key"])
        end = b64decode(body["range_end"]) if "range_end" in body else begin + b"\0"
        kvs = [entry for key, entry in self.keys.items() if begin <= b64decode(key) < end]
        return {"kvs": kvs, "count": str(len(kvs))} if kvs else {}

    def _kv_deleterange(self, body: Json) -> tuple[int, Json]:
        if self.keys.pop(body["key"], None) is not None:
            self._change()
        return 200, {"header": self._header}

    def _kv_txn(self, body: Json) -> tuple[int, Json]:
        succeeded = all(map(self._holds, body.get("compare", [])))
        operations = body.get("success" if succeeded else "failure", [])
        puts = [each["request_put"] for each in operations if "request_put" in each]
        if any(int(put["lease"]) not in self.leases for put in puts if "lease" in put):
            return 404, {"error": "etcdserver: requested lease not found", "code": 5}
        if puts:
            self._change()
        for put in puts:
            self._put(put)
        for each in operations:
            for entry in self._found(each.get("request_delete_range", _NOTHING)).get("kvs", []):
                del self.keys[entry["key"]]
        responses: list[Json] = [
            {"response_range": self._found(each["request_range"])}
            if "request_range" in each
            else {"response_put": {}}
            for each in operations
        ]
        return 200, {"header": self._header, "succeeded": succeeded, "responses": responses}

    def _holds(self, comparison: Json) -> bool:
        target = comparison["target"]
        field = {"CREATE": "create_revision", "MOD": "mod_revision"}
        name = field.get(target, target.lower())
        found = self.keys.get(comparison["key"], {}).get(name, "0")
        return bool(found == comparison[name])

    def _put(self, put: Json) -> None:
        old = self.keys.get(put["key"], {})
        created = old.get("create_revision", str(self.revision))
        entry = {**put, "create_revision": created, "mod_revision": str(self.revision)}
        self.keys[put["key"]] = entry


class Endpoint:
    """One server.

    Attributes:
        url: Its address.
        cut: Whether it closes every connection without an answer.
        mute: Whether it executes requests but loses the answers.
    """

    def __init__(self, etcd: FakeEtcd, tls: ssl.SSLContext | None = None) -> None:
        endpoint = self
        self.cut = False
        self.mute = False

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def do_POST(self) -> None:
                endpoint.handle(etcd, self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, etcd: FakeEtcd, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        path = request.path.removeprefix("/v3/")
        if self.cut:
            return
        token = request.headers.get("Authorization", "")
        if etcd.valid_token and path != "auth/authenticate" and token != etcd.valid_token:
            _send(request, 401, {"error": "etcdserver: invalid auth token", "code": 16})
        elif path == "watch":
            with suppress(OSError):
                self._watch(etcd, request, int(body["create_request"]["start_revision"]))
        else:
            status, answer = etcd.answer(path, body)
            if not self.mute:
                _send(request, status, answer)

    def _watch(self, etcd: FakeEtcd, request: BaseHTTPRequestHandler, start: int) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        _send_chunk(request, {"result": {"header": etcd._header, "created": True}})
        with etcd.changed:
            restores = etcd.restores
            while not self.cut and not any(revision >= start for revision in etcd.events):
                etcd.changed.wait(0.05)
                if etcd._is_stopping or etcd.restores != restores:
                    return
        if not self.cut:
            _send_chunk(request, {"result": {"events": [{}]}})


def _send_chunk(request: BaseHTTPRequestHandler, answer: Json) -> None:
    content = json.dumps(answer).encode() + b"\n"
    request.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
    request.wfile.flush()


def _send(request: BaseHTTPRequestHandler, status: int, answer: Json) -> None:
    content = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


@contextmanager
def fake_etcd() -> Iterator[FakeEtcd]:
    """Run a fake etcd without endpoints."""
    etcd = FakeEtcd()
    try:
        yield etcd
    finally:
        etcd.stop()
