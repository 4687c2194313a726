"""One catalogue knows every file in the root of a store."""

import re
from pathlib import Path

from firetrail.format import names
from firetrail.format.files import timer
from firetrail.format.files.store_files import (
    CATALOGUE,
    COPY_ORDER,
    STORE_MARKS,
    is_aside,
    is_of_store,
)

OWN = [
    *("abort", "checkpoint", "lock", "commitlog", "consumequeue", "index", "config"),
    *("epochFileCheckpoint", "epochFileCheckpoint.bak", "consumequeue_ext", "batchconsumequeue"),
    *("firetrail.watermark", "firetrail.inventory", "firetrail.sink", "firetrail.log-paths"),
    "firetrail.confirmed",
    *("firetrail.archived.1a", "firetrail.replayed.2b", "repair-20260101", "dropped-20260101"),
    *("timerwheel", "timerlog", "audit"),
]
FOREIGN = ["notes.txt", "commitlog2", "epochFileCheckpoint.old", "my-repair-1", "", "timer"]


def test_own_and_foreign_names() -> None:
    assert [name for name in OWN if not is_of_store(name)] == []
    assert [name for name in FOREIGN if is_of_store(name)] == []
    assert [name for name in OWN if is_aside(name)] == ["repair-20260101", "dropped-20260101"]


def test_the_order_of_a_backup_and_the_marks_of_a_store() -> None:
    assert (
        *("firetrail.inventory", "checkpoint", "firetrail.watermark"),
        *("firetrail.confirmed", "config", "consumequeue", "index"),
    ) == COPY_ORDER
    assert {
        *("abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock"),
        *("firetrail.log-paths", "firetrail.watermark"),
    } == STORE_MARKS


def test_every_name_of_a_file_in_the_root_is_in_the_catalogue() -> None:
    """Names in ``config`` and the names of other things have their own rules."""
    source = Path(names.__file__).read_text(encoding="utf-8")
    head = source[: source.index("SEGMENT_NAME_DIGITS")]
    declared = set(re.findall(r'^([A-Z_]+) = f?"', head, re.M)) - {
        *("TOPICS_JSON", "TOPICS_FILE", "GROUPS_JSON", "CONSUMER_OFFSETS", "LMQ_OFFSETS"),
        "DELAY_OFFSETS",
    }
    listed = {file.name.removesuffix("*") for file in CATALOGUE}
    assert {getattr(names, name) for name in declared} | {timer.WHEEL, timer.LOG} == listed
