"""Queues and index rebuilt from the log alone are those that dispatch made."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stores import derived

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreDamagedError, StoreError
from firetrail.format.columns import Check
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.dispatch import derivation
from firetrail.store.inspect.view import StoreView
from firetrail.store.repair.rebuild import RebuildResult, rebuild

GOLDEN = Path(__file__).parents[2] / "golden"
DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def rebuilt(store: Path, target: Path) -> RebuildResult:
    with StoreView.open(store) as view:
        return rebuild(view, target, DELAYS, lambda done: None)


@pytest.mark.parametrize("name", ["v4-clean", "v4-rolled", "v5-clean", "v5-propcrc"])
def test_equals_what_java_built(name: str, tmp_path: Path) -> None:
    rebuilt(GOLDEN / name, tmp_path / "new")
    assert derived(tmp_path / "new") == derived(GOLDEN / name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    config = StoreConfig().for_files(
        commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
    )
    with Store.open(tmp_path / "store", config) as opened:
        for number in range(300):
            opened.put(
                Message(
                    f"t{number % 3}",
                    b"x" * (number % 50),
                    tags="a",
                    keys=[f"k{number}", "common"],
                    queue_id=number % 2,
                    delay_level=3 if number % 40 == 0 else 0,
                )
            )
    return tmp_path / "store"


def test_equals_what_dispatch_built(store: Path, tmp_path: Path) -> None:
    made = rebuilt(store, tmp_path / "new")
    assert made.messages == 300
    assert derived(tmp_path / "new") == derived(store)


def test_steps_grow_if_many_queues_alternate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig().for_files(commit_log_file_size=1 << 18, consume_queue_file_size=400)
    with Store.open(tmp_path / "store", config.replace(index_enabled=False)) as opened:
        for number in range(700):
            opened.put(Message("t", b"x", queue_id=number % 50))
    monkeypatch.setattr(derivation, "ROWS_PER_STEP", 8)
    monkeypatch.setattr(derivation, "ROWS_PER_STEP_MAX", 128)
    with StoreView.open(tmp_path / "store") as view:
        steps = derivation.Derivation(derivation.DerivePolicy(DELAYS)).derive_all(
            list(view.log.segments), 0, view.end, Check.NONE
        )
        assert [step.rows for step in steps] == [8, 32, 136, 136, 136, 136, 116]
    rebuilt(tmp_path / "store", tmp_path / "new")
    assert derived(tmp_path / "new") == derived(tmp_path / "store")


def test_an_empty_target_is_filled(store: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    rebuilt(store, tmp_path / "new")
    assert derived(tmp_path / "new") == derived(store)


def test_the_target_must_be_empty(store: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(StoreError, match="not an empty folder"):
        rebuilt(store, tmp_path / "new")


def test_leftovers_of_a_killed_rebuild_are_removed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "new.building" / "consumequeue").mkdir(parents=True)
    rebuilt(store, tmp_path / "new")
    assert derived(tmp_path / "new") == derived(store)
    assert not (tmp_path / "new.building").exists()


HOLDER = """
import sys
from pathlib import Path
from firetrail.system import Files
from firetrail.store.root.new_folder import claimed
with claimed(Files(), Path(sys.argv[1]), Path("new"), "making"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_only_one_process_makes_it(store: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "new.building")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"process {other.pid} is creating it; wait for it"):
            rebuilt(store, tmp_path / "new")
        other.communicate()
    rebuilt(store, tmp_path / "new")
    assert derived(tmp_path / "new") == derived(store)


def test_damage_is_refused_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    log = sorted((copy / "commitlog").iterdir())[1]
    content = bytearray(log.read_bytes())
    content[4] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="no good record here"):
        rebuilt(copy, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.building").exists()


def test_the_rebuild_command_counts_messages(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rebuild", str(store), "--into", str(tmp_path / "new")]) == 0
    assert "of 300 messages" in capsys.readouterr().out
