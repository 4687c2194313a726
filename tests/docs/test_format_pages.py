"""The examples in docs/format/ are bytes of the golden stores and decode as the pages say."""

import re
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

from firetrail.format import layout
from firetrail.format.batch import BatchItem, decode_batch, encode_batch
from firetrail.format.files import confirmed, timer
from firetrail.format.files.checkpoint import Checkpoint, decode_checkpoint
from firetrail.format.files.config_json import dumps, loads
from firetrail.format.files.index import (
    IndexEntry,
    IndexHeader,
    decode_index_entry,
    decode_index_header,
    decode_index_slot,
    entry_at,
    slot_at,
)
from firetrail.format.files.unit import PRE_BLANK, ConsumeQueueUnit, decode_unit
from firetrail.format.names import LOCK_CONTENT
from firetrail.format.properties import decode_properties
from firetrail.format.record import Blank, Record, decode_record
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.format.values.hosts import decode_host
from firetrail.format.values.ids import encode_message_id, encode_unique_id
from firetrail.format.values.javahash import index_key_hash, java_hash
from firetrail.remoting.messages.bodies import LmqConsumerOffsets
from firetrail.remoting.wire.codes import Language, RequestCode, Serialize
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import decode_frame, encode_frame
from firetrail.replication.ha import ha_frames
from firetrail.replication.learner import auto_switch_frames
from firetrail.replication.log.epochs import Epoch, decode_epochs, encode_epochs

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/format").glob("*.md"))
GOLDEN = ROOT / "tests/golden"

BLOCK = re.compile(r"<!-- ([^>]+) -->\n```\n(.*?)```\n", re.DOTALL)
HEX_LINE = re.compile(r"((?:[0-9a-f]{2})+(?: (?:[0-9a-f]{2})+)*)(?: {2,}.*)?$")
SOURCE = re.compile(r"bytes: (\S+) @ (\d+)")
MESSAGE_ID = re.compile(r"so the id is `([0-9A-F]+)`")


class Example(NamedTuple):
    """A block of a page: the comment above it, and its text."""

    label: str
    text: str

    @property
    def data(self) -> bytes:
        found = []
        for line in self.text.splitlines():
            match = HEX_LINE.match(line)
            assert match, f"no hex at the start of {line!r}"
            found.append(bytes.fromhex(match[1]))
        return b"".join(found)


def examples(page: str) -> list[Example]:
    text = (ROOT / "docs/format" / page).read_text(encoding="utf-8")
    return [Example(label, block) for label, block in BLOCK.findall(text)]


def data_of(page: str) -> list[bytes]:
    return [example.data for example in examples(page) if example.label.startswith("bytes: ")]


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


ALL = [(page.name, example) for page in PAGES for example in examples(page.name)]


@pytest.mark.parametrize(
    ("page", "example"),
    [(page, example) for page, example in ALL if example.label.startswith("bytes: ")],
    ids=[f"{page}: {e.label}" for page, e in ALL if e.label.startswith("bytes: ")],
)
def test_bytes_are_those_of_the_golden_store(page: str, example: Example) -> None:
    source = SOURCE.fullmatch(example.label)
    assert source, f"{page}: {example.label}"
    start = int(source[2])
    assert golden(source[1])[start : start + len(example.data)] == example.data


def test_every_block_with_hex_is_checked() -> None:
    """A fenced block without a comment above it would go unchecked."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(examples(page.name)), page.name


def test_the_index_lists_every_page() -> None:
    text = (ROOT / "docs/format/README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", text))
    assert linked == {page.name for page in PAGES} - {"README.md"}


def test_every_page_ends_with_the_trade_offs() -> None:
    for page in PAGES:
        headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert page.name == "README.md" or headings[-1] == "Trade-offs", page.name


def test_the_record_page_shows_records_of_java() -> None:
    v1, v2, blank = data_of("record.md")
    record = decode_record(v1)
    assert isinstance(record, Record)
    assert (record.size, record.topic, record.body) == (166, "T1", b"hello 0")
    assert record.body_crc == zlib.crc32(b"hello 0") & 0x7FFFFFFF == 0x20E809F1
    assert (record.born_time, record.store_time) == (1600000000123, 1794725936329)
    assert (str(record.born_host), str(record.store_host)) == (
        "10.1.2.3:50001",
        "192.168.1.2:10911",
    )
    assert record.properties["KEYS"] == "k0 common"
    record = decode_record(v2)
    assert isinstance(record, Record)
    assert record.magic == layout.MAGIC_V2
    assert (len(record.topic), record.physical_offset) == (137, 6799)
    assert record.topic.startswith("%RETRY%a-consumer-group-with")
    assert (record.body, record.reconsume_times) == (b"retry", 1)
    assert decode_record(blank) == Blank(28)


def test_the_record_page_has_the_offsets_of_the_layout() -> None:
    """The table of fields, for IPv4 hosts and for the sizes H and T."""
    text = (ROOT / "docs/format/record.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([0-9HT+]+) \| ([a-zA-Z ]+) \|", text, re.M))
    offsets = {name: offset for offset, name in rows.items()}
    for field, offset in layout.RECORD_HEAD.offsets.items():
        assert offsets[field.replace("_", " ").replace("crc", "CRC")] == str(offset)
    assert offsets["born host"] == str(layout.RECORD_HEAD.size)
    for field, offset in layout.RECORD_MIDDLE.offsets.items():
        expected = f"{layout.RECORD_HEAD.size + 8 + offset}+H+T"
        assert offsets[field.replace("_", " ")] == expected


def test_the_batch_page_shows_a_batch_and_its_record() -> None:
    (body,) = (example.data for example in examples("batch.md") if example.label == "batch body")
    item = BatchItem(0, b"batch0", b"WAIT\x01true\x02TAGS\x01tb")
    assert decode_batch(body) == (item,)
    assert encode_batch([item]) == body
    record = decode_record(data_of("batch.md")[0])
    assert isinstance(record, Record)
    assert (record.flag, record.body, record.topic) == (item.flag, item.body, "TB")
    assert record.raw_properties == item.properties + b"\x02CLUSTER\x01DefaultCluster"


def test_the_properties_page_shows_properties_and_checksum() -> None:
    properties, checksum = data_of("properties.md")
    assert decode_properties(properties) == {
        "KEYS": "k0 common",
        "UNIQ_KEY": "0A01020300002A9F0000000000000000",
        "TAGS": "Tag0",
    }
    log = golden("v5-propcrc/commitlog/00000000000000000000")
    assert len(checksum) == layout.PROPERTY_CRC_SIZE
    digits = decode_properties(checksum)["__CRC32#"]
    assert int(digits[::-1]) == zlib.crc32(log[:167]) & 0x7FFFFFFF == 1887694567


def test_the_consume_queue_page_shows_units_of_java() -> None:
    plain, delayed, rebuilt = data_of("consume-queue.md")
    assert decode_unit(plain) == ConsumeQueueUnit(0, 166, java_hash("Tag0"))
    assert decode_unit(plain, 20) == ConsumeQueueUnit(332, 166, java_hash("Tag2"))
    due = 1794725936349 + DelayLevels.parse(DEFAULT_DELAY_LEVELS).wait_ms(3)
    assert decode_unit(delayed) == ConsumeQueueUnit(2126, 158, due)
    assert not decode_unit(delayed, 20).is_written
    assert decode_unit(rebuilt) == PRE_BLANK
    assert decode_unit(rebuilt, 20) == ConsumeQueueUnit(16384, 168, 2598902)


def test_the_index_page_shows_header_slot_and_entries() -> None:
    header, slot, entries = data_of("index-file.md")
    assert decode_index_header(header) == IndexHeader(1794725936329, 1794725936350, 0, 2514, 26, 39)
    assert index_key_hash("T1", "k2") == 79072525
    assert index_key_hash("T1", "common") == 1934051025
    assert decode_index_slot(slot, 0) == 36
    assert decode_index_entry(entries) == IndexEntry(79072525, 332, 0, 6)
    assert decode_index_entry(entries, 20) == IndexEntry(1934051025, 332, 0, 8)


def test_the_index_page_follows_a_chain_as_it_is() -> None:
    """From slot 25 to entry 8, over the entries that the page names."""
    data = golden("v4-clean/index/20261115065856335")
    chain = [decode_index_slot(data, slot_at(25))]
    while chain[-1] != 8:
        chain.append(decode_index_entry(data, entry_at(100, chain[-1])).previous)
    assert chain == [36, 33, 30, 27, 24, 21, 18, 15, 12, 9, 8]


def test_the_checkpoint_page_shows_files_of_java() -> None:
    v4, v5, abort, lock = data_of("checkpoint.md")
    assert decode_checkpoint(v4.ljust(4096, b"\0")) == Checkpoint(
        1794726066232, 1794726066232, 1794726066179
    )
    assert decode_checkpoint(v5.ljust(4096, b"\0")).logics_offset == 10051
    assert abort == golden("v5-crashed/abort")
    assert lock == LOCK_CONTENT


def test_the_page_on_ids_shows_ids_that_decode() -> None:
    host, offset = data_of("message-ids.md")
    text = (ROOT / "docs/format/message-ids.md").read_text(encoding="utf-8")
    shown = MESSAGE_ID.search(text)
    assert shown
    message_id = encode_message_id(decode_host(host, 0, False), int.from_bytes(offset, "big"))
    assert message_id == shown[1]
    (unique,) = (e.data for e in examples("message-ids.md") if e.label == "unique id")
    encoded = encode_unique_id("fd00::2", 15721, 815033865, 1241411584, 0)
    assert encoded == unique.hex().upper()


def test_the_config_page_shows_files_as_they_are_written() -> None:
    shown = [e for e in examples("config-json.md") if e.label.startswith(("text: ", "json"))]
    assert len(shown) == 4
    for example in shown:
        written = example.text.removesuffix("\n")
        assert dumps(loads(written)) == written
    label, text = shown[0]
    assert golden(label.removeprefix("text: ")) == text.removesuffix("\n").encode()
    assert loads(shown[1].text) == {"offsetTable": {1: 3, 12: 0}}
    assert loads(shown[2].text) == {"offsetTable": {"T1@group": {0: 5, 1: 7}}}
    lmq = LmqConsumerOffsets.from_json(loads(shown[3].text))
    assert lmq == LmqConsumerOffsets({"T1@group": {0: 5, 1: 7}}, {"%LMQ%a@%LMQ%g": 4})


def test_the_wire_page_shows_frames_that_decode() -> None:
    """Both forms of the same request, there and back."""
    binary, start, header = examples("wire.md")
    assert [e.label for e in (binary, start, header)] == [
        "binary frame",
        "json frame",
        "json header",
    ]
    asked = RequestCode.GET_ROUTEINFO_BY_TOPIC
    for frame, serialize in (
        (binary.data, Serialize.ROCKETMQ),
        (start.data + header.text.replace("\n", "").encode(), Serialize.JSON),
    ):
        command = decode_frame(frame)
        expected = RemotingCommand(
            asked, {"topic": "T1"}, opaque=1, version=399, serialize=serialize
        )
        assert command == expected
        assert b"".join(encode_frame(command)) == frame


def test_the_wire_page_has_the_numbers_of_the_codec() -> None:
    """The table of languages, and the frames that the tests of the codec hold to Java's."""
    text = (ROOT / "docs/format/wire.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"of the peer: (.*?) …", " ".join(text.split()))
    names = {"C++": "CPP", "Node.js": "NODE_JS"}
    for entry in listed.split(", "):
        number, name = entry.split()
        assert Language[names.get(name, name.upper())] == int(number)
    binary, _, header = examples("wire.md")
    golden_frames = (ROOT / "tests/remoting/wire/test_frames.py").read_text(encoding="utf-8")
    assert binary.data.hex() in golden_frames
    parts = header.text.replace("\n", "").split('"opaque":1,')
    assert all(part in golden_frames for part in parts)


def test_the_replication_page_shows_frames_that_decode() -> None:
    shown = {example.label: example.data for example in examples("replication.md")[:7]}
    assert shown["classic report"] == ha_frames.encode_report(4096)
    assert shown["introduction"] == ha_frames.encode_introduction(
        3, ha_frames.identity_number("3b9ac9ff04d2a1c7")
    )
    assert shown["farewell"] == ha_frames.FAREWELL
    assert shown["confirmation"] == ha_frames.encode_confirmation(4096)
    start = b"\0\0\0"
    pieces = list(ha_frames.TransferReader().feed(memoryview(shown["classic transfers"])))
    assert pieces == [
        ha_frames.Piece(4096, memoryview(start)),
        ha_frames.Piece(4099, memoryview(b"")),
    ]
    replica = auto_switch_frames.encode_learner_handshake() + auto_switch_frames.encode_report(4096)
    assert shown["auto-switch replica"] == replica
    read = auto_switch_frames.MasterReader().feed(memoryview(shown["auto-switch master"]))
    assert list(read) == [
        auto_switch_frames.MasterHandshake(4099, (Epoch(1, 0),)),
        auto_switch_frames.EpochPiece(4096, memoryview(start), Epoch(1, 0), 4099),
    ]


def test_the_replication_page_shows_an_epoch_file_of_java() -> None:
    text = examples("replication.md")[-2].text.encode()
    epochs = (Epoch(1, 0), Epoch(2, 115451))
    assert (decode_epochs(text), encode_epochs(epochs)) == (epochs, text)


def test_the_replication_page_shows_a_slot_of_the_confirmed_end() -> None:
    slot = examples("replication.md")[-1].data
    boot = bytes.fromhex("6f2c8a0e5b1d4c3f9e7a1b2c3d4e5f60")
    end = confirmed.ConfirmedEnd(10051, False, confirmed.NO_DOUBT, boot)
    assert confirmed.decode_slot(slot) == (7, end)
    assert confirmed.encode_slot(end, 7) == slot


def test_the_timer_page_shows_files_of_java() -> None:
    slot, unit, blank, check = data_of("timer.md")
    assert timer.decode_slot(slot) == timer.TimerSlot(1794852420, 0, 1156, 6)
    mark = timer.decode_unit(unit)
    assert (mark.slot_ms, mark.magic) == (1794852420000, timer.WAITS | timer.DELETES)
    assert mark.topic_hash == java_hash("Timed")
    assert timer.encode_blank(64) == blank
    assert timer.decode_check(check).queue_offset == 23
