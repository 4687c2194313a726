"""The rules for the headers of requests."""

import pytest
from tests.proxy.http2.wire import REQUEST

from firetrail.proxy.kernels.block_decoder import HeaderField
from firetrail.proxy.kernels.request_head import MalformedError, check_trailers, request_head


def fields(*pairs: tuple[str, str]) -> list[HeaderField]:
    return [(name, value, len(name) + len(value) + 32) for name, value in pairs]


def without(name: str) -> list[tuple[str, str]]:
    return [pair for pair in REQUEST if pair[0] != name]


def test_the_fields_of_a_request() -> None:
    head = request_head(fields(*REQUEST, ("x", "1"), ("x", "2"), ("content-length", "12")))
    assert (head.method, head.scheme, head.path) == ("POST", "http", "/test.Service/Echo")
    assert head.authority == "localhost"
    assert head.content_length == 12
    assert head.fields["x"] == "2", "the last value counts"


def test_repeated_fields_of_one_value() -> None:
    twice = [("te", "trailers"), ("content-length", "12")] * 2
    head = request_head(fields(*REQUEST, *twice))
    assert head.content_length == 12
    assert head.fields["te"] == "trailers"


def test_the_host_replaces_a_missing_authority() -> None:
    assert request_head(fields(*without(":authority"), ("host", "h:1"))).authority == "h:1"


@pytest.mark.parametrize(
    "pairs",
    [
        without(":method"),
        without(":scheme"),
        without(":path"),
        [(":path", ""), *without(":path")],
        [REQUEST[0], *REQUEST],
        [*without(":path"), (":path", "/x")],
        [(":status", "200"), *REQUEST],
        [*REQUEST, ("", "not allowed")],
        [*REQUEST, ("te", "gzip")],
        [*without("te"), ("te", "gzip"), ("te", "trailers")],
        [*without("te"), ("te", "trailers"), ("te", "gzip")],
        [*REQUEST, ("content-length", "5"), ("content-length", "7")],
        [*REQUEST, ("connection", "close")],
        [*REQUEST, ("transfer-encoding", "chunked")],
        [*REQUEST, ("content-length", "-1")],
        [*REQUEST, ("content-length", "1" * 20)],
        [*REQUEST, ("content-length", "¹")],
    ],
)
def test_malformed_requests(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(MalformedError):
        request_head(fields(*pairs))


@pytest.mark.parametrize("name", ["", ":path", ":status"])
def test_malformed_trailers(name: str) -> None:
    check_trailers(fields(("x", "y")))
    with pytest.raises(MalformedError):
        check_trailers(fields(("x", "y"), (name, "y")))
