"""Files of a store that are missing when its broker starts, after a stop and after a kill."""

import shutil
from pathlib import Path

import pytest
from tests.broker.brokers import Talk, talking
from tests.helpers import crash_image

from firetrail.cli.main import main
from firetrail.format.files import config_json

COUNT = 10
CONSUMED = 7


async def consume(talk: Talk) -> None:
    for number in range(COUNT):
        await talk.send("T1", b"%d" % number)
    await talk.pull_until("T1", COUNT)
    await talk.commit(CONSUMED)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store that a broker has closed, with all of its files."""
    (tmp_path / "store/config").mkdir(parents=True)
    (tmp_path / "store/config/delayOffset.json").write_text('{"offsetTable":{}}')
    async with talking(tmp_path / "store") as talk:
        await consume(talk)
    return tmp_path / "store"


@pytest.mark.parametrize("loss", ["consumequeue", "consumequeue/T1", "consumequeue/T1/0"])
async def test_a_group_is_not_set_back_when_its_queue_is_missing_after_a_kill(
    loss: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, killed = tmp_path / "live", tmp_path / "killed"

    async with talking(live) as talk:
        await consume(talk)
        await talk.broker.offsets.saved()
        talk.broker.broker_store.removal.settle()
        crash_image(live, killed)
    (killed / "firetrail.inventory").unlink()  # as if the store was never closed
    shutil.rmtree(killed / loss)

    async with talking(killed) as talk:
        assert await talk.committed() == CONSUMED
        answer = await talk.send("T1", b"next")
        assert int(answer.fields["queueOffset"]) == COUNT
    saved = config_json.loads((killed / "config/consumerOffset.json").read_bytes())
    assert saved["offsetTable"]["T1@CG"] == {0: CONSUMED}
    assert "rebuilt from the log" in caplog.text and "set back" not in caplog.text


MEANINGS = {
    "topics.json": "topics have default settings, and topics without messages are lost",
    "subscriptionGroup.json": "consumer groups have default settings",
    "consumerOffset.json": "every consumer group starts over, where its consumers choose",
    "delayOffset.json": "delayed messages that are still in the log are delivered again",
}


async def nothing_else_is_lost(talk: Talk, name: str) -> None:
    if name == "topics.json":
        assert "T1" in talk.broker.topics.content().topic_config_table
    if name == "consumerOffset.json":
        assert await talk.committed() in (None, 0)


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("killed", [False, True])
async def test_a_missing_file_is_logged_with_its_meaning(
    name: str,
    killed: bool,
    store: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = store / "config" / name
    assert path.exists()
    path.unlink()
    path.with_name(f"{name}.bak").unlink(missing_ok=True)
    if killed:
        (store / "abort").write_bytes(b"firetrail 1")
    assert main(["fsck", str(store)]) == 1
    assert f"config/{name}" in (text := capsys.readouterr().out) and MEANINGS[name] in text

    async with talking(store) as talk:
        await nothing_else_is_lost(talk, name)
    warning = (
        f"{path} is missing, and there is no {name}.bak: {MEANINGS[name]}; "
        "to restore the previous state"
    )
    assert warning in caplog.text
    caplog.clear()
    async with talking(store) as talk:
        await nothing_else_is_lost(talk, name)
    assert "is missing" not in caplog.text


async def test_the_backup_of_a_missing_file_is_used(
    store: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """As RocketMQ does."""
    path = store / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    assert main(["fsck", str(store)]) == 1
    assert "a broker will use consumerOffset.json.bak" in capsys.readouterr().out

    async with talking(store) as talk:
        assert await talk.committed() == CONSUMED
    assert (
        f"{path}: is missing; consumerOffset.json.bak is used instead, which may lack the last"
        in caplog.text
    )
    assert "there is no" not in caplog.text


async def test_a_new_broker_logs_no_missing_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        async with talking(tmp_path / "store") as talk:
            await consume(talk)
    assert "missing" not in caplog.text
