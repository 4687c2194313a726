"""Receipts of popped messages, and the parts of them in the answer to a pop."""

from __future__ import annotations

import pytest

from firetrail.errors import ProtocolError, RequestError
from firetrail.remoting.pop_bodies import BatchAck, CheckpointBody
from firetrail.remoting.receipts import Receipt, decode_places, encode_places


def test_a_receipt_survives_encoding_and_decoding() -> None:
    text = "17 1700000000000 60000 3 1 broker-a 2 19"
    receipt = Receipt.decode(text)
    assert receipt == (17, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 19)
    assert receipt.encode() == text


@pytest.mark.parametrize("more", ["3608", "0 3608", "words of a later version"])
def test_additional_words_are_ignored(more: str) -> None:
    text = "17 1700000000000 60000 3 1 broker-a 2 19"
    assert Receipt.decode(f"{text} {more}") == Receipt.decode(text)


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
    text = encode_places([(False, 3, [17, 18]), (True, 0, [4])])
    assert text == "0 3 17,18;1 0 4"
    assert decode_places(text) == {(False, 3): [17, 18], (True, 0): [4]}
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
