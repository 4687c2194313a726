"""The answers to requests about users: passwords only where an operator has allowed them."""

from pathlib import Path
from typing import NamedTuple, cast

import pytest
from tests.access.actors import SECRET, credentials, signed, user_store

from firetrail.access.user_requests import UserRequests
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand


class Peer(NamedTuple):
    """A connection, as a handler sees it."""

    is_encrypted: bool


@pytest.mark.parametrize(
    ("is_allowed", "is_encrypted"), [(False, True), (True, False), (True, True)]
)
async def test_passwords_are_returned_over_tls_if_allowed(
    tmp_path: Path, is_allowed: bool, is_encrypted: bool
) -> None:
    store = await user_store(tmp_path, alice=[])
    handlers = UserRequests(store, is_allowed).handlers
    peer = cast("Connection", Peer(is_encrypted))
    for code, fields in (
        (RequestCode.AUTH_GET_USER, {"username": "alice"}),
        (RequestCode.AUTH_LIST_USER, {"filter": "ali"}),
    ):
        answer = handlers[code](peer, signed(code, fields))
        assert isinstance(answer, RemotingCommand)
        text = answer.content.decode()
        assert (credentials("alice").secret_key in text) == (is_allowed and is_encrypted)
        assert "alice" in text
        assert is_allowed or SECRET not in text
