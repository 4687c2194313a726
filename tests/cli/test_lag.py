"""The output of ``firetrail lag`` about single queues; ``test_cluster`` asks a broker."""

from __future__ import annotations

import argparse
import json

import pytest

from firetrail.cli import lag
from firetrail.cli.lag import Lag
from firetrail.client import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


@pytest.mark.parametrize(
    ("committed", "first", "expired"),
    [(2, 1087, 1085), (1087, 1087, 0), (None, 1087, 0), (3, 0, 0)],
)
def test_expired_messages_are_those_between_commit_and_first_offset(
    committed: int | None, first: int, expired: int
) -> None:
    assert Lag(QUEUE, committed, first, 1750).expired == expired


def test_expired_messages_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lags = [Lag(QUEUE, 2, 1087, 1750)]
    lag._print(argparse.Namespace(group="G", json=False, watch=False), lags)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "T queue 0 of b: G skips 1085 messages (offsets 2 to 1086), which were deleted before the "
        "group consumed them"
    )
    lag._print(argparse.Namespace(group="G", json=True, watch=False), lags)
    result = json.loads(capsys.readouterr().out)
    assert (result["lag"], result["expired"]) == (663, 1085)
