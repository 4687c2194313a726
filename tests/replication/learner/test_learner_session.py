"""A learner of a master in controller mode, over a simulated wire that is cut after any byte."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replication.auto_switch_master import AutoSwitchMaster, handshake, transfer
from tests.replication.logs import FILE_SIZE, MemoryLog, written_log

from firetrail.errors import DivergedError, ProtocolError, ReplicationError
from firetrail.replication.learner.auto_switch_frames import encode_learner_handshake, encode_report
from firetrail.replication.learner.learner_session import LearnerSession
from firetrail.replication.log.epochs import Epoch, EpochFile
from firetrail.system import SYSTEM

HEARTBEAT_S = 5.0


@dataclass
class LearnerLog(MemoryLog):
    """The log of a learner, which notes what was confirmed."""

    confirmed: list[int] = field(default_factory=list)

    def confirm(self, offset: int) -> None:
        self.confirmed.append(offset)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of a master, two and a half files long."""
    return written_log(tmp_path_factory.mktemp("master"), 2.5)


@pytest.fixture(scope="module")
def records(log: bytes) -> list[int]:
    starts = [0]
    while starts[-1] < len(log):
        starts.append(starts[-1] + int.from_bytes(log[starts[-1] : starts[-1] + 4], "big"))
    return starts[:-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def learner(log: LearnerLog, folder: Path, begin: int | None = None) -> LearnerSession:
    begin = log.max_offset if begin is None else begin
    epochs = EpochFile(SYSTEM, folder)
    return LearnerSession(log, epochs, lambda: log.max_offset, begin, 0.0, HEARTBEAT_S)


def converse(
    master: AutoSwitchMaster, replica: LearnerLog, folder: Path, cut_after: int = 1 << 40
) -> LearnerSession:
    """Let two sides talk until they have nothing to say or the wire is cut, and return one."""
    session = learner(replica, folder)
    while (report := session.report(0.0)) is not None:
        for frame in master.receive(report):
            session.receive(memoryview(frame)[:cut_after], 0.0)
            cut_after -= len(frame)
            if cut_after <= 0:
                return session
    return session


def test_a_learner_greets_once_and_waits_for_the_answer(folder: Path) -> None:
    session = learner(LearnerLog(), folder)
    assert not session.is_ready
    assert session.report(0.0) == encode_learner_handshake()
    assert session.report(100.0) is None
    session.receive(memoryview(handshake(500, [Epoch(1, 0)])), 100.0)
    assert session.is_ready
    assert session.master_offset == 500
    assert session.report(100.0) == encode_report(0)


@given(batch_size=st.integers(1, 5000))
def test_an_empty_learner_gets_the_whole_log(
    log: bytes, records: list[int], tmp_path_factory: pytest.TempPathFactory, batch_size: int
) -> None:
    folder = tmp_path_factory.mktemp("replica")
    epochs = (Epoch(1, 0), Epoch(2, records[3]), Epoch(5, records[-4]))
    replica = LearnerLog()
    master = AutoSwitchMaster(log, epochs, batch_size=batch_size)
    converse(master, replica, folder)
    assert replica.content == log
    assert EpochFile(SYSTEM, folder).epochs == epochs
    assert master.reports[-1] == len(log)


def test_every_cut_of_the_first_frames(
    log: bytes, records: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    epochs = (Epoch(1, 0), Epoch(2, records[1]), Epoch(3, records[2]))
    for cut in range(1, 900, 3):
        folder = tmp_path_factory.mktemp("replica")
        replica = LearnerLog()
        converse(AutoSwitchMaster(log, epochs), replica, folder, cut)
        assert log.startswith(bytes(replica.content))
        listed = EpochFile(SYSTEM, folder).epochs
        assert listed == epochs[: len(listed)]
        covered = [each for each in epochs if each.start_offset < replica.max_offset]
        assert len(listed) >= len(covered), "an epoch must be noted before its first record"
        converse(AutoSwitchMaster(log, epochs), replica, folder)
        assert replica.content == log
        assert EpochFile(SYSTEM, folder).epochs == epochs


def test_a_learner_begins_with_the_oldest_file(log: bytes, folder: Path) -> None:
    master = AutoSwitchMaster(log, [Epoch(1, 0), Epoch(2, 100)], min_offset=FILE_SIZE)
    replica = LearnerLog(min_offset=FILE_SIZE)
    converse(master, replica, folder)
    assert replica.content == log[FILE_SIZE:]
    assert EpochFile(SYSTEM, folder).epochs == (Epoch(1, 0), Epoch(2, 100))


def test_the_masters_confirmed_offset_limits_dispatch(log: bytes, folder: Path) -> None:
    replica = LearnerLog()
    master = AutoSwitchMaster(log, [Epoch(1, 0)], confirmed=700)
    session = converse(master, replica, folder)
    assert set(replica.confirmed) == {700}
    master.confirmed = 900
    session.receive(memoryview(master.heartbeat()), 1.0)
    assert replica.confirmed[-1] == 900


def test_a_master_that_knows_nothing_yet(folder: Path) -> None:
    replica = LearnerLog()
    session = learner(replica, folder)
    session.report(0.0)
    session.receive(memoryview(handshake(0, [Epoch(1, 0)])), 0.0)
    session.report(0.0)
    session.receive(memoryview(transfer(-1, b"", Epoch(9, 7), -1)), 3.0)
    assert replica.confirmed == [0]
    assert session.read_at == 3.0
    assert EpochFile(SYSTEM, folder).epochs == (Epoch(1, 0),)


def test_reports_continue_while_the_master_is_idle(log: bytes, folder: Path) -> None:
    replica = LearnerLog(bytearray(log))
    session = converse(AutoSwitchMaster(log, [Epoch(1, 0)]), replica, folder)
    assert session.report(4.9) is None
    assert session.report(5.0) == encode_report(len(log))


def test_the_masters_list_replaces_one_that_differs(
    log: bytes, records: list[int], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Java master that was elected again has not told the connected learner its new epoch."""
    EpochFile(SYSTEM, folder).append(Epoch(1, 0))
    replica = LearnerLog(bytearray(log))
    epochs = (Epoch(1, 0), Epoch(2, records[5]))
    with caplog.at_level(logging.INFO):
        converse(AutoSwitchMaster(log, epochs), replica, folder)
    assert EpochFile(SYSTEM, folder).epochs == epochs
    assert f"the logs are equal up to {records[5]} only" in caplog.text


def test_an_epoch_that_begins_while_the_learner_is_connected_is_noted(
    log: bytes, folder: Path
) -> None:
    replica = LearnerLog(bytearray(log))
    session = converse(AutoSwitchMaster(log, [Epoch(1, 0)]), replica, folder)
    frame = transfer(len(log), b"\0", Epoch(2, len(log)), 0)
    session.receive(memoryview(frame), 0.0)
    assert EpochFile(SYSTEM, folder).epochs == (Epoch(1, 0), Epoch(2, len(log)))


def test_a_log_from_before_the_first_epoch_can_only_be_sent_as_a_whole(
    log: bytes, records: list[int], folder: Path
) -> None:
    session = learner(LearnerLog(bytearray(log[: records[3]])), folder)
    session.report(0.0)
    with pytest.raises(ReplicationError) as caught:
        session.receive(memoryview(handshake(9000, [Epoch(1, 4000), Epoch(2, 5000)])), 0.0)
    assert str(caught.value) == (
        f"the replica needs the master's log from offset {records[3]}, but epoch 1, the first one "
        "of the master, begins at 4000. A Java master in controller mode sends older messages only "
        "from offset 0 on: start the replica with an empty folder; if the master's log no longer "
        "begins at 0, wait until retention has deleted everything before 4000"
    )
    assert not session.is_ready


def test_bytes_at_another_offset_are_refused(log: bytes, folder: Path) -> None:
    replica = LearnerLog(bytearray(log))
    session = converse(AutoSwitchMaster(log, [Epoch(1, 0)]), replica, folder)
    with pytest.raises(DivergedError, match="the master sends its log from offset 5"):
        session.receive(memoryview(transfer(5, b"x", Epoch(1, 0), 0)), 0.0)


def test_a_log_that_was_not_asked_for_is_refused(log: bytes, folder: Path) -> None:
    session = learner(LearnerLog(), folder)
    session.report(0.0)
    content = handshake(9, []) + transfer(0, b"x", Epoch(1, 0), 0)
    with pytest.raises(ProtocolError, match="sent its log before it was asked for it"):
        session.receive(memoryview(content), 0.0)


def test_a_second_handshake_is_refused(folder: Path) -> None:
    session = learner(LearnerLog(), folder)
    session.report(0.0)
    with pytest.raises(ProtocolError, match="the master sent a second handshake"):
        session.receive(memoryview(handshake(9, []) * 2), 0.0)
