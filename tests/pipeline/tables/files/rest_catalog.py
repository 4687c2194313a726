"""A server with the REST interface of Iceberg's catalogs, in front of a catalog in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table


class RestCatalogServer:
    """The server; its tables are known to nobody else."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            do_POST = do_HEAD = do_DELETE = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[RestCatalogServer]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        size = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(size)) if size else {}
        parts = [unquote(part) for part in request.path.partition("?")[0].split("/")[2:]]
        with self._lock, SqlCatalog("rest", uri=f"sqlite:///{self._database}") as catalog:
            try:
                status, content = _respond(catalog, request.command, parts, body)
            except NoSuchTableError as error:
                status, content = 404, _error(404, "NoSuchTableException", error)
            except CommitFailedException as error:
                status, content = 409, _error(409, "CommitFailedException", error)
        answer = b"" if content is None else json.dumps(content).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)


def _respond(
    catalog: Catalog, method: str, parts: list[str], body: dict[str, Any]
) -> tuple[int, Any]:
    """Return the status and the body for a request whose path has these parts."""
    if parts == ["config"]:
        return 200, {"defaults": {}, "overrides": {}}
    if parts == ["namespaces"]:
        catalog.create_namespace_if_not_exists(tuple(body["namespace"]))
        return 200, {"namespace": body["namespace"], "properties": {}}
    namespace = parts[1]
    if len(parts) < 3:
        return (204 if catalog.namespace_exists(namespace) else 404), None
    if len(parts) == 3:
        table = catalog.create_table(
            (namespace, body["name"]),
            Schema.model_validate(body["schema"]),
            body["location"],
            PartitionSpec.model_validate(body["partition-spec"]),
            properties=body["properties"],
        )
        return 200, _loaded(table)
    name = (namespace, parts[3])
    if method == "HEAD":
        return (204 if catalog.table_exists(name) else 404), None
    if method == "DELETE":
        catalog.drop_table(name)
        return 204, None
    if method == "POST":
        asked = CommitTableRequest.model_validate(body)
        catalog.commit_table(catalog.load_table(name), asked.requirements, asked.updates)
    return 200, _loaded(catalog.load_table(name))


def _loaded(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json(exclude_none=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(code: int, kind: str, error: Exception) -> dict[str, Any]:
    return {"error": {"code": code, "type": kind, "message": str(error)}}
