"""RocketMQ's gRPC client for Go, v5.1.4, at Firetrail's own gRPC service.

It uses TLS by default. A push consumer that got several messages of a group at once does not wait
for one that fails, so the order under failures is that of messages that are sent after a failure.
"""

from __future__ import annotations

import pytest
from interop.grpc_checks import FEATURES, MESSAGES, Check, check_name, check_priority
from interop.grpc_servers import conversation, killed_conversation
from interop.stock import Event, client_environment, needs

NEEDS_JAVA = False


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    needs("go")
    client = client_environment("go-grpc") / "client"
    return conversation([client], tmp_path_factory.mktemp("go"), "tls", "messages")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    needs("go")
    client = client_environment("go-grpc") / "client"
    return killed_conversation([client], tmp_path_factory.mktemp("go"), "plain", "features-5.4")


@pytest.mark.parametrize("check", MESSAGES, ids=check_name)
def test_messages(messages: list[Event], check: Check) -> None:
    check(messages)


@pytest.mark.parametrize("check", [*FEATURES, check_priority], ids=check_name)
def test_features_without_tls(features: list[Event], check: Check) -> None:
    check(features)
