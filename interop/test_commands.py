"""The commands on stores that Java has written, and on stores that have changed hands."""

from __future__ import annotations

from pathlib import Path

from interop import commands
from interop.history import QUERY_MAX
from interop.peer import Json
from interop.stores import JavaStore, OurStore
from interop.views import index_files, java_queues, queue_files, without_crc


def dumped(root: Path, *arguments: str) -> list[Json]:
    """Return the messages that ``dump`` prints, all of them good."""
    code, lines = commands.run("dump", root, *arguments, "--json")
    assert code == 0
    assert all(line.pop("crc_ok") for line in lines)
    return lines


def test_dump_prints_what_java_reads(by_java: JavaStore) -> None:
    before = commands.contents(by_java.root)
    assert dumped(by_java.root) == by_java.log
    for (topic, queue_id), queue in java_queues(by_java.queues).items():
        lines = dumped(by_java.root, "--topic", topic, "--queue", str(queue_id))
        assert lines == queue.messages
    assert commands.contents(by_java.root) == before


def test_dump_prints_what_firetrail_has_stored(by_us: OurStore) -> None:
    assert dumped(by_us.root) == by_us.history.records


def test_query_finds_what_java_would_find(by_java: JavaStore) -> None:
    by_key = by_java.history.by_key()
    for topic, key in [("T1", "common"), ("TU", "ключ😀"), ("TH", "half"), ("TB", "b1")]:
        code, lines = commands.run(
            "query", by_java.root, "--topic", topic, "--key", key, "--max", str(QUERY_MAX), "--json"
        )
        assert code == 0
        assert all(line.pop("crc_ok") for line in lines)
        assert without_crc(lines) == by_key[topic, key][::-1][:QUERY_MAX]


def test_fsck_finds_nothing_wrong_with_javas_stores(by_java: JavaStore) -> None:
    commands.check_clean(by_java.root, len(by_java.log))


def test_fsck_finds_nothing_wrong_with_firetrails_stores(by_us: OurStore) -> None:
    commands.check_clean(by_us.root, len(by_us.history.records))


def test_rebuild_makes_the_files_that_java_made(by_java: JavaStore, tmp_path: Path) -> None:
    into = tmp_path / "rebuilt"
    code, (made,) = commands.run("rebuild", by_java.root, "--into", str(into), "--json")
    assert (code, made["messages"]) == (0, len(by_java.log))
    assert queue_files(into) == queue_files(by_java.root)
    assert index_files(into) == index_files(by_java.root)
