"""Both sides of an HA connection over a simulated wire, which is cut after any byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replication.logs import FILE_SIZE, MemoryLog, written_log

from firetrail.errors import DivergedError, ProtocolError, ReplicationError
from firetrail.format.names import OFFSET_MAX
from firetrail.replication.ha.ha_frames import (
    FAREWELL,
    NO_IDENTITY,
    REPORT,
    encode_confirmation,
    encode_header,
    encode_introduction,
    encode_report,
    identity_number,
)
from firetrail.replication.ha.master_session import MasterSession, Transfer
from firetrail.replication.ha.replica_session import Introduction, ReplicaSession

HEARTBEAT_S = 5.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of a master, two and a half files long."""
    return written_log(tmp_path_factory.mktemp("master"), 2.5)


def master_session(log: MemoryLog, batch_size: int = 300) -> MasterSession:
    return MasterSession(log, batch_size, HEARTBEAT_S, 0.0)


def replica_session(log: MemoryLog, begin: int | None = None) -> ReplicaSession:
    begin = log.max_offset if begin is None else begin
    return ReplicaSession(log, lambda: log.max_offset, begin, 0.0, HEARTBEAT_S)


def converse(
    master: MemoryLog, replica: MemoryLog, cut_after: int = 1 << 40, batch_size: int = 300
) -> MasterSession:
    """Let two sides talk until they have nothing to say or the wire is cut, and return one.

    At most ``cut_after`` bytes of the master arrive.
    """
    sending = master_session(master, batch_size)
    receiving = replica_session(replica)
    while True:
        report = receiving.report(0.0)
        if report is not None:
            sending.receive(report, 0.0)
        transfer = sending.next_transfer(0.0)
        if report is None and transfer is None:
            return sending
        if transfer is not None:
            at = transfer.offset - master.min_offset
            frame = encode_header(*transfer) + master.content[at : at + transfer.size]
            receiving.receive(memoryview(frame)[:cut_after], 0.0)
            cut_after -= len(frame)
            if cut_after <= 0:
                return sending


@given(batch_size=st.integers(1, 5000))
def test_an_empty_replica_gets_the_whole_log(log: bytes, batch_size: int) -> None:
    replica = MemoryLog()
    session = converse(MemoryLog(bytearray(log)), replica, batch_size=batch_size)
    assert replica.content == log
    assert session.acked == len(log)


@given(cuts=st.lists(st.integers(1, 2500), min_size=1, max_size=5))
def test_a_replica_continues_after_a_cut_at_any_byte(log: bytes, cuts: list[int]) -> None:
    master, replica = MemoryLog(bytearray(log)), MemoryLog()
    for cut in cuts:
        session = converse(master, replica, cut)
        assert log.startswith(bytes(replica.content))
        assert session.acked <= replica.max_offset
    converse(master, replica)
    assert replica.content == log


def test_every_cut_of_the_first_frames(log: bytes) -> None:
    for cut in range(1, 700):
        replica = MemoryLog()
        converse(MemoryLog(bytearray(log)), replica, cut)
        assert log.startswith(bytes(replica.content))
        converse(MemoryLog(bytearray(log)), replica)
        assert replica.content == log


class TestMaster:
    def test_a_transfer_ends_at_the_end_of_a_file(self, log: bytes) -> None:
        session = master_session(MemoryLog(bytearray(log)), 4000)
        session.receive(encode_report(0), 0.0)
        assert session.next_transfer(0.0) == Transfer(0, FILE_SIZE)
        assert session.next_transfer(0.0) == Transfer(FILE_SIZE, FILE_SIZE)

    def test_nothing_is_sent_before_the_first_report(self, log: bytes) -> None:
        session = master_session(MemoryLog(bytearray(log)))
        assert session.next_transfer(100.0) is None

    def test_an_idle_master_sends_heartbeats(self, log: bytes) -> None:
        session = master_session(MemoryLog(bytearray(log)))
        session.receive(encode_report(len(log)), 0.0)
        assert session.next_transfer(0.0) == Transfer(len(log), 0)  # the answer to the first report
        assert session.next_transfer(4.9) is None
        assert session.next_transfer(5.0) == Transfer(len(log), 0)
        assert session.next_transfer(9.9) is None

    def test_flow_control_limits_a_transfer(self, log: bytes) -> None:
        session = master_session(MemoryLog(bytearray(log)))
        session.receive(encode_report(1), 0.0)
        assert session.next_transfer(0.0, allowance=7) == Transfer(1, 7)
        assert session.next_transfer(0.0, allowance=0) is None

    def test_a_replica_without_a_log_begins_with_the_oldest_file(self, log: bytes) -> None:
        later = MemoryLog(bytearray(log[FILE_SIZE:]), min_offset=FILE_SIZE)
        session = master_session(later)
        session.receive(encode_report(0), 0.0)
        assert session.next_transfer(0.0) == Transfer(FILE_SIZE, 300)

    def test_a_replica_that_needs_deleted_bytes_is_refused(self, log: bytes) -> None:
        later = MemoryLog(bytearray(log[FILE_SIZE:]), min_offset=FILE_SIZE)
        with pytest.raises(ReplicationError, match="has deleted everything before 2048"):
            master_session(later).receive(encode_report(1), 0.0)

    def test_a_replica_ahead_of_its_master_is_refused(self, log: bytes) -> None:
        session = master_session(MemoryLog(bytearray(log)))
        with pytest.raises(DivergedError, match="firetrail replica rewind"):
            session.receive(encode_report(len(log) + 1), 0.0)

    def test_an_empty_replica_waits_for_the_first_record_of_an_empty_master(
        self, log: bytes
    ) -> None:
        master, replica = MemoryLog(), MemoryLog()
        sending, receiving = master_session(master), replica_session(replica)
        report = receiving.report(0.0)
        assert report is not None
        sending.receive(report, 0.0)
        assert sending.next_transfer(HEARTBEAT_S) == Transfer(1, 0)
        receiving.receive(memoryview(encode_header(1, 0)), HEARTBEAT_S)
        master.content += log[:FILE_SIZE]
        transfer = sending.next_transfer(HEARTBEAT_S)
        assert transfer == Transfer(1, 300)
        receiving.receive(memoryview(encode_header(*transfer) + log[1:301]), HEARTBEAT_S)
        assert replica.content == log[: len(replica.content)] != b""

    @pytest.mark.parametrize("offset", [-1, 302, 0x7F7F7F7F7F7F7F7F])
    def test_an_acknowledgement_of_what_was_not_sent_is_refused(
        self, log: bytes, offset: int
    ) -> None:
        session = master_session(MemoryLog(bytearray(log)))
        session.receive(encode_report(1), 0.0)
        session.next_transfer(0.0)
        with pytest.raises(ProtocolError, match=r"sent the log only up to 301"):
            session.receive(encode_report(offset), 0.0)
        assert session.acked == 0


class TestReplica:
    def test_the_first_report_stays_alone_until_the_master_answers(self, log: bytes) -> None:
        """A Java master reads only the last of several reports that arrive together."""
        session = replica_session(MemoryLog(bytearray(log)))
        assert session.report(0.0) == encode_report(len(log))
        assert session.report(100.0) is None
        session.receive(memoryview(encode_header(len(log), 0)), 100.0)
        assert session.report(100.0) == encode_report(len(log))

    def test_a_replica_without_a_log_asks_for_offset_1(self) -> None:
        """A Java master that is asked for offset 0 sends only its last file."""
        assert replica_session(MemoryLog()).report(0.0) == encode_report(1)

    def test_a_replica_reports_what_is_durable(self, log: bytes) -> None:
        replica = MemoryLog()
        durable = 0
        session = ReplicaSession(replica, lambda: durable, 0, 0.0, HEARTBEAT_S)
        session.report(0.0)
        session.receive(memoryview(encode_header(1, 900) + log[1:901]), 0.0)
        assert replica.max_offset > 500
        assert session.report(1.0) is None
        durable = replica.max_offset
        assert session.report(1.0) == encode_report(durable)

    def test_nothing_is_reported_on_connecting_before_it_is_durable(self, log: bytes) -> None:
        """The master takes the first report of a connection for a confirmation as well."""
        replica = MemoryLog(bytearray(log))
        durable = len(log) - 1
        session = ReplicaSession(replica, lambda: durable, len(log), 0.0, HEARTBEAT_S)
        assert session.report(0.0) is None
        durable = len(log)
        assert session.report(0.0) == encode_report(len(log))

    def test_an_idle_replica_sends_heartbeats(self, log: bytes) -> None:
        session = replica_session(MemoryLog(bytearray(log)))
        session.report(0.0)
        session.receive(memoryview(encode_header(len(log), 0)), 1.0)
        assert session.report(4.9) is None
        assert session.report(5.0) == encode_report(len(log))
        assert session.report(9.9) is None

    def test_a_heartbeat_at_another_offset_is_noticed(self, log: bytes) -> None:
        session = replica_session(MemoryLog(bytearray(log)))
        session.report(0.0)
        with pytest.raises(ReplicationError, match="would continue at offset 5"):
            session.receive(memoryview(encode_header(5, 0)), 0.0)


def introduced(
    log: MemoryLog, confirmed: list[int], member: int = 0, identity: int = 0
) -> ReplicaSession:
    """The session of a replica whose master is Firetrail."""
    begin = log.max_offset
    introduction = Introduction(confirmed.append, member, identity)
    return ReplicaSession(log, lambda: log.max_offset, begin, 0.0, HEARTBEAT_S, introduction)


def test_a_member_of_a_group_introduces_itself_with_its_first_report(log: bytes) -> None:
    master, replica = MemoryLog(bytearray(log)), MemoryLog(bytearray(log[:FILE_SIZE]))
    sending = master_session(master)
    receiving = introduced(replica, [], member=7, identity=identity_number("a store"))
    report = receiving.report(0.0)
    assert report is not None and report.endswith(encode_report(FILE_SIZE))
    sending.receive(report[:3], 0.0)
    assert (sending.member, sending.acked) == (0, -1)
    sending.receive(report[3:], 0.0)
    assert (sending.member, sending.acked, sending.position) == (7, FILE_SIZE, FILE_SIZE)
    assert sending.identity == identity_number("a store") > 0


def test_stores_have_different_numbers_that_a_java_master_would_ignore(log: bytes) -> None:
    numbers = {identity_number(f"{number:016x}") for number in range(100)}
    assert len(numbers) == 100
    assert identity_number("") == NO_IDENTITY not in numbers
    for number in (NO_IDENTITY, *numbers):
        content = encode_introduction(0, number)
        assert all(offset < 0 for (offset,) in REPORT.iter_unpack(content))


def test_a_replica_introduces_itself_at_most_once(log: bytes) -> None:
    sending = master_session(MemoryLog(bytearray(log)))
    with pytest.raises(ProtocolError, match="the replica reports offset -"):
        sending.receive(encode_introduction(7) + encode_introduction(8), 0.0)


def test_a_replica_says_farewell_once_after_the_master_has_answered(log: bytes) -> None:
    sending = master_session(MemoryLog(bytearray(log)))
    receiving = introduced(MemoryLog(bytearray(log)), [], 7)
    sending.receive(receiving.report(0.0) or b"", 0.0)
    assert receiving.farewell() == b""
    receiving.receive(memoryview(encode_header(len(log), 0)), 0.0)
    farewell = receiving.farewell()
    assert all(offset < 0 for (offset,) in REPORT.iter_unpack(farewell))
    sending.receive(farewell[:3], 0.0)
    assert not sending.is_leaving
    for content in (farewell[3:], farewell):  # a repeated one changes nothing
        assert not sending.receive(content, 0.0)
        assert sending.is_leaving
    assert receiving.farewell() == b""


def test_only_a_replica_that_has_introduced_itself_says_farewell(log: bytes) -> None:
    receiving = replica_session(MemoryLog(bytearray(log)))
    receiving.report(0.0)
    receiving.receive(memoryview(encode_header(len(log), 0)), 0.0)
    assert receiving.farewell() == b""
    sending = master_session(MemoryLog(bytearray(log)))
    with pytest.raises(ProtocolError, match="the replica acknowledges offset -"):
        sending.receive(encode_report(len(log)) + FAREWELL, 0.0)


def test_a_replica_is_told_what_it_may_show(log: bytes) -> None:
    master, replica = MemoryLog(bytearray(log)), MemoryLog(bytearray(log))
    master.shown_offset = 100
    sending, confirmed = master_session(master), list[int]()
    receiving = introduced(replica, confirmed)
    report = receiving.report(0.0)
    assert report is not None
    assert sending.next_confirmation() is None  # the replica has not introduced itself yet
    sending.receive(report, 0.0)
    for shown in (100, OFFSET_MAX, 0):  # 0 after a change of settings
        master.shown_offset = shown
        offset = sending.next_confirmation()
        assert offset == shown
        frame = encode_confirmation(offset)
        assert not receiving.receive(memoryview(frame)[:5], 0.0)
        receiving.receive(memoryview(frame)[5:], 0.0)
        assert sending.next_confirmation() is None  # it knows it
    assert confirmed == [100, OFFSET_MAX, 0]
    assert receiving.master_offset == -1  # a confirmation says nothing about the master's log


def test_a_java_replica_gets_no_confirmations(log: bytes) -> None:
    sending = master_session(MemoryLog(bytearray(log)))
    sending.receive(encode_report(FILE_SIZE), 0.0)
    assert (sending.is_introduced, sending.next_confirmation()) == (False, None)


@pytest.mark.parametrize(("introduces", "size"), [(False, 0), (True, 1)])
def test_a_negative_offset_is_refused_unless_it_confirms(
    log: bytes, introduces: bool, size: int
) -> None:
    replica = MemoryLog(bytearray(log))
    session = introduced(replica, []) if introduces else replica_session(replica)
    session.report(0.0)
    with pytest.raises(ProtocolError, match=f"a transfer of {size} bytes at offset -101"):
        session.receive(memoryview(encode_header(~100, size)), 0.0)


def test_an_empty_master_is_followed_from_its_first_record_on(log: bytes) -> None:
    """Its first message is confirmed like any other one."""
    master, replica = MemoryLog(), MemoryLog()
    sending, receiving = master_session(master), introduced(replica, [])
    sending.receive(receiving.report(0.0) or b"", 0.0)
    assert sending.next_transfer(0.0) == Transfer(1, 0)
    receiving.receive(memoryview(encode_header(1, 0)), 0.0)
    assert (sending.acked, receiving.master_offset) == (0, 0)  # nobody has a byte of a log
    master.content += log[:FILE_SIZE]
    while (transfer := sending.next_transfer(0.0)) is not None:
        content = master.content[transfer.offset : transfer.offset + transfer.size]
        receiving.receive(memoryview(encode_header(*transfer) + content), 0.0)
    sending.receive(receiving.report(0.0) or b"", 0.0)
    assert (sending.acked, replica.content) == (FILE_SIZE, master.content)
