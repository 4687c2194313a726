"""The options of the data source: allowed values, and errors for all others."""

from pathlib import Path

import pytest

from firetrail.errors import ConfigError
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.source.schema import NAMES
from firetrail.pipeline.source.source_options import (
    EARLIEST,
    INTERNAL_OPTIONS,
    LATEST,
    OPTIONS,
    ReadBoundary,
    ReadOptions,
    View,
    parse_options,
    parse_shape,
)

EXAMPLES = {
    "view": "log",
    "subscribe": "b, a,b",
    "subscribePattern": "a.*",
    "assign": '{"T": [0, "b/1"]}',
    "startingOffsets": '{"T": {"0": 5, "1": -2}}',
    "endingOffsets": "latest",
    "startingTimestamp": "1700000000000",
    "endingTimestamp": "0",
    "startingOffsetsByTimestamp": '{"T": {"0": 1700000000000}}',
    "endingOffsetsByTimestamp": '{"T": {"b/0": 1700000000000}}',
    "queueIds": "0, 2",
    "startingPhysicalOffset": "100",
    "endingPhysicalOffset": "0",
    "key": "k",
    "tags": "A || B",
    "columns": "topic, body",
    "decompress": "TRUE",
    "mode": "PERMISSIVE",
    "minPartitions": "7",
    "maxOffsetsPerTrigger": "100",
    "maxBytesPerTrigger": "1000000",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "15m",
    "failOnDataLoss": "false",
    "path": "s",
    "paths": '["s", "t"]',
    "namesrv": "127.0.0.1:9876",
    "credentialsFile": "access",
    "group": "g",
    "commitGroup": "c",
    "retryTimeoutMs": "0",
}


def test_only_a_path_is_required() -> None:
    assert parse_options({"path": "/s"}) == ReadOptions("/s")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in other folders or on other machines."""
    monkeypatch.chdir(tmp_path)
    assert parse_options({"path": "a/../s"}).path == f"{tmp_path}/a/../s"
    assert parse_options({"path": f"file://{tmp_path}/s"}).path == f"{tmp_path}/s"
    assert parse_options({"path": "s3://bucket/s"}).path == "s3://bucket/s"


def test_there_is_an_example_of_every_option() -> None:
    internal = {option.name for option in INTERNAL_OPTIONS} - {"bounds"}
    assert {option.name for option in OPTIONS} | internal == set(EXAMPLES)


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str])
def test_option_names_are_case_insensitive(spelling: type[str]) -> None:
    """Spark passes them in lower case."""
    given = {"path": "s", "minPartitions": "3", "subscribePattern": "x"}
    options = parse_options({spelling(name): value for name, value in given.items()})
    assert (options.min_partitions, options.subscribe_pattern) == (3, "x")


def test_values_are_parsed() -> None:
    names = ("subscribe", "endingOffsets", "key", "tags", "columns", "decompress", "mode")
    options = parse_options({"path": "s"} | {name: EXAMPLES[name] for name in names})
    assert options.subscribe == ("b", "a")
    assert options.tags == ("A", "B")
    assert options.columns == ("topic", "body")
    assert (options.decompress, options.permissive) == (True, True)
    assert options.ending_offsets == ReadBoundary(LATEST)
    assert parse_options({"path": "s", "tags": "A || *"}).tags == ()


def test_offsets_are_parsed_by_queue() -> None:
    options = parse_options({"path": "s", "startingOffsets": EXAMPLES["startingOffsets"]})
    edge = options.starting_offsets
    assert edge is not None
    assert (edge.of("T", 0), edge.of("T", 1)) == (5, EARLIEST)
    assert (edge.of("T", 9), edge.of("U", 0)) == (EARLIEST, EARLIEST)
    options = parse_options({"path": "s", "endingOffsets": '{"T": {"0": 5}}'})
    assert options.ending_offsets is not None
    assert options.ending_offsets.of("T", 1) == LATEST


def test_times_are_parsed_by_queue() -> None:
    given = {
        "namesrv": "h:9876",
        "startingoffsetsbytimestamp": '{"T": {"0": 5}}',
        "ENDINGOFFSETSBYTIMESTAMP": '{"T": {"b/0": 9}}',
    }
    options = parse_options(given)
    assert options.times_of("T", 0, "a") == (5, TIME_MAX)
    assert options.times_of("T", 0, "b") == (5, 9)
    assert options.times_of("T", 1, "a") == (TIME_MIN, TIME_MAX)
    plain = parse_options({"path": "s", "startingTimestamp": "3", "endingTimestamp": "4"})
    assert plain.times_of("T", 0) == (3, 4)


def test_topics_to_follow() -> None:
    assert ReadOptions("s").follows("any")
    assert ReadOptions("s", subscribe=("a",)).follows("a")
    assert not ReadOptions("s", subscribe=("a",)).follows("ab")
    assert ReadOptions("s", subscribe_pattern="a.*").follows("ab")
    assert not ReadOptions("s", subscribe_pattern="a").follows("ab")


def test_queues_to_follow() -> None:
    options = parse_options({"namesrv": "h:9876", "ASSIGN": '{"T": [0, "b/1"], "U": ["2"]}'})
    assert options.follows("U")
    assert not options.follows("V")
    assert options.follows_queue("T", 0, "a")
    assert options.follows_queue("T", 1, "b")
    assert not options.follows_queue("T", 1, "a")
    assert not options.follows_queue("U", 0, "a")
    assert not options.follows_queue("V", 0)
    offsets = '{"T": {"a/0": 5, "1": 5}, "U": {"a/2": 5}}'
    options = parse_options(
        {"namesrv": "h:9876", "assign": '{"T": [0, "b/1"], "U": [2]}', "startingOffsets": offsets}
    )
    assert options.subscribe == ("T", "U")


def test_columns_may_be_given_in_any_case() -> None:
    given = {"path": "s", "columns": "Topic,SIZE,topic,Store"}
    assert parse_options(given).columns == parse_shape(given)[1] == ("topic", "size", "store")


def test_view_and_columns_are_known_without_other_options() -> None:
    assert parse_shape({"path": "s", "maxBytesPerTrigger": "5"}) == (View.QUEUE, NAMES)
    assert parse_shape({"view": "damage"})[0] is View.DAMAGE
    assert parse_shape({"columns": "size"}) == (View.QUEUE, ("size",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("view", "topics"),
        ("assign", "T"),
        ("assign", "{}"),
        ("assign", '{"T": 0}'),
        ("assign", '{"T": []}'),
        ("assign", '{"T": [true]}'),
        ("assign", '{"T": [-1]}'),
        ("assign", '{"T": [0.5]}'),
        ("startingOffsets", "middle"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"T": 5}'),
        ("startingOffsets", '{"T": {"0": "5"}}'),
        ("startingOffsets", '{"T": {"0": true}}'),
        ("startingOffsets", '{"T": {"x": 5}}'),
        ("startingOffsets", '{"T": {"0": -3}}'),
        ("endingOffsets", "earliest"),
        ("startingOffsetsByTimestamp", '{"T": {"0": -1}}'),
        ("startingOffsetsByTimestamp", "1700000000000"),
        ("endingOffsetsByTimestamp", '{"T": {"0": "yesterday"}}'),
        ("maxTriggerDelay", "soon"),
        ("maxTriggerDelay", "5 parsecs"),
        ("maxTriggerDelay", "-5s"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-1"),
        ("subscribe", "a,,b"),
        ("subscribe", ""),
        ("subscribePattern", "["),
        ("tags", "||"),
        ("key", ""),
        ("path", ""),
        ("decompress", "yes"),
        ("mode", "dropmalformed"),
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("failOnDataLoss", "1"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(name: str, value: str) -> None:
    allowed = next(option.kind.allowed for option in OPTIONS if option.name == name)
    with pytest.raises(ConfigError) as caught:
        parse_options({"path": "s"} | {name.lower(): value})
    assert caught.value.key == name
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500", 500),
        ("7ms", 7),
        ("30S", 30_000),
        ("15 m", 900_000),
        ("2min", 120_000),
        ("1h", 3600000),
    ],
)
def test_durations_are_written_as_in_spark(text: str, ms: int) -> None:
    given = {"path": "s", "MINOFFSETSPERTRIGGER": "5", "maxtriggerdelay": text}
    options = parse_options(given, stream=True)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (5, ms)


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"]
)
def test_a_limit_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        parse_options({"path": "s", name: "0"}, stream=True)


def test_an_unknown_option_lists_all_that_users_set() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({"path": "s", "topic": "T"})
    assert "no such option" in str(caught.value)
    listed = caught.value.allowed.partition("the options are ")[2].split(", ")
    assert listed == [option.name for option in OPTIONS]
    assert not {option.name for option in INTERNAL_OPTIONS}.intersection(listed)


def test_an_unknown_column_lists_all() -> None:
    mistake = r"'Boddy'.*did you mean body\?; the columns are topic, queue_id, .*, size"
    with pytest.raises(ConfigError, match=mistake):
        parse_options({"path": "s", "columns": "topic,Boddy"})


def test_a_missing_path_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match="name the store"):
        parse_options({})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"subscribe": "a", "subscribePattern": "b"},
            "subscribe = 'a': cannot be used together with subscribePattern; give only one",
        ),
        ({"assign": '{"T": [0]}', "subscribe": "T"}, "together with subscribe; give only one"),
        ({"assign": '{"T": [0]}', "subscribePattern": "T"}, "together with subscribePattern"),
        ({"assign": '{"T": [0]}', "view": "log"}, "assign = .* does not apply to view=log"),
        (
            {"assign": '{"T": [0]}', "startingOffsets": '{"T": {"1": 5}}'},
            "startingOffsets = 'T/1': assign leaves out this queue; leave it out here, too",
        ),
        ({"assign": '{"T": [0]}', "endingOffsets": '{"U": {"0": 5}}'}, "'U/0': assign leaves"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "give only one of the two"),
        (
            {"startingOffsetsByTimestamp": "{}", "startingOffsets": "latest"},
            "cannot be used together with startingOffsets; give only one",
        ),
        ({"startingOffsetsByTimestamp": "{}", "startingTimestamp": "1"}, "together with starti"),
        ({"endingOffsetsByTimestamp": "{}", "endingOffsets": "latest"}, "together with endingOff"),
        ({"endingOffsetsByTimestamp": "{}", "endingTimestamp": "1"}, "together with endingTimes"),
        ({"endingOffsetsByTimestamp": "{}", "view": "log"}, "does not apply to view=log"),
        (
            {"startingOffsetsByTimestamp": '{"T": {"1": 5}}', "assign": '{"T": [0]}'},
            "startingOffsetsByTimestamp = 'T/1': assign leaves out this queue",
        ),
        ({"maxOffsetsPerTrigger": "1"}, "PerTrigger = '1': does not apply to a batch read"),
        ({"minOffsetsPerTrigger": "1"}, "PerTrigger = '1': does not apply to a batch read"),
        ({"commitGroup": "c"}, "commitGroup = 'c': does not apply to a batch read"),
        ({"maxTriggerDelay": "1s"}, "Delay = '1s': does not apply to a batch read"),
        ({"key": "k"}, "key = 'k': needs the option subscribe or assign"),
        (
            {"view": "log", "startingOffsets": "earliest"},
            "startingOffsets = 'earliest': does not apply to view=log",
        ),
        ({"view": "damage", "subscribe": "a"}, "subscribe = 'a': does not apply to view=damage"),
        ({"namesrv": "h:9876"}, "give only one of the two"),
        ({"group": "g"}, "give only one of the two"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options({"path": "s"} | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "does not apply to a stream"),
        ({"endingTimestamp": "5"}, "does not apply to a stream"),
        ({"endingOffsetsByTimestamp": "{}"}, "does not apply to a stream"),
        ({"key": "k", "subscribe": "a"}, "does not apply to a stream"),
        ({"view": "damage"}, "does not apply to a stream"),
        ({"view": "log", "maxOffsetsPerTrigger": "1"}, "does not apply to view=log"),
        ({"view": "log", "minOffsetsPerTrigger": "1"}, "does not apply to view=log"),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "give only one of the two"),
        ({"COMMITGROUP": "c"}, "commitGroup = 'c': needs the option namesrv"),
        ({"maxTriggerDelay": "1s"}, "needs the option minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger = 9: must be at most maxOffsetsPerTrigger, which is 5",
        ),
    ],
)
def test_options_that_are_not_for_streams(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options({"path": "s"} | given, stream=True)


def test_offsets_may_name_queues_of_brokers() -> None:
    offsets = '{"T": {"a/0": 5, "b/0": 7, "1": 9}}'
    options = parse_options({"namesrv": "h:9876", "startingOffsets": offsets})
    assert (options.place, options.group) == ("namesrv=h:9876", "FIRETRAIL_SPARK")
    edge = options.starting_offsets
    assert edge is not None
    assert [edge.of("T", 0, "a"), edge.of("T", 0, "b"), edge.of("T", 1, "a")] == [5, 7, 9]
    assert edge.of("T", 0, "c") == EARLIEST


@pytest.mark.parametrize("view", ["log", "damage"])
def test_brokers_have_queues_only(view: str) -> None:
    with pytest.raises(ConfigError, match="brokers have only view=queue"):
        parse_options({"namesrv": "h:9876", "view": view})
