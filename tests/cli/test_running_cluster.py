"""Errors of the commands that talk to a cluster."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Firetrail
from tests.cli.live_clusters import lonely_name_server
from tests.tls.authority import Authority

from firetrail.tls.tls_config import TlsConfig


def test_an_unreachable_cluster_is_an_error(firetrail: Firetrail) -> None:
    result = firetrail("lag", "G", "T", "--namesrv", "127.0.0.1:1")
    assert result.code == 2
    assert "is a cluster running at 127.0.0.1:1?" in result.err


def test_a_server_that_closes_the_connection_may_require_tls(firetrail: Firetrail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_all() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        closing = threading.Thread(target=close_all)
        closing.start()
        result = firetrail("topic", "list", "-n", "127.0.0.1:{1}".format(*server.getsockname()))
        server.shutdown(socket.SHUT_RDWR)
        closing.join()
    assert result.code == 2
    assert "if the server requires TLS, set FIRETRAIL_TLS_CA" in result.err


def test_a_refused_certificate_is_not_taken_for_a_missing_cluster(
    firetrail: Firetrail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    issued, refused = authority.issue(), stranger.issue("alice")
    config = TlsConfig(
        mode="enforcing",
        certificate=issued.certificate,
        key=issued.key,
        client_auth="require",
        trust=authority.trust,
    )
    monkeypatch.setenv("FIRETRAIL_TLS_CA", str(authority.trust))
    monkeypatch.setenv("FIRETRAIL_TLS_CERT", str(refused.certificate))
    monkeypatch.setenv("FIRETRAIL_TLS_KEY", str(refused.key))
    with lonely_name_server(tls=config) as address:
        result = firetrail("topic", "list", "-n", address)
    assert result.code == 2
    assert f"{address}: TLS failed: " in result.err
    assert "is a cluster running" not in result.err


def test_an_address_without_a_port_is_refused(firetrail: Firetrail) -> None:
    result = firetrail("lag", "G", "T", "--namesrv", "localhost")
    assert result.code == 2
    assert "namesrv = 'localhost': expected HOST:PORT, such as 127.0.0.1:9876" in result.err


@pytest.mark.parametrize("command", [("tail", "T"), ("send", "T", "x"), ("topic", "show", "T")])
def test_a_name_server_without_brokers_is_an_error(
    firetrail: Firetrail, command: tuple[str, ...]
) -> None:
    """The topic may exist as soon as the brokers have registered again."""
    with lonely_name_server() as address:
        result = firetrail(*command, "--namesrv", address)
    assert result.code == 2
    assert "no route to the topic T yet: no broker has registered" in result.err
    assert "no topic 'T'" not in result.err


def test_an_unknown_topic_is_an_error(firetrail: Firetrail, namesrv: str) -> None:
    result = firetrail("tail", "Nothing", "--namesrv", namesrv)
    assert result.code == 2
    assert f"{namesrv}: no topic 'Nothing'; 'firetrail topic list' lists" in result.err


def test_an_error_suggests_a_similar_topic(firetrail: Firetrail, ask: Any, namesrv: str) -> None:
    ask("topic", "create", "Parcels")
    result = firetrail("topic", "delete", "parcel", "-n", namesrv)
    assert result.code == 2
    assert "no topic 'parcel'; did you mean Parcels?" in result.err


@pytest.mark.parametrize(
    "command",
    [
        ("group", "show", "Carriers"),
        ("group", "delete", "Carriers"),
        ("reset", "Carriers", "Held", "first"),
        ("lag", "Carriers", "Held"),
        ("lag", "Carriers"),
    ],
)
def test_an_error_suggests_a_similar_group(
    firetrail: Firetrail, ask: Any, namesrv: str, command: tuple[str, ...]
) -> None:
    ask("topic", "create", "Held")
    ask("group", "create", "Carrier")
    result = firetrail(*command, "-n", namesrv)
    assert (result.code, result.out) == (2, "")
    assert f"{namesrv}: no group 'Carriers'; did you mean Carrier?" in result.err
