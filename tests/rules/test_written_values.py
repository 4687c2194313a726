"""A number, truth or delay means the same in broker.conf, on the command line and in Spark."""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firetrail.cli import common
from firetrail.cli.replication.replica_follow import slave_id
from firetrail.cli.servers import server_command
from firetrail.errors import ConfigError
from firetrail.format.values.delay import DelayLevels
from firetrail.pipeline.sink.sink_columns import parse_options as sink_options
from firetrail.pipeline.sink.sink_columns import parse_wire_options as wire_sink_options
from firetrail.pipeline.source.source_options import ReadBoundary, parse_options
from firetrail.settings.settings_table import Delays, Flag, Kind, Port, Whole

Parse = Callable[[str], Any]
REFUSED = "refused"
NUMBERS: Mapping[str, object] = {
    **{"0": 0, "7": 7, "65535": 65535, "007": 7, "+7": 7, "-0": 0},
    **dict.fromkeys(("", " ", "-7", "- 7", "7.0", "7e1", "0x7", "seven", "nan"), REFUSED),
    # Texts that int() or str.isdigit() take for numbers.
    **dict.fromkeys(("1_000", " 7", "7 ", "\n7", "٧", "７", "²", "1²"), REFUSED),
}
TRUTHS: Mapping[str, object] = {
    **{"true": True, "TRUE": True, "True": True, "false": False, "False": False},
    **dict.fromkeys(("", " ", "yes", "no", "1", "0", "true ", "tru", "on"), REFUSED),
}
DELAYS: Mapping[str, object] = {
    **{"1s": (1000,), "2m 1h": (120_000, 3_600_000), " 1d ": (86_400_000,)},
    **dict.fromkeys(("", "1", "s", "1 s", "-1s", "1.5s", "1S", "٧s", "1_0s", "1ms"), REFUSED),
}


def caught(parse: Parse, *refusals: type[Exception]) -> Parse:
    """Return a parser that refuses a value as options do, with ConfigError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except refusals as error:
            raise ConfigError("value", text, str(error)) from None

    return parsed


def argument(parse: Parse) -> Parse:
    """Return the parser of an argument, of which argparse reports two kinds of errors."""
    return caught(parse, argparse.ArgumentTypeError, ValueError)


def setting(kind: Kind[Any]) -> Parse:
    return caught(lambda text: kind.check(kind.parse(text)), ValueError)


def source(name: str, field: str, **more: str) -> Parse:
    given = {"namesrv": "h:1", "subscribe": "T", **more}
    return lambda text: getattr(parse_options(given | {name: text}), field)


def queue_of(edge: ReadBoundary) -> int:
    ((queue, _),) = edge.offsets["T"].items()
    return queue.queue_id


WHOLE: Mapping[str, Parse] = {
    "broker.conf": setting(Whole(0)),
    "a port in broker.conf": setting(Port()),
    "a port on the command line": argument(server_command.port),
    "a count on the command line": argument(common.not_negative),
    "a time for the source": source("startingTimestamp", "starting_timestamp"),
    "the time limit of the source": source("retryTimeoutMs", "retry_ms"),
    "the time limit of the sink": lambda text: (
        wire_sink_options({"namesrv": "h:1", "retryTimeoutMs": text}).retry_ms
    ),
    "a queue for the source": lambda text: queue_of(
        source("startingOffsets", "starting_offsets")(json.dumps({"T": {text: 5}}))
    ),
}
POSITIVE: Mapping[str, Parse] = {
    "broker.conf": setting(Whole(1)),
    "the command line": argument(common.positive),
    "the id of a replica": argument(slave_id),
    "partitions of the source": source("minPartitions", "min_partitions"),
    "queues of the sink": lambda text: (
        sink_options({"path": "s", "queues": text}, stream=False).queues
    ),
}


def outcome(parse: Parse, text: str) -> object:
    try:
        return parse(text)
    except ConfigError:
        return REFUSED


@pytest.mark.parametrize("way", WHOLE)
def test_a_whole_number(way: str) -> None:
    assert {text: outcome(WHOLE[way], text) for text in NUMBERS} == NUMBERS


@pytest.mark.parametrize("way", POSITIVE)
def test_a_number_of_at_least_1(way: str) -> None:
    wanted = {text: value or REFUSED for text, value in NUMBERS.items()} | {"65535": 65535}
    limited = ("65535",) if way == "queues of the sink" else ()
    found = {text: outcome(POSITIVE[way], text) for text in NUMBERS if text not in limited}
    assert found == {text: wanted[text] for text in found}


@pytest.mark.parametrize(
    "parse",
    [
        setting(Flag()),
        source("failOnDataLoss", "fail_on_data_loss"),
        source("decompress", "decompress"),
    ],
)
def test_a_truth(parse: Parse) -> None:
    assert {text: outcome(parse, text) for text in TRUTHS} == TRUTHS


@pytest.mark.parametrize(
    "parse", [setting(Delays()), argument(common._delay_levels), DelayLevels.parse]
)
def test_delay_levels(parse: Callable[[str], DelayLevels]) -> None:
    found = {text: outcome(lambda text: parse(text).waits_ms, text) for text in DELAYS}
    assert found == DELAYS
