"""RocketMQ's gRPC client for Rust, the crate ``rocketmq`` 5.0.0, at Firetrail's own gRPC service.

It has producers and simple consumers, no recall and no TLS. To build it takes 3.5 minutes of CPU
time, even if the crates have been downloaded. So the tests run only with
``FIRETRAIL_INTEROP_RUST=1`` in the environment.
"""

from __future__ import annotations

import os

import pytest
from interop.grpc_checks import (
    Check,
    check_condition,
    check_dead_letter,
    check_delivery_times,
    check_name,
    check_order,
    check_received,
    check_restart,
    check_transactions,
)
from interop.grpc_servers import killed_conversation
from interop.stock import Event, all_delivered, bodies, client_environment, needs

NEEDS_JAVA = False
OPT_IN = "FIRETRAIL_INTEROP_RUST"
CHECKS: list[Check] = [
    check_condition,
    check_dead_letter,
    check_delivery_times,
    check_order,
    check_restart,
    check_transactions,
]

pytestmark = pytest.mark.skipif(OPT_IN not in os.environ, reason=f"{OPT_IN} is not set")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    needs("cargo")
    client = client_environment("rust") / "target" / "debug" / "client"
    return killed_conversation([client], tmp_path_factory.mktemp("rust"))


def test_everything_sent_is_received(events: list[Event]) -> None:
    check_received(events, "simple")


def test_a_batch_is_received(events: list[Event]) -> None:
    all_delivered(events, "batch", [f"batch{n}" for n in range(3)])


def test_tags(events: list[Event]) -> None:
    assert sorted(bodies(events, "got", "tags")) == ["normal1", "normal3", "normal5"]


@pytest.mark.parametrize("check", CHECKS, ids=check_name)
def test_messages_and_features(events: list[Event], check: Check) -> None:
    check(events)
