"""Requests that cannot be decoded."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.helpers import PATIENCE_S
from tests.proxy.servers import SERVICE, ServerThread, Text, connected

from firetrail.errors import GrpcError
from firetrail.proxy.schema.messages import QueryRouteRequest, Resource
from firetrail.proxy.transport.call import UnaryMethod
from firetrail.proxy.transport.server_call import decoded


@pytest.mark.parametrize(
    "raw",
    [b"\xff", b"\x0a\x05a", b"\x0a\x03\x12\x01\xff", b"\x0b" * 1000],
    ids=["a tag", "too short", "not UTF-8", "too deep"],
)
def test_wrong_bytes_are_the_fault_of_the_client(raw: bytes) -> None:
    with pytest.raises(GrpcError, match="the request cannot be decoded"):
        decoded(QueryRouteRequest, raw)
    right = QueryRouteRequest(topic=Resource(name="T"))
    assert decoded(QueryRouteRequest, right.SerializeToString()) == right


class Broken(Text):
    """A message whose decoder has a fault."""

    @classmethod
    def FromString(cls, data: bytes) -> Broken:
        raise RuntimeError("a fault")


def test_a_fault_of_the_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    methods = {f"{SERVICE}/Echo": UnaryMethod(Broken, lambda call, text: text)}
    thread = ServerThread(asyncio.new_event_loop)
    with (
        thread.serving(None, None, methods) as server,
        connected(server.port) as client,
        pytest.raises(grpc.RpcError) as failed,
    ):
        client.unary("Echo")(Text("x"), timeout=PATIENCE_S)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a fault"]
