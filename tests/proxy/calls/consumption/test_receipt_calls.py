"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import PATIENCE_S
from tests.proxy.fakes import FakeCall
from tests.proxy.services import Service, ack_request, code, codes, message

from firetrail.broker.pop.pop_checkpoints import PopCheckpoint
from firetrail.errors import ProxyError, StoreError
from firetrail.format.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC, UNIQ_KEY
from firetrail.proxy.calls.consumption import receipt_calls
from firetrail.proxy.calls.consumption.pop_requests import valid_receipt
from firetrail.proxy.calls.consumption.receipt_calls import EntryAck
from firetrail.proxy.calls.status_codes import OK
from firetrail.proxy.schema.messages import AckMessageEntry, AckMessageResponse, Code
from firetrail.proxy.upstream.grpc_clients import ProxyClient
from firetrail.proxy.upstream.interface import resolved
from firetrail.remoting.messages.pop.receipts import Receipt
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

INVALID = "INVALID_RECEIPT_HANDLE"
BUSY = RemotingCommand(ResponseCode.SYSTEM_BUSY)
GARBAGE = [
    "",
    "garbage",
    "1 2 3",
    "a b c d 0 broker-a 1 2 3",
    "0 99999999999999 1 0 9 broker-a 0 0 0",
    "0 9999999999999999999 1 0 0 broker-a 0 0 0",
    "0 99999999999999 1 0 0 broker-a 9999999999 0 0",
    "0 99999999999999 1 0 0 broker-a -1 0 0",
    "0 99999999999999 1_0 0 0 broker-a 0 0 0",
    "0 ٣٣٣٣٣٣٣٣٣٣٣٣٣٣ 1 0 0 broker-a 0 0 0",
    "0 99999999999999 1 0 0 broker-a 999 0 0",
    "0 99999999999999 1 0 0 broker-a 0 999 0",
    "0 99999999999999 1 999 0 broker-a 0 999 0",
]
NAMES: list[tuple[dict[str, str], str]] = [
    ({"topic": "a.b"}, "ILLEGAL_TOPIC"),
    ({"topic": "TBW102"}, "ILLEGAL_TOPIC"),
    ({"group": ""}, "ILLEGAL_CONSUMER_GROUP"),
    ({"group": "CID_RMQ_SYS_X"}, "ILLEGAL_CONSUMER_GROUP"),
    ({"topic": "unknown"}, "TOPIC_NOT_FOUND"),
]
"""Topics and groups of calls with a valid handle, and the answers."""
TIMES = [
    (-1, "ILLEGAL_INVISIBLE_TIME"),
    (43_200_001, "ILLEGAL_INVISIBLE_TIME"),
    (43_200_000, "OK"),
    (0, "OK"),
]
"""Invisible times in ms, and the answers."""


async def one(service: Service, **changes: Any) -> str:
    """Send a message; return its handle."""
    await service.send(message(message_id="m1"))
    (found,) = await service.receive(**changes)
    handle = found.system_properties.receipt_handle
    assert handle
    return handle


def expired(handle: str) -> str:
    """The handle of a message that has become visible again."""
    receipt = Receipt.decode(handle)
    return receipt._replace(pop_time=receipt.pop_time - receipt.invisible_ms).encode()


async def test_every_answer_to_a_handle(service: Service) -> None:
    handle = await one(service)
    for wrong in [*GARBAGE, expired(handle)]:
        assert codes(await service.ack(wrong)) == [INVALID], wrong
        assert code(await service.change(wrong, 1000)) == INVALID, wrong
        assert code(await service.forward(wrong)) == INVALID, wrong
    # The receipt of a remoting client does not say where in the log the message is.
    assert code(await service.forward(handle.rpartition(" ")[0])) == INVALID
    assert codes(await service.ack(handle)) == ["OK"]
    assert codes(await service.ack(handle)) == ["OK"]  # as in RocketMQ
    assert code(await service.change(handle, 1000)) == INVALID  # it would be redelivered


async def test_the_codes_of_names(service: Service) -> None:
    handle = await one(service)
    for names, expected in NAMES:
        assert code(await service.change(handle, 1000, **names)) == expected, names
        assert code(await service.forward(handle, **names)) == expected, names
        assert code(await service.ack(handle, **names)) == expected, names
    assert code(await service.change("garbage", -1)) == "ILLEGAL_INVISIBLE_TIME"


@pytest.mark.parametrize("waits", [False, True])
async def test_the_codes_of_an_acknowledgement(service: Service, waits: bool) -> None:
    handle = await one(service)
    service.brokers.waits = waits
    mixed = await service.ack(handle, "garbage")
    assert code(mixed) == "MULTIPLE_RESULTS"
    assert codes(mixed) == ["OK", INVALID]
    assert mixed.status.message == "MULTIPLE_RESULTS"
    assert [entry.receipt_handle for entry in mixed.entries] == [handle, "garbage"]
    assert {entry.message_id for entry in mixed.entries} == {"m"}
    assert code(await service.ack()) == "INTERNAL_SERVER_ERROR"
    assert code(await service.ack(handle, topic="a.b")) == "ILLEGAL_TOPIC"
    assert code(await service.ack(handle, group="a.b")) == "ILLEGAL_CONSUMER_GROUP"
    assert codes(await service.ack(handle, topic="unknown")) == ["TOPIC_NOT_FOUND"]
    other = handle.replace("broker-a", "broker-b")
    assert codes(await service.ack(other)) == ["BAD_REQUEST"]
    refused = await service.ack("garbage")
    assert (code(refused), refused.status.message) == (INVALID, INVALID)
    assert refused.entries[0].status.message == "'garbage' is not the receipt of a message"
    service.brokers.replaced[RequestCode.BATCH_ACK_MESSAGE] = RemotingCommand(
        ResponseCode.SYSTEM_BUSY
    )
    assert codes(await service.ack(handle)) == ["TOO_MANY_REQUESTS"]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_refused_acknowledgement_is_logged(
    service: Service, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await one(service)
    service.brokers.waits = waits
    with caplog.at_level(logging.INFO, "firetrail.remoting.servers.refusals"):
        assert codes(await service.ack(handle, topic="unknown")) == ["TOPIC_NOT_FOUND"]
    (line,) = [each.getMessage() for each in caplog.records if "refusals" in each.name]
    assert "BATCH_ACK_MESSAGE" in line and "is answered with code 17" in line


async def test_the_number_of_acknowledgements_is_limited(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_calls, "ACKS_MAX", 2)
    assert code(await service.ack("x", "x")) == INVALID
    assert code(await service.ack("x", "x", "x")) == "PAYLOAD_TOO_LARGE"


async def test_an_acknowledgement_is_answered_without_a_coroutine(service: Service) -> None:
    request = ack_request(await one(service))
    response = service.receipts.ack(FakeCall(), service.client, request)
    assert not hasattr(response, "__await__")
    assert codes(decoded(response)) == ["OK"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_the_usual_response_has_the_bytes_of_its_object(texts: list[str]) -> None:
    client = ProxyClient("c1")
    entries = [AckMessageEntry(message_id=text, receipt_handle=f"h{text}") for text in texts]
    acks = [EntryAck(client, "G", "T", entry) for entry in entries]
    expected = receipt_calls._ack_response(acks, [OK for _ in acks])
    assert receipt_calls._all_acked(acks) == expected.SerializeToString(deterministic=True)


def decoded(response: Any) -> AckMessageResponse:
    """The object of a response that may be encoded already."""
    return AckMessageResponse.FromString(response.SerializeToString())


async def test_requests_that_arrive_together_share_a_record(service: Service) -> None:
    await service.create_topic("U", queues=1)
    await service.send(*(message(topic="U") for _ in range(3)))
    found = await service.receive(topic="U")
    first, second, third = (each.system_properties.receipt_handle for each in found)
    requests = [
        ack_request(first, topic="U"),
        ack_request("garbage", topic="U"),
        ack_request(second, third, "garbage", topic="U"),
        ack_request(first, topic="a.b"),
    ]
    end = service.broker.store.log_range[1]
    found_all = service.receipts.ack_all([(service.client, request) for request in requests])
    answers = [decoded(answer) for answer in found_all]
    assert [code(answer) for answer in answers] == [
        "OK",
        INVALID,
        "MULTIPLE_RESULTS",
        "ILLEGAL_TOPIC",
    ]
    assert codes(answers[2]) == ["OK", "OK", INVALID]
    assert not list(service.broker._parts.checkpoints.pops())
    record = service.broker.store.at(end)
    assert record is not None
    assert end + record.size == service.broker.store.log_range[1]
    assert (record.tags, json.loads(record.body)["aol"]) == ("bAck", [0, 1, 2])


async def test_each_of_several_requests_is_awaited(service: Service) -> None:
    handle = await one(service)
    service.brokers.waits = True
    missing = Receipt.decode(handle)._replace(queue_id=9).encode()
    requests = [ack_request(handle), ack_request(handle, missing)]
    answers = service.receipts.ack_all([(service.client, request) for request in requests])
    found = [decoded(await resolved(answer)) for answer in answers]
    assert [codes(answer) for answer in found] == [["OK"], ["OK", INVALID]]


async def test_a_failed_record_concerns_only_its_pop(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [await one(service), await one(service)]
    checkpoints = service.broker._parts.checkpoints
    ack, failed = checkpoints.ack, Receipt.decode(handles[0])

    def fail(point: PopCheckpoint, *rest: Any) -> Any:
        if point.pop_time == failed.pop_time and point.queue_id == failed.queue_id:
            raise StoreError("nothing was stored")
        return ack(point, *rest)

    monkeypatch.setattr(checkpoints, "ack", fail)
    assert codes(await service.ack(*handles)) == ["INTERNAL_SERVER_ERROR", "OK"]
    monkeypatch.undo()
    assert codes(await service.ack(*handles)) == ["OK", "OK"]


@pytest.mark.parametrize(("ms", "expected"), TIMES)
async def test_the_limits_of_the_invisible_time(service: Service, ms: int, expected: str) -> None:
    assert code(await service.change(await one(service), ms)) == expected


async def test_a_change_returns_a_handle_of_nine_words(service: Service) -> None:
    handle = await one(service)
    response = await service.change(handle, 60_000)
    assert code(response) == "OK"
    old, new = Receipt.decode(handle), Receipt.decode(response.receipt_handle)
    assert len(response.receipt_handle.split(" ")) == 9
    assert (new.log_offset, new.offset, new.invisible_ms) == (old.log_offset, old.offset, 60_000)
    assert new.pop_time >= old.pop_time
    assert code(await service.change(handle, 60_000)) == INVALID  # only the new one counts
    assert codes(await service.ack(handle)) == ["OK"]  # without effect, as in RocketMQ
    assert code(await service.forward(response.receipt_handle)) == "OK"
    assert codes(await service.ack(response.receipt_handle)) == ["OK"]


async def test_a_message_is_not_redelivered_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_calls, "REDELIVERY_MIN_MS", 1000)
    changed = await service.change(await one(service), 1)
    assert Receipt.decode(changed.receipt_handle).invisible_ms == 1000


async def test_a_message_in_order_is_redelivered_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_calls, "REDELIVERY_MIN_MS", 3_600_000)
    service.create_group(consume_message_orderly=True)
    await service.change(await one(service, attempt_id="a"), 0)
    (found,) = await service.receive(attempt_id="b")
    assert found.system_properties.delivery_attempt == 2


async def test_a_dead_letter_names_its_origin(service: Service) -> None:
    handle = await one(service)
    assert code(await service.forward(handle)) == "OK"
    assert code(await service.change(handle, 1000)) == INVALID
    (record,) = service.broker.store.read("%DLQ%CG", 0)
    properties = record.properties
    assert record.body == b"hello"
    assert properties[UNIQ_KEY] == "m1"
    assert properties[RETRY_TOPIC] == properties[DLQ_ORIGIN_TOPIC] == "T"
    assert record.reconsume_times == 1


async def test_the_dead_letter_of_a_redelivered_message(service: Service) -> None:
    await service.change(await one(service), 0)
    (found,) = await service.receive()
    assert found.topic.name == "T"
    handle = found.system_properties.receipt_handle
    assert Receipt.decode(handle).retry == "1"
    assert code(await service.forward(handle)) == "OK"
    (record,) = service.broker.store.read("%DLQ%CG", 0)
    assert record.properties[RETRY_TOPIC] == "T"


async def test_a_failed_dead_letter_is_not_acknowledged(service: Service) -> None:
    handle = await one(service)
    service.brokers.replaced[RequestCode.CONSUMER_SEND_MSG_BACK] = RemotingCommand(
        ResponseCode.SYSTEM_BUSY
    )
    assert code(await service.forward(handle)) == "TOO_MANY_REQUESTS"
    assert code(await service.change(handle, 60_000)) == "OK"


# -- renewed messages --------------------------------------------------------------------------


async def renewed(service: Service) -> tuple[str, str]:
    """Receive a message with automatic renewal; return its handle, and that of its renewal."""
    handle = await one(service, auto_renew=True)
    found = service.renewals.find("c1", "CG", handle)
    assert found is not None
    await service.renewals._renew(found)
    assert found.receipt.encode() != handle
    return handle, found.receipt.encode()


async def test_the_handle_of_a_renewed_message_is_replaced(service: Service) -> None:
    handle, current = await renewed(service)
    assert codes(await service.ack(handle)) == ["OK"]
    assert code(await service.change(current, 1000)) == INVALID  # it is acknowledged
    assert len(service.renewals) == 0


async def test_a_changed_message_is_not_renewed(service: Service) -> None:
    handle, _ = await renewed(service)
    assert code(await service.change(handle, 20_000)) == "OK"
    assert len(service.renewals) == 0


async def test_a_dead_letter_is_not_renewed(service: Service) -> None:
    handle, _ = await renewed(service)
    assert code(await service.forward(handle)) == "OK"
    assert len(service.renewals) == 0


async def test_a_failed_acknowledgement_does_not_end_the_renewal(service: Service) -> None:
    handle, _ = await renewed(service)
    service.brokers.replaced[RequestCode.BATCH_ACK_MESSAGE] = RemotingCommand(
        ResponseCode.SYSTEM_BUSY
    )
    assert codes(await service.ack(handle)) == ["TOO_MANY_REQUESTS"]
    assert len(service.renewals) == 1


@pytest.mark.parametrize("call", ["ack", "change"])
async def test_calls_wait_for_a_renewal_that_is_in_progress(
    service: Service, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await one(service, auto_renew=True)
    found = service.renewals.find("c1", "CG", handle)
    assert found is not None
    change = service.requests.change
    proceed = asyncio.Event()

    async def slow(*args: Any) -> Receipt:
        changed = await change(*args)
        await proceed.wait()
        return changed

    monkeypatch.setattr(service.requests, "change", slow)
    renewal = asyncio.create_task(service.renewals._renew(found))
    await asyncio.sleep(0)
    work: Any = service.ack(handle) if call == "ack" else service.change(handle, 20_000)
    answer = asyncio.create_task(work)
    await asyncio.sleep(0.05)
    assert not answer.done()
    proceed.set()
    assert code(await asyncio.wait_for(answer, PATIENCE_S)) == "OK"
    await renewal
    pops = list(service.broker._parts.checkpoints.pops())
    assert len(pops) == (0 if call == "ack" else 1)


# -- handles -----------------------------------------------------------------------------------


@given(st.text(max_size=80) | st.from_regex(r"[0-9a-z \-]{0,80}", fullmatch=True))
def test_any_text_is_a_receipt_or_refused(handle: str) -> None:
    try:
        receipt = valid_receipt(handle, 0)
    except ProxyError as error:
        assert error.code == Code.INVALID_RECEIPT_HANDLE
    else:
        assert Receipt.decode(receipt.encode()) == receipt


@pytest.mark.parametrize("number", [0, 10**9 - 1, 10**9, 2**31 - 1, 10**18 - 1, 10**18, 2**63 - 1])
@pytest.mark.parametrize("place", range(9))
def test_receipts_with_large_numbers(number: int, place: int) -> None:
    receipt = Receipt(1, 2, 3, 4, "0", "broker-a", 5, 6, 7)
    words: list[Any] = list(receipt)
    if not isinstance(words[place], int) or (place in (3, 6) and number > 2**31 - 1):
        return
    words[place] = number
    expected = Receipt(*words)
    assert valid_receipt(expected.encode(), 0) == expected
    without = expected._replace(log_offset=None)
    assert valid_receipt(without.encode(), 0) == without
    assert valid_receipt(f"{expected.encode()} more", 0) == expected
