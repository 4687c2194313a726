"""The two files with offsets of groups: which is read, and which are saved."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.broker.brokers import SMALL, talking

from firetrail.broker.state.offset_files import (
    GroupOffsets,
    OffsetFiles,
    change_offsets,
    joined,
    split,
)
from firetrail.errors import StoreError
from firetrail.format.files import config_json
from firetrail.format.names import CONSUMER_OFFSETS, LMQ_OFFSETS
from firetrail.remoting.messages.bodies import LmqConsumerOffsets
from firetrail.system import System

FROM_JAVA = """{
	"dataVersion":{
		"counter":0,
		"stateVersion":0,
		"timestamp":1794798981837
	},
	"groupTopicMap":{},
	"lmqOffsetTable":{
		"%LMQ%a@%LMQ%g":4,
		"T@%LMQ%g":2
	},
	"offsetTable":{
		"T@G":{0:3,1:0
		}
	}
}"""
"""The content that a Java broker 5.3.3 with enableLmq=true has written."""
WITHOUT_LMQ = '{"offsetTable":{"T@G":{0:1}}}'
OFFSETS = {"T@G": {0: 3, 1: 0}, "%LMQ%a@%LMQ%g": {0: 4}, "T@%LMQ%g": {0: 2}}


def write(root: Path, name: str, text: str, seconds: int) -> Path:
    """A file that was changed at a time."""
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))
    return path


def content(root: Path, name: str) -> Any:
    return config_json.loads((root / "config" / name).read_bytes())


def test_joined_and_split_are_the_reverse_of_each_other() -> None:
    table = LmqConsumerOffsets({"T@G": {0: 3, 1: 0}, "T@none": {}}, {"T@%LMQ%g": 2})
    assert joined(table) == {"T@G": {0: 3, 1: 0}, "T@none": {}, "T@%LMQ%g": {0: 2}}
    assert split(joined(table)) == table
    strange = {"T@%LMQ%g": {0: 1, 5: 2}}  # Java has one offset for all queues of such a group
    assert joined(split(strange)) == strange


def test_offsets_of_a_java_broker_with_lmq_are_read_without_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, LMQ_OFFSETS, FROM_JAVA, 2_000_000_000)
    files = OffsetFiles(System(), tmp_path)
    assert files.load() == OFFSETS
    assert not files.is_ours
    assert "lmqConsumerOffset.json (2033-05-18" in caplog.text
    assert "because there is no consumerOffset.json" in caplog.text
    files.save({"offsetTable": OFFSETS})
    assert content(tmp_path, CONSUMER_OFFSETS)["offsetTable"] == OFFSETS
    assert content(tmp_path, LMQ_OFFSETS)["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 4, "T@%LMQ%g": 2}


@pytest.mark.parametrize("light_queues", [False, True])
@pytest.mark.parametrize("newer", [CONSUMER_OFFSETS, LMQ_OFFSETS])
def test_the_newer_file_counts(
    tmp_path: Path, newer: str, light_queues: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in ((CONSUMER_OFFSETS, WITHOUT_LMQ), (LMQ_OFFSETS, FROM_JAVA)):
        write(tmp_path, name, text, 2_000_000_000 + (name == newer))
    files = OffsetFiles(System(), tmp_path, light_queues=light_queues)
    expected = OFFSETS if newer == LMQ_OFFSETS else {"T@G": {0: 1}}
    assert files.load() == expected
    assert f"{newer} (2033-05-18 03:33:21.000Z): the offsets of consumer groups" in caplog.text
    caplog.clear()

    files.save({"offsetTable": expected})
    again = OffsetFiles(System(), tmp_path, light_queues=not light_queues)
    assert again.load() == expected
    assert again.is_ours
    assert not caplog.records  # both have the same content


def test_a_newer_file_that_cannot_be_decoded_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, LMQ_OFFSETS, FROM_JAVA[:50], 2_000_000_001)
    older = write(tmp_path, CONSUMER_OFFSETS, WITHOUT_LMQ, 2_000_000_000)
    with pytest.raises(StoreError, match=r"lmqConsumerOffset\.json.*restore a good copy"):
        OffsetFiles(System(), tmp_path).load()
    os.utime(older, (2_000_000_002, 2_000_000_002))
    assert OffsetFiles(System(), tmp_path).load() == {"T@G": {0: 1}}
    assert "newer than lmqConsumerOffset.json, which cannot be decoded" in caplog.text


@pytest.mark.parametrize(("light_queues", "name"), [(False, CONSUMER_OFFSETS), (True, LMQ_OFFSETS)])
async def test_a_broker_saves_the_file_that_java_reads(
    tmp_path: Path, light_queues: bool, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SMALL.replace(light_queues=light_queues)
    caplog.set_level(logging.WARNING, "firetrail.broker.state.offset_files")

    async with talking(tmp_path, store=store) as talk:
        await talk.send("T1")
        assert (await talk.commit(1)).code == 0
    other = CONSUMER_OFFSETS if light_queues else LMQ_OFFSETS
    assert not (tmp_path / "config" / other).exists()
    assert content(tmp_path, name)["offsetTable"]["T1@CG"] == {0: 1}
    async with talking(tmp_path, store=store) as talk:
        assert await talk.committed() == 1
    assert not caplog.records
    async with talking(tmp_path, store=store.replace(light_queues=not light_queues)) as talk:
        assert await talk.committed() == 1


@pytest.mark.parametrize("newer", [CONSUMER_OFFSETS, LMQ_OFFSETS])
def test_a_repair_uses_the_newer_file(tmp_path: Path, newer: str) -> None:
    for name, text in ((CONSUMER_OFFSETS, WITHOUT_LMQ), (LMQ_OFFSETS, FROM_JAVA)):
        write(tmp_path, name, text, 1_000_000_000 + (name == newer))
    assert change_offsets(System(), tmp_path, lambda offsets: []) == []
    assert (tmp_path / "config" / LMQ_OFFSETS).read_text() == FROM_JAVA

    def change(offsets: GroupOffsets) -> list[str]:
        offsets["T@G"][0] -= 1
        return [f"T@G is {offsets['T@G'][0]}"]

    left = 0 if newer == CONSUMER_OFFSETS else 2
    assert change_offsets(System(), tmp_path, change) == [f"T@G is {left}"]
    for name in (CONSUMER_OFFSETS, LMQ_OFFSETS):
        assert content(tmp_path, name)["offsetTable"]["T@G"][0] == left
    light = {"%LMQ%a@%LMQ%g": 4, "T@%LMQ%g": 2} if newer == LMQ_OFFSETS else {}
    assert content(tmp_path, LMQ_OFFSETS)["lmqOffsetTable"] == light


def test_a_repair_does_not_change_unreadable_files(tmp_path: Path) -> None:
    write(tmp_path, LMQ_OFFSETS, FROM_JAVA[:50], 2_000_000_000)
    older = write(tmp_path, CONSUMER_OFFSETS, WITHOUT_LMQ, 1_000_000_000)
    (said,) = change_offsets(System(), tmp_path, lambda offsets: ["changed"])
    assert said.startswith("the positions in this file were not changed: ")
    assert LMQ_OFFSETS in said
    assert older.read_text() == WITHOUT_LMQ
