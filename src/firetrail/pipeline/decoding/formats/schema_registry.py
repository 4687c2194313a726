"""Headers of bodies that name a schema, and the registries that have it.

========== ======================================================= ===============================
header     bytes before the datum                                  request
========== ======================================================= ===============================
confluent  0, 4 bytes of id; for Protobuf then indexes of messages ``/schemas/ids/ID``
apicurio   0, 8 bytes of global id                                 ``/ids/globalIds/ID``
rocketmq   0x20 (the length 16 in Avro), 8 bytes of record id,     ``/subject/SUBJECT/recordId``
           8 zero bytes                                            ``/ID/schema``
========== ======================================================= ===============================

The address is that of the registry's interface: ``http://HOST:8081`` for Confluent's,
``http://HOST:8080/apis/registry/v2`` for Apicurio, ``http://HOST:8080/schema-registry/v1`` for that
of RocketMQ. Credentials come from the environment of the worker, ``FIRETRAIL_REGISTRY_AUTH``, as
``USER:PASSWORD``: options are shown by Spark.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from firetrail.errors import ConfigError, NotReachedError, PipelineError
from firetrail.pipeline.decoding.values.text_values import BodyError

AUTH = "FIRETRAIL_REGISTRY_AUTH"
TIMEOUT_S = 10.0
ANSWER_MAX = 16 << 20
"""Maximum size of an answer; schemas have some kilobytes."""
KNOWN_MAX = 10_000
"""Ids that are remembered. Those that do not exist count, as damaged bodies name arbitrary ones."""
REFERENCES_MAX = 200
"""Maximum number of schemas that one refers to, directly or not."""


class BodyHeader(Enum):
    """The bytes before a datum."""

    NONE = "none"
    CONFLUENT = "confluent"
    APICURIO = "apicurio"
    ROCKETMQ = "rocketmq"


def split_header(body: bytes, header: BodyHeader) -> tuple[int | None, bytes]:
    """Return the id of the schema (None without a header), and the rest of a body.

    Raises:
        BodyError: The body does not begin with the header.
    """
    if header is BodyHeader.NONE:
        return None, body
    begin, size = {
        BodyHeader.CONFLUENT: (b"\0", 4),
        BodyHeader.APICURIO: (b"\0", 8),
        BodyHeader.ROCKETMQ: (b" ", 8),
    }[header]
    end = 1 + size
    rest = end + (8 if header is BodyHeader.ROCKETMQ else 0)
    zeros = body[end:rest]
    if not body.startswith(begin) or len(body) < rest or any(zeros):
        raise BodyError(f"does not begin with the header of {header.value}: {body[:17].hex(' ')}")
    return int.from_bytes(body[1:end], "big"), body[rest:]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema.

    Args:
        text: The schema; of Protobuf the bytes of its file descriptor.
        references: Names and texts of the schemas that it refers to, each after its own ones.
    """

    text: str | bytes
    references: tuple[tuple[str, str | bytes], ...] = ()


class SchemaRegistry:
    """A registry. Schemas never change, so each is requested once.

    Args:
        url: The address.
        header: The kind of registry.
        subject: The subject, which RocketMQ's registry needs: the topic.
        serialized: Whether schemas are requested as file descriptors of Protobuf.
    """

    def __init__(
        self, url: str, header: BodyHeader, subject: str = "", *, serialized: bool = False
    ) -> None:
        self._url = check_url(url)
        self._subject = subject
        self._serialized = serialized
        self._known: dict[int, RegisteredSchema | BodyError] = {}
        requests: dict[BodyHeader, Callable[[int], RegisteredSchema]] = {
            BodyHeader.CONFLUENT: self._confluent,
            BodyHeader.APICURIO: self._apicurio,
            BodyHeader.ROCKETMQ: self._rocketmq,
        }
        self._request = requests[header]

    def schema(self, number: int) -> RegisteredSchema:
        """Return a schema by its id.

        Raises:
            BodyError: The registry has no such schema.
            NotReachedError: The registry does not answer.
            PipelineError: The registry refuses the request, or answers something else.
        """
        known = self._known.get(number)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            try:
                known = self._request(number)
            except BodyError as error:
                known = error
            self._known[number] = known
        if isinstance(known, BodyError):
            raise known
        return known

    def _confluent(self, number: int) -> RegisteredSchema:
        answer = self._json(f"/schemas/ids/{number}{self._format('?')}", f"schema {number}")
        references: dict[str, str | bytes] = {}
        text = self._text(answer)
        self._collect(answer, references)
        return RegisteredSchema(text, tuple(references.items()))

    def _format(self, mark: str) -> str:
        return f"{mark}format=serialized" if self._serialized else ""

    def _text(self, answer: Any) -> str | bytes:
        text = answer.get("schema") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise self._unexpected("a schema", answer)
        try:
            return b64decode(text, validate=True) if self._serialized else text
        except ValueError:
            raise self._unexpected("a schema in base64", answer) from None

    def _unexpected(self, expected: str, answer: Any) -> PipelineError:
        """Return the error for an answer of another shape."""
        return PipelineError(
            f"the registry {self._url} answers without {expected}: {answer!r:.200}; check that the "
            "options registry and header name the address and the kind of the same registry"
        )

    def _collect(self, answer: Any, found: dict[str, str | bytes]) -> None:
        """Add the schemas that an answer refers to, each after its own references."""
        for name, subject, version in self._references(answer):
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise BodyError(f"the schema refers to more than {REFERENCES_MAX} others")
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}{self._format('?')}"
            inner = self._json(path, f"version {version} of {subject}")
            text = self._text(inner)
            self._collect(inner, found)
            found[name] = text

    def _references(self, answer: dict[str, Any]) -> list[tuple[str, str, int]]:
        """Return name, subject and version of the schemas that an answer refers to."""
        references = answer.get("references") or []
        found = []
        for each in references if isinstance(references, list) else [None]:
            values = each if isinstance(each, dict) else {}
            name, subject, version = map(values.get, ("name", "subject", "version"))
            if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
                raise self._unexpected("name, subject and version of its references", answer)
            found.append((name, subject, version))
        return found

    def _apicurio(self, number: int) -> RegisteredSchema:
        content = self._get(f"/ids/globalIds/{number}", f"schema {number}")
        try:
            return RegisteredSchema(content.decode())
        except UnicodeDecodeError:
            raise self._unexpected("a schema in UTF-8", content) from None

    def _rocketmq(self, number: int) -> RegisteredSchema:
        path = f"/subject/{quote(self._subject, safe='')}/recordId/{number}/schema"
        answer = self._json(path, f"record {number} of the subject {self._subject}")
        if not isinstance(answer, dict) or not isinstance(answer.get("idl"), str):
            raise self._unexpected("idl", answer)
        return RegisteredSchema(answer["idl"])

    def _json(self, path: str, what: str) -> Any:
        content = self._get(path, what)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self._unexpected("JSON", content[:100]) from None

    def _get(self, path: str, what: str) -> bytes:
        """Return the answer to a request; raise BodyError for status 404."""
        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        headers = {"Accept": "application/json, */*"}
        if AUTH in os.environ:
            headers["Authorization"] = "Basic " + b64encode(os.environ[AUTH].encode()).decode()
        try:
            assert parts.hostname is not None
            with closing(kind(parts.hostname, parts.port, timeout=TIMEOUT_S)) as connection:
                connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
                response = connection.getresponse()
                content = response.read(ANSWER_MAX + 1)
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise NotReachedError(f"the registry {self._url} does not answer: {reason}") from error
        if response.status == 404:
            raise BodyError(f"the registry {self._url} has no {what}")
        if response.status != 200:
            hint = f"; set {AUTH}=USER:PASSWORD" if response.status in (401, 403) else ""
            reason = f"answers {response.status} {response.reason} for {what}{hint}"
            raise PipelineError(f"the registry {self._url} {reason}")
        if len(content) > ANSWER_MAX:
            reason = f"answers more than {ANSWER_MAX >> 20} MiB for {what}; check its address"
            raise PipelineError(f"the registry {self._url} {reason}")
        return content


def check_url(url: str) -> str:
    """Return the address of a registry; raise ConfigError for anything else."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment:
        raise ConfigError("registry", url, "must be http://HOST:PORT or https://HOST:PORT")
    if "@" in parts.netloc:
        reason = f"must not contain credentials, which Spark shows; set {AUTH} for the workers"
        raise ConfigError("registry", "…@…", reason)
    return url.rstrip("/")
