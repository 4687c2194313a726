"""``firetrail replica``: its actions, for scripts and for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL
from tests.cli.conftest import Firetrail
from tests.helpers import crash_image, put_all

from firetrail.broker.background import BackgroundBroker
from firetrail.store.broker_store import BrokerStore

COMMON = [b"%d" % number for number in range(10)]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The closed store of a former master; the store ``new`` beside it has other last messages."""
    root = tmp_path / "old"
    with BrokerStore.open(root, SMALL) as store:
        put_all(store, COMMON)
    crash_image(root, tmp_path / "new")
    with BrokerStore.open(root, SMALL) as store:
        put_all(store, [b"old"] * 3)
    return root


@pytest.fixture
def master(old: Path) -> Iterator[str]:
    """The address of the new master."""
    with BackgroundBroker(old.with_name("new"), store=SMALL) as broker:
        put_all(broker.store, [b"new"] * 5)
        yield broker.address


def test_rewind_for_people(old: Path, master: str, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", master, "--dry-run")
    assert result.code == 0, result.err
    first, second, third, queue = result.out.splitlines()
    assert first.startswith(f"{old}: the last record in common with {master} is at offset ")
    assert second.startswith("would remove ") and " of the log, from " in second
    assert third.startswith("would remove 3 messages, 3 of them readable")
    assert third.endswith("the master does not have them")
    assert queue.startswith("  T/0: 3 messages, offsets 10 to 12, 3 readable, stored ")
    result = firetrail("replica", "rewind", old, "--of", master)
    assert result.code == 0, result.err
    last = result.out.splitlines()[-1]
    assert last.startswith(f"a copy of the removed records is in {old}/dropped-")
    result = firetrail("dump", last.rpartition(" ")[2])
    assert result.out.count("old") == 3
    result = firetrail("replica", "rewind", old, "--of", master)
    assert "there is nothing to remove" in result.out
    with BrokerStore.open(old, SMALL) as store:
        assert [message.body for message in store.read("T")] == COMMON


def test_rewind_for_scripts(old: Path, master: str, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", master, "--yes", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert list(found) == [
        *("store", "master", "master_range", "last_common_record", "end", "previous_end"),
        *("removed_bytes", "removed", "kept_in", "dry_run"),
    ]
    assert found["removed"]["messages"] == 3
    assert found["removed_bytes"] == found["previous_end"] - found["end"] > 0
    assert Path(found["kept_in"]).is_dir()
    assert found["dry_run"] is False


def test_rewind_says_what_is_wrong(old: Path, firetrail: Firetrail) -> None:
    result = firetrail("replica", "rewind", old, "--of", "127.0.0.1:1")
    assert result.code == 2
    assert "the broker of the master does not answer: 127.0.0.1:1" in result.err
    result = firetrail("replica", "rewind", old.with_name("none"), "--of", "127.0.0.1:1")
    assert (result.code, "no such folder" in result.err) == (2, True)


def test_without_an_action_the_help_is_printed(firetrail: Firetrail) -> None:
    result = firetrail("replica")
    assert result.code == 2
    assert "rewind" in result.err
