"""``firetrail send``, to a cluster that ``firetrail up`` has started."""

import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.cli.conftest import Firetrail
from tests.cli.live_clusters import running
from tests.helpers import PATIENCE_S

from firetrail.cli.clusters import send as send_command
from firetrail.cli.output import human_time
from firetrail.format.recall_handle import decode_handle
from firetrail.system import SYSTEM


def test_every_line_of_standard_input_is_sent(namesrv: str) -> None:
    command = [sys.executable, "-m", "firetrail", "send", "Lines", "-n", namesrv]
    result = subprocess.run(command, input=b"a\nb\r\nc", capture_output=True, check=True)
    assert result.stdout.count(b"SEND_OK  broker-a queue") == 3


def test_an_interrupt_while_no_line_comes(namesrv: str) -> None:
    with running("send", "Typed", "-n", namesrv, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("SEND_OK")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_a_property_without_a_value_is_refused(firetrail: Firetrail) -> None:
    result = firetrail("send", "T", "x", "--property", "name")
    assert result.code == 2
    assert "'name' is not NAME=VALUE" in result.err
    result = firetrail("send", "T", "x", "--property", "a=1", "--property", "a=2")
    assert result.code == 2
    assert "argument --property: a is given twice" in result.err
    result = firetrail("settings", "set", "a=1", "b=2", "a=3")
    assert result.code == 2
    assert "a is given twice" in result.err


class TestDeliveryTimes:
    def test_a_message_that_waits_has_a_recall_handle(self, ask: Any) -> None:
        waiting = ask("send", "Later", "x", "--delay", "1h", "--json").json
        handle = decode_handle(waiting["recall_handle"])
        assert (handle.topic, handle.unique_key) == ("Later", waiting["message_id"])
        due = ask("send", "Later", "x", "--deliver-at", "1763199000000", "--json").json
        assert "recall_handle" not in due  # that time is over
        assert due["queue_offset"] == 0

    def test_a_message_that_waits_has_a_time_instead_of_a_position(self, ask: Any) -> None:
        before_ms = SYSTEM.clock.now_ms()
        waiting = ask("send", "Later", "x", "--delay", "1h", "--json").json
        assert list(waiting) == ["status", "broker", "deliver_at", "message_id", "recall_handle"]
        assert 0 <= waiting["deliver_at"] - before_ms - 3_600_000 <= PATIENCE_S * 1000
        at_ms = before_ms + 3_600_000
        said = ask("send", "Later", "x", "--deliver-at", str(at_ms)).out
        assert f" waits until {human_time(at_ms)}  " in said
        assert "  recall handle " in said
        assert "offset" not in said

    def test_a_message_with_a_delay_level_has_the_level_instead_of_a_position(
        self, ask: Any
    ) -> None:
        delayed = ask("send", "Later", "x", "--delay-level", "18", "--json").json
        assert list(delayed) == ["status", "broker", "delay_level", "message_id"]
        assert delayed["delay_level"] == 18
        said = ask("send", "Later", "x", "--delay-level", "18").out
        assert " waits for delay level 18  " in said

    def test_a_time_too_far_ahead_is_refused_with_the_limit(
        self, firetrail: Firetrail, namesrv: str
    ) -> None:
        result = firetrail("send", "--namesrv", namesrv, "Later", "x", "--delay", "73h")
        assert result.code == 2
        assert "the max delay 259200000ms, which is 3 days; choose an earlier time" in result.err

    @pytest.mark.parametrize(
        ("text", "seconds"), [("250ms", 0.25), ("90s", 90), ("10m", 600), ("2h", 7200)]
    )
    def test_durations_are_numbers_with_units(self, text: str, seconds: float) -> None:
        assert send_command.delay(text).total_seconds() == seconds

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("--delay", "5"), "--delay: '5' is not a number with a unit (ms, s, m, h, d)"),
            (("--deliver-at", "noon"), "'noon' is not a time such as 2026-11-15T09:30:00, or ms"),
            (("--deliver-at", "1", "--delay", "1s"), "not allowed with argument --deliver-at"),
        ],
    )
    def test_other_times_are_refused(
        self, firetrail: Firetrail, options: tuple[str, ...], said: str
    ) -> None:
        result = firetrail("send", "T", "x", *options)
        assert result.code == 2 and said in result.err
