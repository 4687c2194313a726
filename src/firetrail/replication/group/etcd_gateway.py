"""Requests to etcd 3 over its JSON gateway, with the standard library.

Every request has a connection of its own. There are only a few per lease, and a connection that was
cut off or belongs to a stopped server is then never used again.
"""

import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from firetrail.errors import ConfigError, ElectionError, NotReachedError
from firetrail.system import Clock

ANSWER_MAX = 1 << 20
"""The most bytes of an answer; those to requests of a group have a few hundred."""
NOT_FOUND = 5
UNAUTHENTICATED = 16
_TRY_ANOTHER = {4, 8, 13, 14}
"""gRPC codes of a server that cannot answer now: deadline, exhausted, internal, unavailable."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The addresses and credentials of etcd. The text of an instance does not show the password.

    Attributes:
        endpoints: Addresses of its servers: ``host:port``, ``http://host:port`` or ``https://…``.
        timeout_s: The time for which a request may take, all servers that are tried included.
        user: The name to authenticate with; empty for none.
        password: The password of the user.
        ca_file: Certificates of the authorities to trust for ``https``; empty for the system's.
        cert_file: The client's certificate with its key; empty for none.
    """

    endpoints: tuple[str, ...]
    timeout_s: float = 2.0
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""


@dataclass(frozen=True, slots=True)
class _Server:
    name: str
    host: str
    port: int
    tls: ssl.SSLContext | None

    def connect(self, timeout_s: float) -> HTTPConnection:
        if self.tls is not None:
            return HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.tls)
        return HTTPConnection(self.host, self.port, timeout=timeout_s)


class EtcdGateway:
    """Sends requests to the first server that answers."""

    def __init__(self, access: EtcdAccess, clock: Clock) -> None:
        """Prepare; nothing is sent.

        Raises:
            ConfigError: An endpoint is not an address, or a certificate cannot be read.
        """
        self._access = access
        self._clock = clock
        tls = _tls(access)
        self._servers = [_server(endpoint, tls) for endpoint in access.endpoints]
        self._preferred = 0
        self._token = ""
        self._guard = threading.Lock()
        self._streams: set[HTTPConnection] = set()
        self._is_closed = False

    def call(self, path: str, body: Mapping[str, object]) -> Json:
        """Send a request and return the answer, or its first message if there are several.

        Raises:
            NotReachedError: No server has answered. The request may have been executed.
            ElectionError: Etcd refuses the request; ``code`` is gRPC's.
        """
        try:
            return self._call(path, body)
        except EtcdRefusal as error:
            if error.code != UNAUTHENTICATED or not self._access.user:
                raise
        self._token = ""  # it has expired
        return self._call(path, body)

    def _call(self, path: str, body: Mapping[str, object]) -> Json:
        failures = []
        over_at = self._clock.monotonic() + self._access.timeout_s
        share_s = self._access.timeout_s / len(self._servers)
        for _ in self._servers:
            number = self._preferred
            server = self._servers[number]
            try:
                left_s = over_at - self._clock.monotonic()
                return self._ask(server, path, body, max(min(share_s, left_s), 0.01))
            except (OSError, HTTPException, ValueError) as error:
                failures.append(f"{server.name}: {error or type(error).__name__}")
            except EtcdRefusal as error:
                if error.code not in _TRY_ANOTHER:
                    raise
                failures.append(f"{server.name}: {error}")
            self._preferred = (number + 1) % len(self._servers)
        raise NotReachedError(f"etcd does not answer: {'; '.join(failures)}")

    def _ask(self, server: _Server, path: str, body: Mapping[str, object], limit_s: float) -> Json:
        if self._access.user and not self._token:
            credentials = {"name": self._access.user, "password": self._access.password}
            answer = self._exchange(server, "auth/authenticate", credentials, limit_s)
            self._token = str(answer["token"])
        return self._exchange(server, path, body, limit_s)

    def _exchange(
        self, server: _Server, path: str, body: Mapping[str, object], limit_s: float
    ) -> Json:
        with closing(server.connect(limit_s)) as connection:
            response = self._post(connection, path, body)
            line = response.readline(ANSWER_MAX)  # one object; a stream has one per line
            return _decode(line, response.status)

    def _post(
        self, connection: HTTPConnection, path: str, body: Mapping[str, object]
    ) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = self._token
        connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
        return connection.getresponse()

    def wait_for_event(self, body: Mapping[str, object], timeout_s: float) -> None:
        """Watch keys until something happens to them, or until the timeout.

        It also returns if the server ends the watch or cannot be reached: the caller looks itself.
        """
        server = self._servers[self._preferred]
        connection = server.connect(min(timeout_s, self._access.timeout_s))
        with closing(connection):
            with self._guard:
                if self._is_closed:
                    return
                self._streams.add(connection)
            try:
                response = self._post(connection, "watch", {"create_request": body})
                before = int(str(body["start_revision"])) - 1
                self._read_events(connection, response, before, timeout_s)
            except (OSError, HTTPException, ValueError):
                pass  # the read that follows finds out whether the server still answers
            finally:
                with self._guard:
                    self._streams.discard(connection)

    def _read_events(
        self, connection: HTTPConnection, response: HTTPResponse, before: int, timeout_s: float
    ) -> None:
        """Read until an event, the end of the watch or an error; or until the timeout.

        A server whose revision is smaller than ``before`` has lost data: no event is waited for.
        """
        over_at = self._clock.monotonic() + timeout_s
        while (left_s := over_at - self._clock.monotonic()) > 0 and not self._is_closed:
            if connection.sock is None:
                return
            connection.sock.settimeout(left_s)
            line = response.readline(ANSWER_MAX)
            result = json.loads(line).get("result", {}) if line else {}
            if not result.get("created") or int(result["header"]["revision"]) < before:
                return

    def close(self) -> None:
        """End all watches, now and later."""
        with self._guard:
            self._is_closed = True
            streams = list(self._streams)
        for connection in streams:
            if connection.sock is not None:
                with suppress(OSError):  # it has ended by itself
                    connection.sock.shutdown(socket.SHUT_RDWR)


class EtcdRefusal(ElectionError):
    """etcd has refused a request; ``code`` is gRPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"etcd refuses the request: {self.message} (code {self.code})"


def _decode(line: bytes, status: int) -> Json:
    """Return an answer; raise EtcdRefusal if it is an error."""
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError(f"the answer is not a JSON object: {line[:80]!r}")
    error = answer.get("error")
    if isinstance(error, dict):  # in a stream
        raise EtcdRefusal(int(error.get("grpc_code", 0)), str(error.get("message", error)))
    if error is not None or status != 200:
        message = answer.get("message") or error or f"HTTP status {status}"
        raise EtcdRefusal(int(answer.get("code", 0)), str(message))
    result = answer.get("result")
    return result if isinstance(result, dict) else answer


def _tls(access: EtcdAccess) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca_file or None)
    except OSError as error:
        raise ConfigError(
            "etcd_ca_file", access.ca_file, f"it cannot be loaded: {error.strerror or error}"
        ) from error
    if access.cert_file:
        try:
            context.load_cert_chain(access.cert_file)
        except OSError as error:
            reason = error.strerror or error
            detail = f"it cannot be loaded: {reason}; it must hold a certificate and its key"
            raise ConfigError("etcd_cert_file", access.cert_file, detail) from error
    return context


def _server(endpoint: str, tls: ssl.SSLContext) -> _Server:
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise ConfigError(
            "etcd_endpoints", endpoint, "expected HOST:PORT, http://HOST:PORT or https://HOST:PORT"
        )
    return _Server(endpoint, parts.hostname, port, tls if parts.scheme == "https" else None)
