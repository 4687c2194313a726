"""RocketMQ's gRPC client for Java, with its default TLS, at Firetrail's own gRPC service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop.grpc_checks import check_order, check_put_off, check_received
from interop.grpc_servers import prepared, serving
from interop.stock import (
    Event,
    all_delivered,
    bodies,
    client_environment,
    run_client,
)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the program says about messages of all types but delayed ones."""
    return run(tmp_path_factory.mktemp("java"), "tls", "messages")


def run(folder: Path, security: str, part: str) -> list[Event]:
    client = client_environment("java-grpc")
    with serving(folder) as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        java = ["java", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
        java += ["-cp", f"{client}/lib/*:{client}", "GrpcClient"]
        return run_client([*java, addresses["grpc"], security, part], folder)


def test_everything_sent_is_received(events: list[Event]) -> None:
    check_received(events)


def test_order(events: list[Event]) -> None:
    check_order(events)


def test_a_message_that_was_put_off_comes_again(events: list[Event]) -> None:
    check_put_off(events)


def test_transactions(events: list[Event]) -> None:
    all_delivered(events, "halves", ["commit", "unknown"])
    all_delivered(events, "check", ["unknown"])


def test_delayed_messages_and_recall_without_tls(tmp_path: Path) -> None:
    events = run(tmp_path, "plain", "delays")
    assert bodies(events, "sent", "delay") == ["recalled", "later"]
    all_delivered(events, "delay", ["later"])
