"""The options of the data source, with the values that each one allows.

Names are those of Spark's Kafka source where it has the same option. Spark passes option names in
lower case; errors show them as they are documented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Self, TypeVar

from firetrail.errors import ConfigError
from firetrail.format.names import OFFSET_MAX
from firetrail.format.values.integers import INT64_MAX, parse_whole
from firetrail.format.values.tags import tags_in
from firetrail.pipeline.kernels.pick import TIME_MAX, TIME_MIN
from firetrail.pipeline.options import (
    GROUP,
    NAMESRV,
    RETRY,
    RETRY_MS,
    Option,
    OptionTable,
    Parsed,
    names_in,
    some_text,
)
from firetrail.pipeline.source.places import absolute
from firetrail.pipeline.source.schema import NAMES, STORE, fields, own_name
from firetrail.settings.settings_table import Flag, OneOf, Whole

EARLIEST = -2
LATEST = -1
"""Numbers that denote the ends of a queue, as in Kafka."""

MAX_TRIGGER_DELAY_MS = 900_000
"""Default of ``maxTriggerDelay``, as in Kafka: 15 minutes."""
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Q = TypeVar("Q")
TopicOffsets = dict[str, dict[int, int]]


class QueueName(NamedTuple):
    """The name of a queue in options: ``0``, or ``broker-a/0`` if several brokers have the topic.

    For a store, the broker is empty.
    """

    broker: str
    queue_id: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name; raise ValueError if it is not valid."""
        broker, _, queue_id = text.rpartition("/")
        return cls(broker, parse_whole(queue_id))

    def may_be(self, other: QueueName) -> bool:
        """Whether both may name the same queue."""
        same_broker = self.broker == other.broker or not (self.broker and other.broker)
        return same_broker and self.queue_id == other.queue_id

    def __str__(self) -> str:
        return f"{self.broker}/{self.queue_id}" if self.broker else str(self.queue_id)


class View(Enum):
    """The kind of rows."""

    QUEUE = "queue"  # the messages that consumers see, through the consume queues
    LOG = "log"  # every record, as stored
    DAMAGE = "damage"  # every damaged position


class _DamageMode(Enum):
    """The treatment of damaged records by a read."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"


@dataclass(frozen=True, slots=True)
class ReadBoundary:
    """The start or end of a read in every queue: one of its ends, or offsets or times by queue."""

    default: int
    offsets: dict[str, dict[QueueName, int]] = field(default_factory=dict)

    def of(self, topic: str, queue_id: int, broker: str = "") -> int:
        """Return the value for a queue; an offset may be EARLIEST or LATEST."""
        known = self.offsets.get(topic, {})
        anywhere = known.get(QueueName("", queue_id), self.default)
        return known.get(QueueName(broker, queue_id), anywhere)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    path: str = ""
    paths: tuple[str, ...] = ()
    """Several stores that are read as one, instead of a path."""
    namesrv: str = ""
    """Name servers, separated by semicolons, to read from brokers instead of a path."""
    access_file: str = ""
    """File with credentials and TLS for the brokers; empty for those in the environment."""
    group: str = GROUP
    commit_group: str = ""
    """The group whose offsets at the brokers are those of a stream; empty for none."""
    retry_ms: int = RETRY_MS
    """The time for which each request to a name server or broker is retried."""
    view: View = View.QUEUE
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: dict[str, frozenset[QueueName]] | None = None
    """The queues to read, by topic; ``subscribe`` has the same topics."""
    starting_offsets: ReadBoundary | None = None
    ending_offsets: ReadBoundary | None = None
    starting_timestamp: int = TIME_MIN
    ending_timestamp: int = TIME_MAX
    starting_times: ReadBoundary | None = None
    """Store times by queue, instead of offsets."""
    ending_times: ReadBoundary | None = None
    queue_ids: tuple[int, ...] | None = None
    starting_physical_offset: int = 0
    ending_physical_offset: int = OFFSET_MAX
    key: str = ""
    tags: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    decompress: bool = False
    permissive: bool = False
    min_partitions: int = 1
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    fail_on_data_loss: bool = True
    bounds: str = ""
    """Bounds that ``firetrail.pipeline.sql`` derived from a query, as text (``filters``)."""

    @property
    def place(self) -> str:
        """The store or brokers, for messages."""
        return self.path or ", ".join(self.paths) or f"namesrv={self.namesrv}"

    @property
    def starts_at_time(self) -> bool:
        """Whether a new stream begins at times, and not at offsets."""
        return self.starting_times is not None or self.starting_timestamp > TIME_MIN

    def times_of(self, topic: str, queue_id: int, broker: str = "") -> tuple[int, int]:
        """Return the store times of a queue's messages to read; the end is excluded."""
        since, until = self.starting_timestamp, self.ending_timestamp
        if self.starting_times is not None:
            since = self.starting_times.of(topic, queue_id, broker)
        if self.ending_times is not None:
            until = self.ending_times.of(topic, queue_id, broker)
        return since, until

    def follows_queue(self, topic: str, queue_id: int, broker: str = "") -> bool:
        """Whether a queue is to be read."""
        if self.assign is None:
            return self.follows(topic)
        queues = self.assign.get(topic, frozenset())
        return QueueName("", queue_id) in queues or QueueName(broker, queue_id) in queues

    def named_queues(self) -> Iterator[tuple[str, str, QueueName]]:
        """Yield the queues that options name: the option, the topic and the queue."""
        for topic, queues in (self.assign or {}).items():
            yield from (("assign", topic, queue) for queue in sorted(queues))
        for name, boundary in (
            ("startingOffsets", self.starting_offsets),
            ("endingOffsets", self.ending_offsets),
            ("startingOffsetsByTimestamp", self.starting_times),
            ("endingOffsetsByTimestamp", self.ending_times),
        ):
            for topic, by_queue in (boundary.offsets if boundary else {}).items():
                yield from ((name, topic, queue) for queue in by_queue)

    def follows(self, topic: str) -> bool:
        """Whether queues of a topic are to be read."""
        if self.subscribe is not None:
            return topic in self.subscribe
        pattern = self.subscribe_pattern
        return pattern is None or re.fullmatch(pattern, topic) is not None


# -- values -----------------------------------------------------------------------------------


def _place(text: str) -> str:
    if not text:
        raise ValueError
    return absolute(text)


def _columns(text: str) -> tuple[str, ...]:
    """Return the names of columns, which may be given in any case."""
    return tuple(dict.fromkeys(map(own_name, names_in(text))))


def _assigned(text: str) -> dict[str, frozenset[QueueName]]:
    """Parse ``{"topic": [0, "broker-a/1"]}``, with at least one topic and one queue of each."""
    topics = json.loads(text)
    if not isinstance(topics, dict) or not topics:
        raise ValueError
    return {topic: frozenset(map(_queue_name, _some(queues))) for topic, queues in topics.items()}


def _some(values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError
    return values


def _queue_name(value: Any) -> QueueName:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return QueueName.parse(str(value))


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(parse_whole, names_in(text)))


def _tags(text: str) -> tuple[str, ...]:
    try:
        return tags_in(text) or ()
    except ConfigError:
        raise ValueError from None


def _paths(text: str) -> tuple[str, ...]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise ValueError
    return tuple(map(_place, paths))


def _pattern(text: str) -> str:
    re.compile(text)
    return text


def parse_offsets(value: Any) -> TopicOffsets:
    """Parse ``{"topic": {"0": 5}}`` with queue ids as keys; raise ValueError if it is invalid."""
    return parse_offsets_by(int, value)


def parse_offsets_by(queue: Callable[[str], Q], value: Any) -> dict[str, dict[Q, int]]:
    """Parse ``{"topic": {"queue": 5}}``, where ``queue`` parses the keys."""
    if not isinstance(value, dict):
        raise ValueError
    parsed: dict[str, dict[Q, int]] = {}
    for topic, by_queue in value.items():
        if not isinstance(by_queue, dict):
            raise ValueError
        parsed[topic] = {queue(name): _offset(offset) for name, offset in by_queue.items()}
    return parsed


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError
    return value


def _boundary(default: int, *words: str) -> Callable[[str], ReadBoundary]:
    numbers = {"earliest": EARLIEST, "latest": LATEST}

    def parse(text: str) -> ReadBoundary:
        if text.lower() in words:
            return ReadBoundary(numbers[text.lower()])
        return ReadBoundary(default, parse_offsets_by(QueueName.parse, json.loads(text)))

    return parse


def _duration(text: str) -> int:
    """Return the ms of a duration as Spark writes it: ``500ms``, ``30s``, ``15m``."""
    parts = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", text.strip().lower())
    if parts is None:
        raise ValueError
    return int(parts[1]) * _UNITS_MS[parts[2]]


def _times(default: int) -> Callable[[str], ReadBoundary]:
    def parse(text: str) -> ReadBoundary:
        times = parse_offsets_by(QueueName.parse, json.loads(text))
        if any(time < 0 for by_queue in times.values() for time in by_queue.values()):
            raise ValueError
        return ReadBoundary(default, times)

    return parse


_JSON = '{"TOPIC": {"0": 5, "1": -2}}, where -2 is earliest and -1 latest'
_TIMES = '{"TOPIC": {"0": 1700000000000}}, ms since 1970 by topic and queue'
_POSITIVE, _TIME = Whole(1, INT64_MAX), Whole(0, INT64_MAX, "ms since 1970")
OPTIONS = (
    Option("path", "path", Parsed(_place, "a folder, or a URL that Arrow or fsspec can open")),
    NAMESRV,
    Option("credentialsFile", "access_file", some_text("a file that only its owner can read")),
    Option("group", "group", some_text("the name of a consumer group")),
    Option("commitGroup", "commit_group", some_text("the name of a consumer group")),
    RETRY,
    Option("view", "view", OneOf(View)),
    Option("subscribe", "subscribe", Parsed(names_in, "a list of topics, separated by commas")),
    Option("subscribePattern", "subscribe_pattern", Parsed(_pattern, "a regular expression")),
    Option("assign", "assign", Parsed(_assigned, '{"TOPIC": [0, 1]}, the ids of queues by topic')),
    Option(
        "startingOffsets",
        "starting_offsets",
        Parsed(_boundary(EARLIEST, "earliest", "latest"), f"earliest, latest or {_JSON}"),
    ),
    Option(
        "endingOffsets", "ending_offsets", Parsed(_boundary(LATEST, "latest"), f"latest or {_JSON}")
    ),
    Option("startingTimestamp", "starting_timestamp", _TIME),
    Option("endingTimestamp", "ending_timestamp", _TIME),
    Option("startingOffsetsByTimestamp", "starting_times", Parsed(_times(TIME_MIN), _TIMES)),
    Option("endingOffsetsByTimestamp", "ending_times", Parsed(_times(TIME_MAX), _TIMES)),
    Option("key", "key", some_text("a key or unique key of messages")),
    Option("tags", "tags", Parsed(_tags, "a list of tags, separated by ||")),
    Option("columns", "columns", Parsed(_columns, f"some of {', '.join(NAMES)}")),
    Option("decompress", "decompress", Flag()),
    Option("mode", "permissive", OneOf(_DamageMode)),
    Option("minPartitions", "min_partitions", _POSITIVE),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _POSITIVE),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", _POSITIVE),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", _POSITIVE),
    Option("maxTriggerDelay", "max_trigger_delay_ms", Parsed(_duration, "a time as 30s or 15m")),
    Option("failOnDataLoss", "fail_on_data_loss", Flag()),
)
INTERNAL_OPTIONS = (
    Option("paths", "paths", Parsed(_paths, "the JSON list that load([…]) makes of paths")),
    Option("queueIds", "queue_ids", Parsed(_ids, "a list of queue ids, separated by commas")),
    Option("startingPhysicalOffset", "starting_physical_offset", Whole(0, INT64_MAX, "bytes")),
    Option("endingPhysicalOffset", "ending_physical_offset", Whole(0, INT64_MAX, "bytes")),
    Option("bounds", "bounds", some_text("a value set by firetrail.pipeline.sql")),
)
"""Options that Spark and the jobs set; neither the guide nor an error lists them."""
_TABLE = OptionTable(OPTIONS, INTERNAL_OPTIONS)
_STREAM = "a stream; leave it out"
_BATCH = "a batch read; leave it out"
_LOG = "view=log, which has no queues: use startingTimestamp or maxBytesPerTrigger"
_EXCLUDED_BY = {
    "path": ("paths", "namesrv", "group", "credentialsFile", "retryTimeoutMs"),
    "paths": ("namesrv", "group", "startingPhysicalOffset", "endingPhysicalOffset", _STREAM),
    "subscribe": ("subscribePattern",),
    "assign": ("subscribe", "subscribePattern", "queueIds", _LOG),
    "startingOffsets": ("startingTimestamp", _LOG),
    "endingOffsets": ("endingTimestamp", _STREAM, _LOG),
    "endingTimestamp": (_STREAM,),
    "startingOffsetsByTimestamp": ("startingOffsets", "startingTimestamp", _LOG),
    "endingOffsetsByTimestamp": ("endingOffsets", "endingTimestamp", _STREAM, _LOG),
    "queueIds": (_STREAM, _LOG),
    "startingPhysicalOffset": (_STREAM,),
    "endingPhysicalOffset": (_STREAM,),
    "key": (_STREAM,),
    "maxOffsetsPerTrigger": ("maxBytesPerTrigger", _BATCH, _LOG),
    "maxBytesPerTrigger": (_BATCH,),
    "minOffsetsPerTrigger": (_BATCH, _LOG),
    "maxTriggerDelay": (_BATCH, _LOG),
    "commitGroup": (_BATCH,),
}
"""The other options and the kinds of reads that each option cannot be combined with."""
_DAMAGE_ONLY = ("path", "view", "minPartitions")


def parse_shape(given: Mapping[str, str]) -> tuple[View, tuple[str, ...]]:
    """Return the view and the columns, and ignore all other options."""
    named = _TABLE.named(given)
    view: View = _TABLE["view"].parse(named.get("view", View.QUEUE.value))
    if "columns" in named:
        return view, _TABLE["columns"].parse(named["columns"])
    return view, (*NAMES, STORE.name) if "paths" in named else NAMES


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of ``CREATE TABLE … USING rocketmq``; None for any other statement.

    Spark mixes them with its own (owner, provider, location, comment, …) and with the table's
    properties, but repeats each as ``option.NAME``. Only the path is not repeated; it has the form
    ``file:/…``.
    """
    if not {"owner", "provider"} <= given.keys():
        return None
    prefix = "option."
    options = {key[len(prefix) :]: given[key] for key in given if key.startswith(prefix)}
    if "path" in given:
        path = given["path"]
        plain = path.startswith("file:/") and not path.startswith("file://")
        options["path"] = path.removeprefix("file:") if plain else path
    return options


def parse_options(given: Mapping[str, str], *, stream: bool = False) -> ReadOptions:
    """Parse the options of a read; raise ConfigError, with the allowed values, for a wrong one."""
    named = _TABLE.named(given)
    if not {"path", "paths", "namesrv"} & named.keys():
        remedy = (
            "name the store: .load(PATH), or brokers: .option('namesrv', 'HOST:PORT'); "
            "for CREATE TABLE … USING rocketmq OPTIONS (path 'PATH') leave out the list of columns"
        )
        raise ConfigError("path", "", remedy)
    values = _TABLE.values(named)
    values["permissive"] = values.get("permissive") is _DamageMode.PERMISSIVE
    _check_together(named, values.get("view", View.QUEUE), stream)
    least, most = (values.get(f"{end}_offsets_per_trigger") for end in ("min", "max"))
    if least is not None and most is not None and least > most:
        reason = f"must be at most maxOffsetsPerTrigger, which is {most}"
        raise ConfigError("minOffsetsPerTrigger", least, reason)
    if "assign" in named:
        values["subscribe"] = tuple(values["assign"])
    if values.get("columns") is not None:
        fields(values["columns"])
    if "paths" in named:
        _check_paths(named, values)
    options = ReadOptions(**values)
    _check_assigned(options)
    return options


def _check_assigned(options: ReadOptions) -> None:
    """Raise ConfigError for offsets of queues that are not assigned."""
    for name, topic, queue in options.named_queues():
        asked = None if options.assign is None else options.assign.get(topic, ())
        if asked is not None and not any(queue.may_be(other) for other in asked):
            reason = "assign leaves out this queue; leave it out here, too, or assign it"
            raise ConfigError(name, f"{topic}/{queue}", reason)


def _check_paths(named: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Raise ConfigError if several stores are read with offsets, which belong to one store."""
    for name, boundary in (
        ("startingOffsets", values.get("starting_offsets")),
        ("endingOffsets", values.get("ending_offsets")),
    ):
        if boundary is not None and boundary.offsets:
            remedy = (
                "cannot be used with several paths, because offsets belong to one store: "
                "use timestamps, or one read per store"
            )
            raise ConfigError(name, named[name], remedy)


def _check_together(named: Mapping[str, str], view: View, stream: bool) -> None:
    """Raise ConfigError if options exclude each other, or do not apply to this kind of read."""
    given = named.keys()
    kinds = {_STREAM if stream else _BATCH} | ({_LOG} if view is View.LOG else set())
    for name, others in _EXCLUDED_BY.items():
        for other in others if name in given else ():
            if other in given:
                reason = f"cannot be used together with {other}; give only one of the two"
                raise ConfigError(name, named[name], reason)
            if other in kinds:
                raise ConfigError(name, named[name], f"does not apply to {other}")
    if "namesrv" in given and view is not View.QUEUE:
        raise ConfigError(
            "view", view.value, "brokers have only view=queue; give the path of a store instead"
        )
    if view is View.DAMAGE:
        if stream:
            raise ConfigError("view", "damage", "does not apply to a stream; use queue or log")
        for name in sorted(given - set(_DAMAGE_ONLY)):
            allowed = ", ".join(_DAMAGE_ONLY)
            raise ConfigError(
                name, named[name], f"does not apply to view=damage, which has only {allowed}"
            )
    if "commitGroup" in given and "namesrv" not in given:
        reason = "needs the option namesrv: only brokers keep the offsets of groups"
        raise ConfigError("commitGroup", named["commitGroup"], reason)
    if "maxTriggerDelay" in given and "minOffsetsPerTrigger" not in given:
        reason = "needs the option minOffsetsPerTrigger, whose wait it limits"
        raise ConfigError("maxTriggerDelay", named["maxTriggerDelay"], reason)
    if "key" in given and not {"subscribe", "assign"} & given:
        reason = "needs the option subscribe or assign: the index finds keys by topic"
        raise ConfigError("key", named["key"], reason)
