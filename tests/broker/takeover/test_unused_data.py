"""Data of a Java broker that Firetrail does not use and logs."""

import json
from pathlib import Path

import pytest
from tests.broker.brokers import talking

COMPACTED = {"topicName": "Newest", "attributes": {"cleanup.policy": "COMPACTION"}}


async def test_unused_data_of_a_java_broker_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("config", "compaction", "batchconsumequeue", "kvStore"):
        (tmp_path / name).mkdir()
    (tmp_path / "brokerIdentity").touch()
    (tmp_path / "compaction" / "compactionLog").mkdir()
    topics = {f"C{n}": COMPACTED | {"topicName": f"C{n}"} for n in range(7)}
    table = {"topicConfigTable": topics}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(table))

    async with talking(tmp_path):
        found = [
            r.getMessage().partition(": ")[2] for r in caplog.records if "found" in r.getMessage()
        ]
        assert [text.partition(":")[0] for text in found] == [
            "topics with cleanup.policy=COMPACTION (C0, C1, C2, C3, C4 and 2 more)",
            "compaction/",
            "batchconsumequeue/",
            "kvStore/",
            "brokerIdentity",
        ]


async def test_an_empty_folder_of_compacted_topics_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ 5.3 creates it in every store."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "compaction").mkdir()
    (tmp_path / "compaction" / "position-checkpoint").write_bytes(bytes(8))

    async with talking(tmp_path):
        assert "compaction" not in caplog.text


async def test_nothing_is_logged_for_a_firetrail_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        async with talking(tmp_path) as talk:
            await talk.send("T1")
    assert "found" not in caplog.text
