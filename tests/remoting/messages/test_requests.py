"""One row per request."""

import ast
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from firetrail.remoting.messages.requests import AWAITING, REQUESTS, RequestTarget, _by_code
from firetrail.remoting.messages.typed_header import (
    GroupName,
    Header,
    OtherText,
    ShownName,
    TopicName,
)
from firetrail.remoting.wire.codes import RequestCode

SOURCES = Path(__file__).parents[3] / "src" / "firetrail"


def test_every_code_needs_one_row() -> None:
    rows = list(REQUESTS.values())
    with pytest.raises(ValueError, match=r"requests without a row: SEND_MESSAGE$"):
        _by_code([row for row in rows if row.code is not RequestCode.SEND_MESSAGE])
    with pytest.raises(ValueError, match="SEND_MESSAGE has two rows"):
        _by_code([*rows, REQUESTS[RequestCode.SEND_MESSAGE]])


def test_a_text_field_of_a_request_says_whether_it_is_a_name() -> None:
    @dataclass(frozen=True, slots=True)
    class Vague(Header):
        topic: TopicName
        account: str
        comment: str | None = None

    vague = replace(REQUESTS[RequestCode.GET_TOPIC_CONFIG], header=Vague)
    with pytest.raises(ValueError, match=r"declare each of \['account', 'comment'\] of Vague as"):
        _by_code([vague])


def test_names_are_shown_under_one_name_for_topics_and_groups() -> None:
    @dataclass(frozen=True, slots=True)
    class Named(Header):
        topic: TopicName
        consumer_group: GroupName | None = None
        cluster_name: ShownName = ""
        properties: OtherText | None = None
        queue_id: int = 0

    shown = {"topic": "topic", "consumerGroup": "group", "clusterName": "clusterName"}
    assert Named.shown_names() == shown
    assert REQUESTS[RequestCode.SEND_MESSAGE_V2].header.shown_names()["b"] == "topic"


def handlers(tree: ast.Module) -> dict[str, set[RequestCode]]:
    """The codes of each method that a table of handlers names."""
    found: dict[str, set[RequestCode]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Attribute) and ast.unparse(key.value) == "RequestCode":
                    for name in re.findall(r"self\.(_\w+)", ast.unparse(value)):
                        found.setdefault(name, set()).add(RequestCode[key.attr])
    return found


def decoded(tree: ast.Module) -> dict[str, set[str]]:
    return {
        node.name: set(re.findall(r"(\w+)\.decode\(request\.fields\)", ast.unparse(node)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_handlers_decode_the_header_of_their_row() -> None:
    compared = 0
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "RequestCode." not in text or ".decode(request.fields)" not in text:
            continue
        tree = ast.parse(text)
        headers = decoded(tree)
        for name, codes in handlers(tree).items():
            for header in headers.get(name, set()):
                rows = {REQUESTS[code].header.__name__ for code in codes}
                assert rows == {header}, f"{name} in {path.name} decodes {header}"
                compared += 1
    assert compared > 50


def test_only_requests_to_servers_are_limited() -> None:
    others = (RequestTarget.CLIENT, RequestTarget.NOBODY)
    assert not [row.code for row in REQUESTS.values() if row.target in others and row.traits]


def test_the_requests_that_wait_name_their_time() -> None:
    """Those whose header has a time, so that a proxy allows for it."""
    times = {"pollTime", "suspendTimeoutMillis"}
    found = {
        row.code: wire
        for row in REQUESTS.values()
        for wire in times & {row.header.wire_name(field.name) for field in fields(row.header)}
    }
    assert found == dict(AWAITING)
    assert RequestCode.NOTIFICATION in AWAITING
