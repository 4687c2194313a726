"""The same bits flipped in the stores of all sides, and the messages that each serves afterwards.

``interop/flips.md`` lists the outcomes of all sides and is compared with what these tests see, so
that a release of RocketMQ that does better is noticed.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from interop import ours
from interop.flips import MANY_FILES, ONE_FILE, SIDES, listing, outcomes
from interop.messages import message
from interop.peer import FEW, Java, Json
from tests.crash.files_check import readable

from firetrail import Store

LISTS = Path(__file__).with_name("flips.md")
BY_NAME = {side.name: side for side in SIDES}
PLAIN = ["RocketMQ 4.9.8", "RocketMQ 5.5.1", "Firetrail"]


def check_lists(columns: dict[str, dict[str, str]]) -> None:
    """Check that the file has exactly the list of these outcomes."""
    lines = "\n".join(listing(columns))
    found = LISTS.read_text(encoding="utf-8") + "\n"
    assert f"\n\n{lines}\n\n" in found, f"the lists should have\n{lines}"


def test_every_field_of_every_file(tmp_path: Path) -> None:
    columns = {
        name: outcomes(BY_NAME[name], tmp_path / str(number), ONE_FILE)
        for number, name in enumerate([*PLAIN, "Firetrail (sealed)"])
    }
    check_lists(columns)


def test_an_older_file_of_the_log(tmp_path: Path) -> None:
    columns = {
        name: outcomes(BY_NAME[name], tmp_path / str(number), MANY_FILES, only="record: ")
        for number, name in enumerate(PLAIN)
    }
    check_lists(columns)


def test_a_checksum_of_the_whole_record_does_not_help_java(tmp_path: Path) -> None:
    """5.5.1 writes it, and does not compare it."""
    sealed = BY_NAME["RocketMQ 5.5.1 (sealed)"]
    found = outcomes(sealed, tmp_path / "one", ONE_FILE, only="record: flag")
    assert found == {"record: flag": "1 altered"}


# -- two crashes --------------------------------------------------------------------------------


def put(side: str, root: Path, *bodies: bytes) -> None:
    """Put messages; the process is killed after the last one."""
    lines = [message("T", body) for body in bodies]
    if side == "firetrail":
        ours.write(root, lines, sizes=FEW, kill=True)
    else:
        Java(side).session(root, lines, sizes=FEW, kill=True)


def read(side: str, root: Path) -> list[bytes]:
    if side == "firetrail":
        with Store.open(root, FEW.config()) as store:
            return [record.body for record in store.read("T")]
    answers: list[Json]
    (answers,) = Java(side).session(root, "read", sizes=FEW, kill=True)
    return [base64.b64decode(answer["body"]) for answer in answers if "body" in answer]


@pytest.mark.parametrize("torn", ["dropped", "garbled"])
@pytest.mark.parametrize("side", ["v4", "v5", "firetrail"])
def test_what_a_crash_has_torn_off_comes_back_after_another(
    tmp_path: Path, side: str, torn: str
) -> None:
    """The disk loses the second of three messages, and keeps the third, which was not synced."""
    root = tmp_path / "store"
    put(side, root, b"first", b"other", b"third")
    _, lost, _ = readable(root / "commitlog")
    path = root / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    garbage = bytes(lost.size) if torn == "dropped" else b"\xa5" * lost.size
    content[lost.offset : lost.offset + lost.size] = garbage
    path.write_bytes(content)
    put(side, root, b"newer")
    back = side in ("v4", "v5")
    assert read(side, root) == [b"first", b"newer", *([b"third"] if back else [])]
