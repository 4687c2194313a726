"""The released gRPC client of PyPI, ``rocketmq-python-client``, at Firetrail's own gRPC service."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.grpc_checks import FEATURES, MESSAGES, Check, check_name, check_priority
from interop.grpc_servers import conversation, killed_conversation
from interop.stock import Event, client_environment, of

PROGRAMS = Path(__file__).parent / "grpc"


# -- the same program as at the proxy of Java --------------------------------------------------


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    python = client_environment("grpc") / "venv" / "bin" / "python"
    return conversation([python, PROGRAMS / "client.py"], tmp_path_factory.mktemp("grpc"))


@pytest.mark.parametrize("check", MESSAGES, ids=check_name)
def test_messages(events: list[Event], check: Check) -> None:
    check(events)


def test_receipts_have_nine_words(events: list[Event]) -> None:
    assert {event["words"] for event in of(events, "got", "push")} == {9}


# -- further features --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    python = client_environment("grpc") / "venv" / "bin" / "python"
    folder = tmp_path_factory.mktemp("features")
    return killed_conversation([python, PROGRAMS / "features.py"], folder, "features-5.4")


@pytest.mark.parametrize("check", [*FEATURES, check_priority], ids=check_name)
def test_features(features: list[Event], check: Check) -> None:
    check(features)
