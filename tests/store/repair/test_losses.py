"""The exact messages that a repair drops: before it, by a dry run, and after it."""

import io
import json
from pathlib import Path

import pytest
from tests.helpers import tree
from tests.stores import flip

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.cli.stores import discarded_messages as cli_losses
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.losses import find_faults, loss_behind

CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 90
PREPARED = 0x4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ninety messages in three queues, and a prepared one near the end."""
    with Store.open(tmp_path / "store", CONFIG) as store:
        for number in range(COUNT):
            topic, queue_id = ("A", number % 2) if number % 3 else ("B", 0)
            store.put(Message(topic, b"%04d" % number, queue_id=queue_id))
        store.put(Message("A", b"half", sys_flag=PREPARED))
    return tmp_path / "store"


def places(root: Path) -> list[tuple[str, int, int, int]]:
    """Topic, queue, queue offset and physical offset of each message."""
    found = []
    with Store.open(root) as store:
        for topic in store.topics():
            for queue_id in store.queues(topic):
                for message in store.read(topic, queue_id):
                    found.append((topic, queue_id, message.queue_offset, message.physical_offset))
    return sorted(found, key=lambda place: place[3])


def spoil(root: Path, place: tuple[str, int, int, int], at: int) -> None:
    offset = place[3]
    flip(root / "commitlog" / f"{offset // 4096 * 4096:020}", offset % 4096 + at)


def test_the_loss_is_exact(root: Path) -> None:
    stored = places(root)
    spoil(root, stored[30], 4)
    spoil(root, stored[40], 90)  # a body
    spoil(root, stored[41], 4)
    damaged = {stored[number] for number in (30, 40, 41)}
    with StoreView.open(root) as view:
        damage = find_faults(view).first(view)
        assert damage is not None
        loss = loss_behind(view, damage)
    assert loss.begin == stored[30][3]
    assert (loss.messages, loss.readable, loss.others) == (COUNT - 30, COUNT - 33, 1)
    for queue in loss.queues:
        key = (queue.topic, queue.queue_id)
        gone = [place for place in stored[30:] if place[:2] == key]
        assert (queue.first_offset, queue.end_offset) == (gone[0][2], gone[-1][2] + 1)
        assert queue.readable == len(set(gone) - damaged)
        assert queue.messages == len(gone)
        assert queue.first_stored is not None and queue.last_stored is not None
    assert len(loss.queues) == 3


def test_a_dry_run_says_what_the_repair_then_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = places(root)
    spoil(root, stored[30], 4)
    before = tree(root)
    assert main(["fsck", str(root), "--repair", "truncate-log", "--dry-run", "--json"]) == 0
    foretold = json.loads(capsys.readouterr().out)["loss"]
    assert main(["fsck", str(root), "--repair", "truncate-log", "--dry-run"]) == 0
    first, *queues, others = capsys.readouterr().out.splitlines()
    assert first.startswith("would discard 60 messages, 59 of them readable, from physical offset ")
    assert len(queues) == 3 and queues[0].startswith("  A/0: 20 messages, offsets 10 to 29, ")
    assert others == "  1 record that no consumer sees (transactions)"
    assert tree(root) == before
    assert main(["fsck", str(root), "--repair", "truncate-log", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["loss"] == foretold
    assert reported["messages"] == COUNT - foretold["messages"]
    left = places(root)
    assert left == stored[:30]
    for queue in foretold["queues"]:
        key = (queue["topic"], queue["queue_id"])
        assert queue["first_offset"] == sum(place[:2] == key for place in left)


def test_the_repair_says_it_too(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(root, places(root)[30], 4)
    assert main(["fsck", str(root), "--repair", "truncate-log"]) == 0
    assert "\ndiscarded 60 messages, 59 of them readable, from " in capsys.readouterr().out


def test_a_rebuild_drops_no_message(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(root), "--repair", "rebuild-derived", "--dry-run"]) == 0
    assert "discard no message" in capsys.readouterr().out
    assert main(["fsck", str(root), "--repair", "rebuild-derived", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"loss": None, "left_out": []}
    assert not list(root.glob("repair-*"))


def test_a_dry_run_needs_a_repair_and_damage(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", str(root), "--dry-run"]) == 2
    assert "--dry-run needs --repair" in capsys.readouterr().err
    assert main(["fsck", str(root), "--repair", "truncate-log", "--dry-run"]) == 2
    assert "nothing to cut" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_on_a_terminal_it_asks(
    answer: str, code: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(root, places(root)[30], 4)
    before = tree(root)
    asked = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", asked)
    assert main(["fsck", str(root), "--repair", "truncate-log"]) == code
    assert "will discard 60 messages" in asked.getvalue()
    assert f"firetrail salvage {root} --into DIR keeps every readable message" in (asked.getvalue())
    if code:
        assert "nothing was changed" in asked.getvalue()
        after = tree(root)
        assert {k: v for k, v in after.items() if k != "lock"} == {
            k: v for k, v in before.items() if k != "lock"
        }
    monkeypatch.setattr("sys.stdin", Terminal(""))
    if code:
        assert main(["fsck", str(root), "--repair", "truncate-log", "--yes"]) == 0


def test_many_queues_are_counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(root, places(root)[30], 4)
    monkeypatch.setattr(cli_losses, "QUEUES_SHOWN", 1)
    with StoreView.open(root) as view:
        damage = find_faults(view).first(view)
        assert damage is not None
        lines = cli_losses.loss_lines(loss_behind(view, damage), "will discard")
    assert lines[2] == "  and 2 queues more, see --json"
