"""The advice of error texts is followed word for word, and the store works again.

Each case damages a store, opens and uses it, and gets an error that names the damaged file. Then,
in a copy each: the file is put back; every command in the text is run.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores import flip

from firetrail import Message, Store, StoreConfig
from firetrail.cli.main import main
from firetrail.errors import StoreError
from firetrail.format.layout import MAGIC_BLANK
from firetrail.format.names import INVENTORY

CONFIG = StoreConfig().for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
COUNT = 60
LOG, QUEUE = "commitlog", "consumequeue/T/0"
COMMAND = re.compile(
    r"firetrail fsck STORE --repair [a-z-]+|firetrail salvage STORE --into DIR"
    r"|truncate -s [0-9]+ [^ ]+"
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remedies") / "good"
    with Store.open(root, CONFIG) as store:
        for number in range(COUNT):
            for topic in ("T", "U", "V"):
                store.put(Message(topic, b"%04d" % number, tags="a", keys=["k"]))
    return root


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:120])


def cut_after_data(path: Path) -> None:
    """Cut off only bytes that no message uses: zeros, or those after the end mark of the file."""
    content = path.read_bytes()
    marks = content.rfind(MAGIC_BLANK.to_bytes(4, "big"))
    used = marks + 4 if marks >= 0 else len(content.rstrip(b"\0")) + 10
    assert used < len(content)
    path.write_bytes(content[:used])


def cut_in_last_record(path: Path) -> None:
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-20])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def spoil(path: Path) -> None:
    path.write_bytes(b"\xff" * 200)


def flip_magic(path: Path) -> None:
    flip(path, 4)


def name(at: int) -> str:
    return f"{at:020}"


CASES: list[tuple[str, Callable[[Path], None]]] = [
    (f"{LOG}/{name(0)}", cut),
    (f"{LOG}/{name(0)}", grow),
    (f"{LOG}/{name(4096)}", cut),
    (f"{LOG}/{name(4096)}", cut_after_data),
    (f"{LOG}/{name(4096)}", Path.unlink),
    (f"{LOG}/last", cut_after_data),
    (f"{LOG}/last", cut_in_last_record),
    (f"{LOG}/last", cut),
    (f"{LOG}/last", Path.unlink),
    ("index/first", spoil),
    ("index/first", cut),
]
REBUILT: list[tuple[str, Callable[[Path], None]]] = [
    (f"{QUEUE}/{name(0)}", cut),
    (f"{QUEUE}/{name(400)}", cut),
    (f"{QUEUE}/{name(800)}", grow),
    ("index/first", spoil),
    ("index/first", cut),
]
"""Damage that needs no remedy."""


def path_of(root: Path, place: str) -> Path:
    folder, _, which = place.rpartition("/")
    if which in ("first", "last"):
        return sorted((root / folder).iterdir())[0 if which == "first" else -1]
    return root / place


def used(root: Path) -> list[bytes]:
    with Store.open(root, CONFIG) as store:
        found = [message.body for message in store.read("T")]
        assert store.query("T", "k")
        for topic in ("T", "U", "V"):
            end = len(list(store.read(topic)))
            assert store.put(Message(topic, b"new")).queue_offset == end
        assert store.wait_dispatched()
        assert [m.body for m in store.read("T", 0, len(found))] == [b"new"]
    return found


@pytest.mark.parametrize(("place", "damage"), REBUILT)
def test_some_files_are_rebuilt(
    place: str, damage: Callable[[Path], None], good: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(good, tmp_path / "damaged")
    damage(path_of(root, place))
    assert used(root) == [b"%04d" % number for number in range(COUNT)]
    assert main(["fsck", str(root)]) == 0


@pytest.mark.parametrize(("place", "damage"), CASES)
def test_every_remedy_works(
    place: str,
    damage: Callable[[Path], None],
    good: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = shutil.copytree(good, tmp_path / "damaged")
    file = path_of(root, place)
    damage(file)
    (root / INVENTORY).unlink()  # or index files would be rebuilt
    with pytest.raises(StoreError) as caught:
        used(root)
    text = str(caught.value)
    assert str(file.relative_to(root)) in text or file.name in text
    assert "from a copy" in text
    commands = COMMAND.findall(text)
    assert commands
    back = shutil.copytree(root, tmp_path / "back")
    shutil.copyfile(good / file.relative_to(root), back / file.relative_to(root))
    assert used(back) == [b"%04d" % number for number in range(COUNT)]
    for number, command in enumerate(commands):
        again = shutil.copytree(root, tmp_path / f"again-{number}")
        text = command.replace("STORE", str(again)).replace(str(root), str(again))
        program, *words = text.replace("DIR", f"{again}-saved").split()
        if program == "truncate":
            subprocess.run([program, *words], check=True)
        else:
            assert main(words) == 0, capsys.readouterr().out
        if "salvage" in words:
            again = again.with_name(f"{again.name}-saved")
            left = used(again)
            assert left == sorted(set(left)) and len(left) > COUNT // 2
        else:
            left = used(again)
            assert left == [b"%04d" % number for number in range(len(left))]
            assert left or place.startswith(f"{LOG}/{name(0)}")
        if damage is cut_after_data:
            assert left == [b"%04d" % number for number in range(COUNT)], "no message is lost"
        assert main(["fsck", str(again)]) == 0


def test_the_length_of_a_single_log_file_counts_as_the_size_of_all(tmp_path: Path) -> None:
    """So cutting off its unused end is not damage."""
    root = tmp_path / "store"
    with Store.open(root, CONFIG) as store:
        for number in range(20):
            store.put(Message("T", b"%04d" % number, keys=["k"]))
    file = path_of(root, f"{LOG}/last")
    assert file.name == name(0)
    cut_after_data(file)
    size = file.stat().st_size
    assert main(["fsck", str(root)]) == 0
    with Store.open(root, CONFIG) as store:
        for number in range(20, 60):
            store.put(Message("T", b"%04d" % number))
        assert [m.body for m in store.read("T")] == [b"%04d" % n for n in range(60)]
    assert {path.stat().st_size for path in (root / LOG).iterdir()} == {size}
    assert main(["fsck", str(root)]) == 0
