"""Reports of messages that are of another type than their topic."""

import logging

import pytest
from tests.broker.brokers import Talk

from firetrail.broker.services.type_conflicts import REPORT_INTERVAL_S, TypeConflicts
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.kernels.properties import parse_properties
from firetrail.remoting.messages.bodies import TopicConfig
from firetrail.remoting.messages.headers import SendHeader

PEER = "10.0.0.1:99"
NAME = "firetrail.broker.services.type_conflicts"


def header(properties: str | None = None, *, batch: bool = False) -> SendHeader:
    fields = {"topic": "T", "defaultTopic": "", "defaultTopicQueueNums": 1, "queueId": 0}
    fields |= {"producerGroup": "PG", "sysFlag": 0, "bornTimestamp": 0, "flag": 0}
    if properties is not None:
        fields["properties"] = properties
    fields["batch"] = "true" if batch else "false"
    return SendHeader.decode({name: str(value) for name, value in fields.items()})


def topic(kind: str | None = "FIFO", name: str = "T") -> TopicConfig:
    return TopicConfig(name, 4, 4, attributes={"message.type": kind} if kind else None)


class Conflicts:
    """Reports with a clock of the test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, NAME)
        self._caplog = caplog
        self.now = 0.0
        self._conflicts = TypeConflicts(lambda: self.now)

    def check(self, kind: TopicConfig, sent: SendHeader, content: bytes = b"") -> list[str]:
        """Return the new log lines."""
        self._caplog.clear()
        properties = parse_properties(sent.properties or "")
        self._conflicts.check(kind, sent, properties, content, PEER)
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def conflicts(caplog: pytest.LogCaptureFixture) -> Conflicts:
    return Conflicts(caplog)


def test_a_report_names_topic_types_client_and_remedy(conflicts: Conflicts) -> None:
    (line,) = conflicts.check(topic(), header("DELAY\x011\x02"))
    assert line == (
        "topic T has the type FIFO, but 10.0.0.1:99 (producer group PG) sent a message of the type "
        "DELAY; it was accepted, but gRPC clients cannot send such a message; to allow all types: "
        "firetrail topic create T --type MIXED --queues 4"
    )


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (None, "DELAY\x011\x02"),
        ("MIXED", "DELAY\x011\x02"),
        ("NORMAL", None),
        ("FIFO", "__SHARDINGKEY\x01g\x02"),
        ("FIFO", "TRANSFER_FLAG\x01x\x02"),
    ],
)
def test_messages_that_fit_are_not_reported(
    conflicts: Conflicts, kind: str | None, properties: str | None
) -> None:
    assert conflicts.check(topic(kind), header(properties)) == []


def test_one_report_per_minute_and_topic_has_the_number_of_messages(conflicts: Conflicts) -> None:
    assert len(conflicts.check(topic(), header())) == 1
    assert conflicts.check(topic(), header()) == []
    assert len(conflicts.check(topic(name="U"), header())) == 1
    conflicts.now += REPORT_INTERVAL_S
    (line,) = conflicts.check(topic(), header())
    assert line.endswith("(1 more lines like this one were not logged)")


def test_each_message_of_a_batch_counts(conflicts: Conflicts) -> None:
    fits, other = BatchItem(0, b"x", b"__SHARDINGKEY\x01g\x02"), BatchItem(0, b"y", b"")
    assert conflicts.check(topic(), header(batch=True), encode_batch([fits, fits])) == []
    all_fit = header("__SHARDINGKEY\x01g\x02", batch=True)
    assert conflicts.check(topic(), all_fit, encode_batch([fits, other])) == []
    for name, items in (("T", [fits, other]), ("U", [other, fits])):
        (line,) = conflicts.check(topic(name=name), header(batch=True), encode_batch(items))
        assert "sent a message of the type NORMAL" in line
    assert conflicts.check(topic(name="V"), header(batch=True), b"damaged") == []


async def test_a_broker_accepts_and_reports_them(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    talk.broker.topics.put([TopicConfig("T1", 4, 4, attributes={"+message.type": "FIFO"})])
    answer = await talk.send("T1", b"x")
    assert answer.code == 0
    (line,) = [r.getMessage() for r in caplog.records if r.name == NAME]
    assert "topic T1 has the type FIFO" in line and "type NORMAL" in line
