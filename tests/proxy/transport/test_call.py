"""The contract between transport and meaning."""

import grpc

from firetrail.proxy.transport.call import StatusCode


def test_the_status_codes_are_those_of_grpc() -> None:
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }
