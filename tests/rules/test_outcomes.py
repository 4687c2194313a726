"""One table says how each put ends: the error, the code, and whether to try again."""

import pickle
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL

from firetrail import Message, Store
from firetrail.client.messages.send_requests import encoded, result_of
from firetrail.errors import (
    RETRIABLE_CODES,
    ProxyError,
    RequestError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
)
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.values.hosts import Host
from firetrail.proxy.calls.status_codes import Code, checked
from firetrail.remoting.connections.handlers import failure
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import UNCONFIRMED_CODES, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.gate import Closure
from firetrail.store.results import OUTCOMES, UNCONFIRMED, PutResult, PutStatus

ROWS = {
    PutStatus.PUT_OK: (None, "SUCCESS", False, True),
    PutStatus.FLUSH_DISK_TIMEOUT: ("FlushFailedError", "FLUSH_DISK_TIMEOUT", False, True),
    PutStatus.FLUSH_SLAVE_TIMEOUT: ("NotReplicatedError", "FLUSH_SLAVE_TIMEOUT", False, True),
    PutStatus.SLAVE_NOT_AVAILABLE: ("NotReplicatedError", "SLAVE_NOT_AVAILABLE", False, True),
    PutStatus.SERVICE_NOT_AVAILABLE: ("StoreReadOnlyError", "SERVICE_NOT_AVAILABLE", False, False),
    PutStatus.CREATE_MAPPED_FILE_FAILED: ("DiskFullError", "SERVICE_NOT_AVAILABLE", True, False),
    PutStatus.MESSAGE_ILLEGAL: ("IllegalMessageError", "MESSAGE_ILLEGAL", False, False),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ("PropertiesTooLongError", "MESSAGE_ILLEGAL", False, False),
    PutStatus.OS_PAGE_CACHE_BUSY: ("StoreBusyError", "SYSTEM_BUSY", True, False),
    PutStatus.UNKNOWN_ERROR: ("FlushFailedError", "SYSTEM_ERROR", False, False),
}
"""Error, code, whether to try the same call again, and whether the message is in the log."""


GRPC_CODES = {
    "FLUSH_DISK_TIMEOUT": Code.MASTER_PERSISTENCE_TIMEOUT,
    "FLUSH_SLAVE_TIMEOUT": Code.SLAVE_PERSISTENCE_TIMEOUT,
    "SLAVE_NOT_AVAILABLE": Code.HA_NOT_AVAILABLE,
    "MESSAGE_ILLEGAL": Code.BAD_REQUEST,
    "SYSTEM_BUSY": Code.TOO_MANY_REQUESTS,
}


def test_every_status_has_its_row() -> None:
    found = {
        status: (
            outcome.error and outcome.error.__name__,
            ResponseCode(outcome.code).name,
            bool(outcome.error and outcome.error.retriable),
            outcome.is_stored,
        )
        for status, outcome in OUTCOMES.items()
    }
    assert found == ROWS
    assert set(OUTCOMES) == set(PutStatus)
    assert {OUTCOMES[row].code for row in UNCONFIRMED} == UNCONFIRMED_CODES
    assert {row for row in UNCONFIRMED} == {s for s, row in ROWS.items() if row[3] and row[0]}


@pytest.mark.parametrize("status", [status for status in PutStatus if status.value != "PUT_OK"])
def test_the_error_of_a_status_is_that_of_its_row(status: PutStatus) -> None:
    with pytest.raises(StoreError) as raised:
        PutResult(status, store_host=Host("127.0.0.1", 1), detail="d", field="f").require_ok()
    assert type(raised.value).__name__ == ROWS[status][0]
    assert raised.value.retriable == ROWS[status][2]


@pytest.mark.parametrize("status", [status for status, row in ROWS.items() if not row[3]])
def test_a_request_that_stores_nothing_gets_the_code_of_the_row(status: PutStatus) -> None:
    """Acknowledgements and ends of transactions are puts, too."""
    with pytest.raises(StoreError) as raised:
        PutResult(status, detail="d", field="f").require_ok()
    answer = failure(RemotingCommand(RequestCode.ACK_MESSAGE), raised.value)
    assert ResponseCode(answer.code).name == ROWS[status][1]
    assert answer.remark == f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("status", [status for status in PutStatus if status.value != "PUT_OK"])
def test_every_client_is_told_the_same_outcome(status: PutStatus) -> None:
    """By the gRPC codes, those of a repeated end of a transaction included."""
    _, code, _, is_stored = ROWS[status]
    answer = RemotingCommand(ResponseCode[code], {"msgId": "1", "queueId": "0", "queueOffset": "0"})
    sent = encoded("T", encode_batch([BatchItem(0, b"x", b"")]))
    with pytest.raises(ProxyError) as raised:
        checked(answer)
    assert raised.value.code == GRPC_CODES.get(code, Code.INTERNAL_SERVER_ERROR)
    if is_stored:
        assert result_of(sent, MessageQueue("T", "b", 0), answer).status == status.value
    else:
        with pytest.raises(RequestError):
            result_of(sent, MessageQueue("T", "b", 0), answer)


def test_a_retriable_outcome_has_a_retriable_code() -> None:
    for outcome in OUTCOMES.values():
        if outcome.error is not None and outcome.error.retriable:
            assert outcome.code in RETRIABLE_CODES


def test_errors_that_say_try_again_are_retriable() -> None:
    with pytest.raises(StoreBusyError, match="OS_PAGE_CACHE_BUSY: later") as raised:
        PutResult(PutStatus.OS_PAGE_CACHE_BUSY, detail="later").require_ok()
    assert raised.value.retriable


@pytest.mark.parametrize(
    ("closures", "retriable"),
    [
        ([Closure.DISK_FULL], True),
        ([Closure.FENCED], True),
        ([Closure.HANDOVER], True),
        ([Closure.DISK_FULL, Closure.FAILED], False),
        ([Closure.FAILED], False),
        ([Closure.SLAVE], False),
        ([Closure.CLOSED], False),
    ],
)
def test_a_refusal_is_retriable_if_it_ends_by_itself(
    closures: list[Closure], retriable: bool, tmp_path: Path
) -> None:
    with Store.open(tmp_path, SMALL) as store:
        for closure in closures:
            store._engine.gate.shut(closure)
        with pytest.raises(StoreReadOnlyError) as raised:
            store.put(Message("T", b"x"))
        assert raised.value.retriable is retriable
        assert pickle.loads(pickle.dumps(raised.value)).retriable is retriable
        store._engine.gate.lift(Closure.CLOSED)
        if closures[0] is Closure.DISK_FULL:
            store._engine.gate.lift(Closure.DISK_FULL)
            assert store._engine.gate.is_temporary == (len(closures) == 1)
