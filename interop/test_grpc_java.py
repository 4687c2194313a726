"""RocketMQ's gRPC client for Java, ``rocketmq-client-java``, at Firetrail's own gRPC service.

It uses TLS by default.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.grpc_checks import FEATURES, MESSAGES, Check, check_name
from interop.grpc_servers import conversation, killed_conversation
from interop.stock import Event, client_environment


def program(folder: Path) -> list[str]:
    """Return the command of the client, without its arguments."""
    client = client_environment("java-grpc")
    java = ["java", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
    return [*java, "-cp", f"{client}/lib/*:{client}", "GrpcClient"]


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("java")
    return conversation(program(folder), folder, "tls", "messages")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("java")
    return killed_conversation(program(folder), folder, "plain", "features")


@pytest.mark.parametrize("check", MESSAGES, ids=check_name)
def test_messages(messages: list[Event], check: Check) -> None:
    check(messages)


@pytest.mark.parametrize("check", FEATURES, ids=check_name)
def test_features_without_tls(features: list[Event], check: Check) -> None:
    check(features)
