"""RocketMQ's gRPC client for Java, with its default TLS, at Firetrail's own gRPC service."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.grpc_checks import MESSAGES, Check, check_name
from interop.grpc_servers import conversation
from interop.stock import Event, all_delivered, bodies, client_environment


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the program says about messages of all types but delayed ones."""
    return run(tmp_path_factory.mktemp("java"), "tls", "messages")


def run(folder: Path, security: str, part: str) -> list[Event]:
    client = client_environment("java-grpc")
    java = ["java", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
    java += ["-cp", f"{client}/lib/*:{client}", "GrpcClient"]
    return conversation(java, folder, security, part)


@pytest.mark.parametrize("check", MESSAGES, ids=check_name)
def test_messages(events: list[Event], check: Check) -> None:
    check(events)


def test_delayed_messages_and_recall_without_tls(tmp_path: Path) -> None:
    events = run(tmp_path, "plain", "delays")
    assert bodies(events, "sent", "delay") == ["recalled", "later"]
    all_delivered(events, "delay", ["later"])
