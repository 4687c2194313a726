"""Records that contradict the queue unit through which they are read."""

from pathlib import Path
from struct import Struct

import pytest
from tests.helpers import Machine
from tests.stores import log_file, overwrite, records

from firetrail import Message, StoreConfig
from firetrail.errors import StoreDamagedError
from firetrail.format.layout import RECORD_HEAD, UNIT
from firetrail.format.names import queue_folder
from firetrail.store.broker_store import BrokerStore

CONFIG = StoreConfig(property_crc=False).for_files(
    commit_log_file_size=8192, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 12
NUMBER_AT = RECORD_HEAD.offsets["queue_offset"]
LONG = Struct(">q")

pytestmark = pytest.mark.stepped_threads


def fill(root: Path, machine: Machine) -> None:
    with BrokerStore.open(root, CONFIG, system=machine.system) as store:
        for number in range(COUNT):
            for queue_id in (0, 1):
                store.embedded.put(Message("T", b"%02d" % number, queue_id=queue_id))


def renumber(root: Path, number: int, shift: int) -> None:
    """Change the queue offset in the record of a message of queue 0."""
    record = records(root)[2 * number]
    path, position = log_file(root, record.physical_offset)
    overwrite(path, position + NUMBER_AT, LONG.pack(record.queue_offset + shift))


def consumed(store: BrokerStore, queue_id: int = 0) -> list[int]:
    found, offset = [], 0
    while offset < COUNT:
        result = store.reads.get_hashed("T", queue_id, offset)
        found += [int(record.body) for record in result.messages()]
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def test_a_queue_with_other_numbers_than_its_records_is_served(
    tmp_path: Path, machine: Machine
) -> None:
    """As a Java store can be; the record that differs from its neighbours is damaged."""
    fill(tmp_path, machine)
    for number in range(COUNT):
        renumber(tmp_path, number, 7)
    with BrokerStore.open(tmp_path, CONFIG, system=machine.system) as store:
        assert consumed(store) == list(range(COUNT))
        assert not len(store.damage)
        renumber(tmp_path, 3, 1)
        assert consumed(store) == [number for number in range(COUNT) if number != 3]
        assert len(store.damage) == 1


def test_a_record_that_is_reached_through_a_wrong_unit_is_not_served_for_another(
    tmp_path: Path, machine: Machine
) -> None:
    """The unit of message 4 points to the record of the other queue, which has the same size."""
    fill(tmp_path, machine)
    path = tmp_path / queue_folder("T", 0) / f"{0:020}"
    other = records(tmp_path)[2 * 4 + 1]
    overwrite(path, 4 * UNIT.size, LONG.pack(other.physical_offset))
    with BrokerStore.open(tmp_path, CONFIG, system=machine.system) as store:
        assert consumed(store) == list(range(COUNT))
        assert store.reads.get_hashed("T", 0, 4, 1).buffers[0][12:16] == bytes(4)
        assert not len(store.damage)


def test_an_embedded_reader_is_told(tmp_path: Path, machine: Machine) -> None:
    fill(tmp_path, machine)
    with BrokerStore.open(tmp_path, CONFIG, system=machine.system) as store:
        renumber(tmp_path, 5, 1)
        found = store.embedded.read("T", 0)
        assert [int(next(found).body) for _ in range(5)] == list(range(5))
        with pytest.raises(StoreDamagedError, match=r"message 5 of T/0: it says .* message 6"):
            next(found)
        assert consumed(store, 1) == list(range(COUNT))


@pytest.mark.parametrize("hit", [0, 2])
def test_a_light_queue_shows_no_message_that_does_not_name_it(
    tmp_path: Path, machine: Machine, hit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A unit points to a message of another topic."""
    config = CONFIG.replace(light_queues=True)
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with BrokerStore.open(tmp_path, config, system=machine.system) as store:
        for number in range(4):
            store.embedded.put(Message("T", b"%d" % number, properties=named))
            store.embedded.put(Message("Secret", b"s"))
    other = records(tmp_path)[2 * hit + 1]
    path = tmp_path / queue_folder("%LMQ%a", 0) / f"{0:020}"
    unit = UNIT.struct.pack(other.physical_offset, other.size, 0)
    overwrite(path, hit * UNIT.size, unit)
    good = [number for number in range(4) if number != hit]
    with BrokerStore.open(tmp_path, config, system=machine.system) as store:
        found, offset = [], 0
        while offset < 4:
            result = store.reads.get_hashed("%LMQ%a", 0, offset)
            found += [int(record.body) for record in result.messages()]
            offset = result.next_offset
        assert found == good
        assert f"%LMQ%a queue 0: message {hit} is damaged and left out" in caplog.text
        assert not len(store.damage)  # the record is a good one of its own queue
        reading = store.embedded.read("%LMQ%a", 0)
        assert [int(next(reading).body) for _ in range(hit)] == good[:hit]
        with pytest.raises(StoreDamagedError, match=rf"message {hit} of %LMQ%a/0: its unit"):
            next(reading)
