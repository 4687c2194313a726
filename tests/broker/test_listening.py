"""The address that a broker tells clients to connect to."""

from __future__ import annotations

import pytest

from firetrail.broker.broker_conf import load_entries
from firetrail.broker.listening import advertised_host
from firetrail.format.java_properties import Entry


@pytest.mark.parametrize(
    ("bind", "entries", "advertised"),
    [
        ("10.0.0.5", {}, "10.0.0.5:10911"),
        ("127.0.0.2", {"listenPort": "5"}, "127.0.0.2:5"),
        ("::1", {}, "[::1]:10911"),
        ("0.0.0.0", {}, "127.0.0.1:10911"),
        ("::", {}, "127.0.0.1:10911"),
        ("localhost", {}, "127.0.0.1:10911"),
        ("10.0.0.5", {"brokerIP1": "10.0.0.9"}, "10.0.0.9:10911"),
        ("127.0.0.2", {"brokerIP1": "127.0.0.1"}, "127.0.0.1:10911"),
        ("10.0.0.5", {"store_host": "10.0.0.9:1"}, "10.0.0.9:1"),
    ],
)
def test_the_address_to_listen_on_is_advertised_unless_another_is_set(
    bind: str, entries: dict[str, str], advertised: str
) -> None:
    given = {key: Entry(text, "broker.conf") for key, text in entries.items()}
    host = load_entries(given).store.store_host
    assert str(advertised_host(bind, host, given)) == advertised
