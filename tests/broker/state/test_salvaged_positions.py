"""A broker on a salvaged store loses no good message, and groups keep their positions."""

import json
from pathlib import Path

import pytest
from tests.broker.brokers import records, talking

from firetrail import Message, Store
from firetrail.broker.pop.pop_checkpoints import REVIVE_GROUP
from firetrail.broker.state.salvaged_positions import SalvagedPositions
from firetrail.cli.main import main
from firetrail.format.files import config_json
from firetrail.format.names import CONSUMER_OFFSETS, DELAY_OFFSETS
from firetrail.format.record import decode_message
from firetrail.remoting.messages.pop.pop_bodies import CheckpointBody
from firetrail.settings.config_file import ORDERS, ConfigFile
from firetrail.store.inspect.view import StoreView
from firetrail.store.log.good_records import GoodRecord
from firetrail.store.repair.salvage import Numbering, SalvageResult
from firetrail.system import System

COUNT = 20
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


async def test_groups_continue_after_the_same_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, saved = tmp_path / "store", tmp_path / "saved"
    positions = {"before": 3, "inside": 6, "after": 12, "end": COUNT}

    async with talking(root) as talk:
        for number in range(COUNT):
            await talk.send("T1", b"%02d" % number)
        await talk.pull_until("T1", COUNT)
        for group, offset in positions.items():
            await talk.commit(offset, group)
    victims = (5, 6, 9)
    log = root / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    at = 0
    for number in range(COUNT):
        size = int.from_bytes(content[at : at + 4], "big")
        if number in victims:
            content[at + 4] ^= 1
        at += size
    log.write_bytes(content)
    assert main(["salvage", str(root), "--into", str(saved), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert "group after: offset 12 of T1/0 is now 9" in reported["positions"]
    assert "group inside: offset 6 of T1/0 is now 5" in reported["positions"]

    async with talking(saved) as talk:
        await talk.send("T1", b"new")
        await talk.pull_until("T1", COUNT - len(victims) + 1)
        for group, offset in positions.items():
            continued = await talk.committed(group)
            assert continued is not None
            answer = await talk.pull("T1", continued, consumerGroup=group)
            bodies = [record.body for record in records(answer.content)]
            left = [b"%02d" % n for n in range(offset, COUNT) if n not in victims]
            assert bodies == [*left, b"new"], group


def test_offsets_in_all_files_of_the_broker_are_replaced(tmp_path: Path) -> None:
    """Delay levels, ordered pops, and groups whose pops are skipped."""
    with Store.open(tmp_path) as store:
        for topic in ("T", "SCHEDULE_TOPIC_XXXX", REVIVE):
            for number in range(10):
                store.put(Message(topic, b"%d" % number))
    numbering = Numbering()
    for topic in ("T", "SCHEDULE_TOPIC_XXXX"):
        for old in range(7, 12):
            numbering.note((topic, 0), old, old - 2)
    broker = SalvagedPositions()
    body = CheckpointBody("T", "Popper", 0, 8, 1, 1000, 2, differences=[0, 1]).encode(standard=True)
    with Store.open(tmp_path / "notes") as store:
        for tags, content in (("ck", body), ("ack", b"{}"), ("ck", b"nonsense")):
            store.put(Message(REVIVE, content, tags=tags))
        assert store.wait_dispatched()
        for buffer in store.get(REVIVE).buffers:
            record = decode_message(buffer)
            assert record.topic == REVIVE
            note = GoodRecord(REVIVE, 0, record.queue_offset, record.store_time, True, buffer, 0)
            assert not broker.wanted(note, numbering)
        half = GoodRecord("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 0, 0, True, buffer, 0)
        assert broker.wanted(half, numbering)
        numbering.note(("RMQ_SYS_TRANS_HALF_TOPIC", 0), 5, 4)
        assert not broker.wanted(half, numbering)
        assert broker.wanted(half._replace(topic="T"), numbering)
        del buffer, note, half

    def write(name: str, table: dict[str, object]) -> None:
        ConfigFile(System(), tmp_path, name).save(table)

    groups = {
        "T@G": {0: 9},
        "T@Popper": {0: 11},
        "T@Early": {0: 4},
        f"{REVIVE}@{REVIVE_GROUP}": {0: 12},
    }
    write(CONSUMER_OFFSETS, {"offsetTable": groups})
    write(DELAY_OFFSETS, {"offsetTable": {1: 8, 2: 0}})
    order = {"popTime": 1, "i": 1000, "o": [8], "l": 1, "cm": 0}
    write(ORDERS, {"table": {"T@G": {0: order}, "U@G": {0: order | {"o": [-1]}}}})
    with StoreView.open(tmp_path) as view:
        broker.finish(view, SalvageResult(5, 3, 0, [], 0, numbering))
    assert broker.done == [
        "group G: offset 9 of T/0 is now 7",
        "group Popper: offset 11 of T/0 is now 6",
        "delay level 1: offset 8 of SCHEDULE_TOPIC_XXXX/0 is now 6",
        "ordered pop of group G in T/0: removed",
        f"group {REVIVE_GROUP}: offset 12 of {REVIVE}/0 is beyond the end of the queue: "
        "set back to 9",
    ]
    found = config_json.loads((tmp_path / "config" / CONSUMER_OFFSETS).read_bytes())["offsetTable"]
    assert found == {
        "T@G": {0: 7},
        "T@Popper": {0: 6},
        "T@Early": {0: 4},
        f"{REVIVE}@{REVIVE_GROUP}": {0: 9},
    }
    left = config_json.loads((tmp_path / "config" / ORDERS).read_bytes())["table"]
    assert [key for key, queues in left.items() if queues] == ["U@G"]
