"""Offsets of groups: initial offsets, commits, and the file."""

import zlib
from pathlib import Path

import pytest
from tests.broker.brokers import Talk, talking

from firetrail.errors import StoreError
from firetrail.format.files import config_json
from firetrail.remoting.wire.codes import RequestCode, ResponseCode


async def test_a_new_group_begins_at_the_first_message(talk: Talk) -> None:
    await talk.send("T1")
    assert await talk.committed() == 0


async def test_a_group_continues_at_its_offset(talk: Talk) -> None:
    await talk.send("T1")
    assert (await talk.commit(1)).code == 0
    assert await talk.committed() == 1
    assert await talk.committed("other") == 0
    assert await talk.committed(queue_id=1) == 0
    assert (await talk.commit(-1)).code == 0  # a client that does not know yet
    assert await talk.committed() == 1


async def test_invalid_commits_are_refused(talk: Talk) -> None:
    assert (await talk.commit(1, topic="T9")).code == ResponseCode.TOPIC_NOT_EXIST
    await talk.send("T1")
    assert (await talk.commit(1, group="no/group")).code == ResponseCode.SYSTEM_ERROR
    missing = await talk.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="T1", queueId=0
    )
    assert missing.code == ResponseCode.SYSTEM_ERROR


async def test_offsets_survive_in_the_file_of_rocketmq(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.send("T1")
        await talk.commit(1)
    file = tmp_path / "config" / "consumerOffset.json"
    beginning, _, checksum = file.read_text().partition(",\n\t")
    assert beginning == '{\n\t"offsetTable":{\n\t\t"T1@CG":{0:1\n\t\t}\n\t}'
    crc = zlib.crc32(beginning.encode() + b"\n}")
    assert checksum == f'"firetrailCrc":{crc}\n}}'
    async with talking(tmp_path) as talk:
        assert await talk.committed() == 1
        await talk.commit(2)
    assert config_json.loads(file.read_bytes())["offsetTable"] == {"T1@CG": {0: 2}}
    backup = file.with_name("consumerOffset.json.bak")
    assert config_json.loads(backup.read_bytes())["offsetTable"] == {"T1@CG": {0: 1}}


async def test_the_backup_of_a_damaged_file_is_used(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for _ in range(3):
            await talk.send("T1")
        await talk.commit(1)
    async with talking(tmp_path) as talk:
        await talk.commit(2)
    file = tmp_path / "config" / "consumerOffset.json"
    good = file.read_bytes()
    spoilt = (
        b'{"offsetTable":{"T1@',
        good.replace(b"offsetTable", b"nffsetTable"),
        good.replace(b":2", b":3"),
        good.replace(b"CG", b"CF"),
        b'{"nffsetTable":{}}',
        b'{"offsetTable":{"T1@CG":{0:"x"}}}',
    )
    for content in spoilt:
        file.write_bytes(content)
        async with talking(tmp_path) as talk:
            assert await talk.committed() == 1
    backup = file.with_name("consumerOffset.json.bak")
    before = backup.read_bytes()
    async with talking(tmp_path) as talk:
        await talk.commit(2)
    assert file.read_bytes() == good
    assert backup.read_bytes() == before, "the good one has made room for a damaged one"
    file.write_bytes(b"{")
    backup.write_bytes(b"")
    with pytest.raises(StoreError, match=r"restore a good copy, or remove both to start empty"):
        async with talking(tmp_path):
            pass
    file.write_bytes(before)  # both remedies of the error work
    async with talking(tmp_path) as talk:
        assert await talk.committed() == 1
    file.unlink()
    backup.unlink()

    async with talking(tmp_path) as talk:
        assert await talk.committed() == 0
