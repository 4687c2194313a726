"""Brokers with the same name and id: their remarks, and how often they are logged."""

import logging

import pytest

from firetrail.namesrv import NameServerConfig, duplicate_brokers
from firetrail.namesrv.duplicate_brokers import GRACE_S, PAUSE_S, DuplicateBrokers
from firetrail.namesrv.routes import Registration
from firetrail.namesrv.server import NameServer
from firetrail.remoting.messages.bodies import TopicConfigTable

ONE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911"


def registration(address: str) -> Registration:
    return Registration("C", "broker-a", address)


def test_rivals_are_logged_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    both = DuplicateBrokers(lambda: now)
    expected = (
        f"broker broker-a with id 0 is at {ONE} and at {OTHER}: clients find only the one that "
        "registered last; only one can be the master: start the other one with brokerRole=SLAVE "
        "and a brokerId of its own, or with another brokerName if it is not a copy of the first"
    )
    assert both.remark(registration(ONE), None) is None
    assert not caplog.records
    for _ in range(3):
        assert both.remark(registration(ONE), OTHER) == expected
        assert both.remark(registration(OTHER), ONE) is not None  # it gets a remark, too
    assert [record.getMessage() for record in caplog.records] == [expected]
    now += PAUSE_S - 1
    both.remark(registration(OTHER), ONE)
    assert len(caplog.records) == 1
    both.remark(registration(OTHER), "10.0.0.3:10911")  # a third one
    assert len(caplog.records) == 2
    now += 1
    both.remark(registration(OTHER), ONE)
    assert len(caplog.records) == 3


def test_slaves_with_one_id_are_reported_unless_it_is_over_soon() -> None:
    """In a hand-over two slaves have one id for a moment."""
    now = 100.0
    both = DuplicateBrokers(lambda: now)
    one, other = (Registration("C", "broker-a", address, 1) for address in (ONE, OTHER))
    for _ in range(2):  # there and back again
        assert both.remark(one, OTHER) is None
        now += GRACE_S - 1
        assert both.remark(other, ONE) is None
        assert both.remark(registration(OTHER), None) is None  # it is the master now
    assert both.remark(one, OTHER) is None
    now += GRACE_S
    remark = both.remark(other, ONE)
    assert remark == (
        f"broker broker-a with id 1 is at {OTHER} and at {ONE}: clients find only the one that "
        "registered last; give each its own brokerId"
    )


def test_the_number_of_remembered_pairs_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duplicate_brokers, "PAIRS_MAX", 2)
    both = DuplicateBrokers(lambda: 0.0)
    for number in range(5):
        both.remark(registration(ONE), f"10.0.0.2:{number}")
        assert len(both._pairs) <= 2
    assert len(caplog.records) == 5


def test_rivals_of_a_local_broker_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    server = NameServer(NameServerConfig())
    for address in (ONE, OTHER, ONE):
        server.register_local(
            cluster="C", name="broker-a", address=address, topics=TopicConfigTable()
        )
    (record,) = caplog.records
    assert f"is at {OTHER} and at {ONE}: clients find only" in record.getMessage()
