"""``config/consumerFilter.json``: the SQL92 filters of consumer groups, and their bits."""

from dataclasses import dataclass, field

from firetrail.remoting.messages.typed_body import Body


@dataclass(frozen=True, slots=True)
class BloomFilterData(Body):
    """The bits of a group in a bitmap of ``bit_num`` bits."""

    bit_num: int = 0
    bit_pos: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConsumerFilterData(Body):
    """The filter of a group; it is dead if ``dead_time`` is not before ``born_time``."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: BloomFilterData | None = None


@dataclass(frozen=True, slots=True)
class TopicFilters(Body):
    """The filters for one topic, by group."""

    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerFilterTable(Body):
    """All filters, by topic."""

    filter_data_by_topic: dict[str, TopicFilters] = field(default_factory=dict)
