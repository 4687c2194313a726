"""The released gRPC client of PyPI, ``rocketmq-python-client``, at Firetrail's own gRPC service."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.grpc_checks import check_order, check_put_off, check_received
from interop.grpc_servers import prepared, serving
from interop.stock import (
    WAIT_S,
    Event,
    all_delivered,
    bodies,
    client_environment,
    of,
    run_client,
)

PROGRAMS = Path(__file__).parent / "grpc"


# -- the same program as at the proxy of Java --------------------------------------------------


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("grpc")
    python = client_environment("grpc") / "venv" / "bin" / "python"
    with serving(folder) as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        return run_client([python, PROGRAMS / "client.py", addresses["grpc"]], folder)


def test_everything_sent_is_received(events: list[Event]) -> None:
    check_received(events)
    assert {event["words"] for event in of(events, "got", "push")} == {9}


def test_order(events: list[Event]) -> None:
    check_order(events)


def test_a_message_that_was_put_off_comes_again(events: list[Event]) -> None:
    check_put_off(events)


def test_transactions(events: list[Event]) -> None:
    all_delivered(events, "halves", ["commit", "unknown"])
    all_delivered(events, "check", ["unknown"])


# -- further features --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the program says; the server is killed and started again on its request."""
    folder = tmp_path_factory.mktemp("features")
    python = client_environment("grpc") / "venv" / "bin" / "python"
    said: list[Event] = []
    with serving(folder) as addresses:
        asyncio.run(prepared(addresses["name_server"]))
        client = subprocess.Popen(
            [python, PROGRAMS / "features.py", addresses["grpc"]],
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with killed_at_failure(client):
            said += until(client, "ready")
    ports = [int(addresses[name].rpartition(":")[2]) for name in ("broker", "grpc")]
    with killed_at_failure(client), serving(folder, *ports):
        assert client.stdin is not None
        client.stdin.write("go on\n")
        client.stdin.flush()
        said += until(client, "done")
        assert client.wait(WAIT_S) == 0
    with client:
        return said


@contextmanager
def killed_at_failure(client: subprocess.Popen[str]) -> Iterator[None]:
    """End a program if the test fails."""
    try:
        yield
    except BaseException:
        with client:
            client.kill()
        raise


def until(client: subprocess.Popen[str], word: str) -> list[Event]:
    """Return what a program says, up to an event with this word."""
    found: list[Event] = []
    assert client.stdout is not None
    for line in client.stdout:
        if line.startswith("{"):
            found.append(json.loads(line))
            if word in found[-1]:
                return found
    raise AssertionError(f"the program ended before it said {word}: {found[-3:]}")


def test_a_condition_selects_messages(features: list[Event]) -> None:
    assert sorted(bodies(features, "got", "sql")) == ["n3", "n4", "n5"]


def test_order_is_kept_when_a_message_fails(features: list[Event]) -> None:
    assert bodies(features, "got", "ordered") == ["k0", "again-k1", "again-k1", "k2", "k3"]


def test_a_message_that_fails_too_often_becomes_a_dead_letter(features: list[Event]) -> None:
    assert [event["times"] for event in of(features, "got", "failing")] == [1, 2]
    assert bodies(features, "got", "dead") == ["fails"]


def test_messages_are_delivered_at_their_time(features: list[Event]) -> None:
    (sent,) = of(features, "sent", "delayed")
    got = {event["body"]: event["at"] for event in of(features, "got", "delayed")}
    assert got.keys() == {"past", "later"}
    assert got["later"] >= sent["due"]


def test_a_message_is_recalled(features: list[Event]) -> None:
    (recall,) = [event for event in features if "recalled" in event]
    assert recall["recalled"] == recall["id"]
    assert "recalled" not in bodies(features, "got", "delayed")


def test_clients_continue_after_a_kill_of_the_server(features: list[Event]) -> None:
    assert set(bodies(features, "got", "restart")) == {"before", "after"}
