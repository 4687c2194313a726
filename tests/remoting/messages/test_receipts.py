"""Receipts of popped messages, and the parts of them in the answer to a pop."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrail.errors import ProtocolError, RequestError
from firetrail.remoting.messages.pop.pop_bodies import (
    AckBody,
    BatchAck,
    CheckpointBody,
    encode_ack,
    encode_checkpoint,
)
from firetrail.remoting.messages.pop.pop_headers import PopResponse
from firetrail.remoting.messages.pop.receipts import (
    NORMAL,
    RETRY,
    RETRY_V2,
    PopReceipts,
    Receipt,
    decode_counts,
    decode_places,
    encode_counts,
    encode_places,
)


def test_a_receipt_survives_encoding_and_decoding() -> None:
    text = "17 1700000000000 60000 3 1 broker-a 2 19"
    receipt = Receipt.decode(text)
    assert tuple(receipt) == (17, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 19, None)
    assert receipt.encode() == text


def test_a_ninth_word_is_the_offset_in_the_log() -> None:
    text = "3 1794780470762 20000 1 0 broker-a 3 3 3608"  # of RocketMQ's proxy
    receipt = Receipt.decode(text)
    assert receipt.log_offset == 3608
    assert receipt.encode() == text


@pytest.mark.parametrize("more", ["words of a later version", "", "-1", "3.5"])
def test_other_additional_words_are_ignored(more: str) -> None:
    text = "17 1700000000000 60000 3 1 broker-a 2 19"
    assert Receipt.decode(f"{text} {more}") == Receipt.decode(text)
    assert Receipt.decode(f"{text} 3608 {more}").encode() == f"{text} 3608"


@settings(max_examples=30, deadline=None)
@given(
    st.builds(
        Receipt,
        *[st.integers(0, 2**63 - 1)] * 3,
        st.integers(0, 2**31 - 1),
        st.sampled_from("012"),
        st.from_regex("[a-zA-Z0-9_-]+", fullmatch=True),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**63 - 1),
        st.none() | st.integers(0, 2**63 - 1),
    )
)
def test_all_receipts_survive_encoding_and_decoding(receipt: Receipt) -> None:
    assert Receipt.decode(receipt.encode()) == receipt


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 99), st.integers(0, 2**62)), st.integers(0, 99), max_size=9
    )
)
def test_delivery_counts_survive_encoding_and_decoding(counts: dict[tuple[int, int], int]) -> None:
    text = encode_counts([(*place, times) for place, times in counts.items()])
    assert decode_counts(text) == {place: times for place, times in counts.items() if times}


def test_invalid_delivery_counts_are_rejected() -> None:
    assert decode_counts(None) == decode_counts("") == decode_counts("0 3 1") == {}
    for text in ("0 qo3 1", "0 qo3%x 1", "qo3%4", "0 qo3%4 x"):
        with pytest.raises(RequestError, match="is not a list of delivery counts"):
            decode_counts(text)


def test_receipts_are_built_from_the_answer_to_a_pop() -> None:
    receipts = PopReceipts(PopResponse(9, 60, 3, 0, "0 1 17;1 0 4", "0 1 19;1 0 5;2 0 8"), "b")
    assert receipts.of("T", 1, 19, None) == Receipt(17, 9, 60, 3, "0", "b", 1, 19)
    assert receipts.of("T", 2, 19, None) == Receipt(19, 9, 60, 3, "0", "b", 2, 19)
    assert receipts.of("%RETRY%G_T", 0, 5, None) == Receipt(4, 9, 60, 3, "1", "b", 0, 5)
    assert receipts.of("%RETRY%G+T", 0, 5, None) == Receipt(5, 9, 60, 3, "2", "b", 0, 5)
    assert receipts.of("T", 0, 5, "4 9 60 3 1 b 0 5") == Receipt(4, 9, 60, 3, "1", "b", 0, 5)
    assert receipts.of("T", 0, 8, "8 9 60 3 2 b 0 8") == Receipt(8, 9, 60, 3, "2", "b", 0, 8)
    # A property of the producer is no receipt.
    assert receipts.of("T", 1, 19, "anything") == Receipt(17, 9, 60, 3, "0", "b", 1, 19)


@pytest.mark.parametrize(
    "text", ["", "1 2 3", "a b c d 0 broker 1 2", "1 2 3 4 0 broker 1", "1 2 3 4 0 broker 1 x"]
)
def test_invalid_receipts_are_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="is not the receipt of a message"):
        Receipt.decode(text)


@pytest.mark.parametrize(("retry", "topic"), [("0", "T"), ("1", "%RETRY%G_T"), ("2", "%RETRY%G+T")])
def test_a_receipt_names_the_topic_that_a_message_is_stored_in(retry: str, topic: str) -> None:
    receipt = Receipt(1, 2, 3, 4, retry, "b", 5, 6)
    assert receipt.topic("T", "G") == topic
    assert receipt.topic(topic, "G") == topic


def test_queue_offsets_survive_encoding_and_decoding() -> None:
    text = encode_places([(NORMAL, 3, [17, 18]), (RETRY, 0, [4]), (RETRY_V2, 0, [5])])
    assert text == "0 3 17,18;1 0 4;2 0 5"
    assert decode_places(text) == {(NORMAL, 3): [17, 18], (RETRY, 0): [4], (RETRY_V2, 0): [5]}
    assert decode_places(None) == decode_places("") == {}
    with pytest.raises(RequestError, match="is not a list of queue offsets"):
        decode_places("0 3")


def test_offsets_of_a_batch_acknowledgement_are_bits() -> None:
    bits = BatchAck.bits_of(10, [10, 13, 21])
    assert bits == "CQg="  # 0b1001, 0b1000
    ack = BatchAck("G", "T", 10, 0, 1, 2, 3, bits)
    assert ack.among([9, 10, 11, 13, 21, 10**9]) == [10, 13, 21]
    for wrong in ("?", "\u0661"):
        with pytest.raises(ProtocolError, match="Base64"):
            BatchAck("G", "T", 10, 0, 1, 2, 3, wrong).among([10])


def test_a_checkpoint_lists_its_offsets() -> None:
    assert CheckpointBody("T", "G", 0, 10, 1, 2, 3).offsets == [10, 11, 12]
    assert len(CheckpointBody("T", "G", 0, 10, 1, 2, 2**60).offsets) == 256
    assert CheckpointBody("T", "G", 0, 10, 1, 2, 2, differences=[0, 5]).offsets == [10, 15]


@pytest.mark.parametrize(
    "name", ["broker-a", 'a"b\\', "%RETRY%G_T", "M\u00fcnchen", "\ud800", "\x01"]
)
@pytest.mark.parametrize("offsets", [[10], [10, 11], [12, 2**62]])
def test_records_of_pops_and_acknowledgements_are_the_json_of_their_bodies(
    name: str, offsets: list[int]
) -> None:
    differences = [offset - 10 for offset in offsets]
    checkpoint = CheckpointBody(
        name, "G", 3, 10, 2**41, 60_000, len(offsets), differences=differences, broker_name=name
    )
    found = encode_checkpoint(name, "G", 3, 10, 2**41, 60_000, offsets, name)
    assert found == checkpoint.encode(standard=True)
    last, several = (offsets[0], None) if len(offsets) == 1 else (-1, offsets)
    ack = AckBody("T", name, 3, 10, 2**41, last, several, name)
    assert encode_ack("T", name, 3, 10, 2**41, offsets, name) == ack.encode(standard=True)
