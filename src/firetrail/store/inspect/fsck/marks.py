"""Checkpoint and watermark compared with the log, and the broker's files with the inventory."""

from contextlib import closing
from functools import partial

from firetrail.errors import FormatError
from firetrail.format.files.checkpoint import CHECKPOINT as LAYOUT
from firetrail.format.files.checkpoint import Checkpoint, decode_checkpoint
from firetrail.format.files.confirmed import SLOT_SIZE as CONFIRMED_SLOT_SIZE
from firetrail.format.files.confirmed import SLOTS, decode_confirmed, decode_slots
from firetrail.format.names import CHECKPOINT, CONFIG, CONFIRMED, WATERMARK
from firetrail.store.evidence.inventory import (
    CONFIG_FILES,
    Inventory,
    missing_config,
    read_inventory,
)
from firetrail.store.evidence.removals import find_removal
from firetrail.store.inspect.fsck.report import Findings
from firetrail.store.inspect.view import StoreState, StoreView
from firetrail.store.problems import ProblemKind
from firetrail.store.queues.queue_table import QueueKey
from firetrail.store.root.folder import last_held_by_java
from firetrail.store.root.watermark import SLOT_SIZE, WatermarkSlot, decode_slot

TIMES = ("physic_timestamp", "logics_timestamp", "index_timestamp")
OFFSETS = ("confirm_offset", "logics_offset")


def check_inventory(view: StoreView, findings: Findings) -> None:
    """Compare the files of a store that is not in use with the list of those that it had."""
    known = read_inventory(view.system, view.root)
    check_config(view, known, findings)
    clean = view.state is StoreState.CLOSED
    ours = not last_held_by_java(view.system, view.root)
    if view.state is StoreState.OPEN or not view.log.segments or not ours:
        return
    if known.is_current(clean, view.watermark):
        begin, path = view.log.min_offset, view.relative(view.log.segments[0].path)
        min_offset = partial(_min_offset, view)
        found = find_removal(view.system, view.root, known, begin, min_offset, clean=clean)
        if found is not None:
            findings.add(path, 0, begin, ProblemKind.LOG_BEGIN, str(found))


def _min_offset(view: StoreView, key: QueueKey, begin: int) -> int | None:
    if key not in view.tails:
        return None
    with closing(view.open_queue(*key)) as queue:
        return queue.min_offset(begin)


def check_config(view: StoreView, known: Inventory, findings: Findings) -> None:
    """Report files of the broker that the inventory lists but that are missing."""
    files = view.system.files
    for name in missing_config(view.system, view.root, known):
        backup = f"{name}.bak"
        if backup in files.names(view.root / CONFIG):
            effect = f"a broker will use {backup}, which may lack the last change"
        else:
            effect = f"if a broker starts without it, {CONFIG_FILES[name]}"
        findings.add(
            f"{CONFIG}/{name}",
            0,
            None,
            ProblemKind.FILE_MISSING,
            f"the store had this file; {effect}; restore it from a backup first",
        )


class MarkCheck:
    """Checks the files with positions in the log, as of the start of the check."""

    def __init__(self, view: StoreView, findings: Findings) -> None:
        self._view = view
        self._findings = findings
        self._checkpoint = self._read(CHECKPOINT)
        self._watermark = self._read(WATERMARK)
        self._confirmed = self._read(CONFIRMED)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._view.system.files.read(self._view.root / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._findings.add(name, 0, None, ProblemKind.FILE_UNREADABLE, str(error.strerror))
            return None

    def finish(self, last_time: int, end: int, *, damaged: bool) -> None:
        """Compare with a log that ends at ``end`` and whose newest message is of ``last_time``.

        A ``damaged`` log may have lost the messages that the checkpoint covers.
        """
        checkpoint = self._decode(end)
        if checkpoint is not None:
            if self._view.state is not StoreState.OPEN and not damaged:
                self._check_ahead(checkpoint, last_time, end)
            self._check_watermark(checkpoint)
        if self._confirmed is not None and self._view.state is not StoreState.OPEN:
            self._check_confirmed(self._confirmed, end, damaged=damaged)

    def _check_confirmed(self, content: bytes, end: int, *, damaged: bool) -> None:
        """Check the slots, and that the log has what replicas had confirmed.

        A crash may tear the slot that was written last.
        """
        slots, found = decode_slots(content), decode_confirmed(content)
        for number, slot in enumerate(slots):
            at = number * CONFIRMED_SLOT_SIZE
            is_written = any(content[at : at + CONFIRMED_SLOT_SIZE])
            is_whole_else = self._view.state is not StoreState.CLOSED and found is not None
            if slot is None and is_written and not is_whole_else:
                detail = f"slot {number} does not match its checksum"
                self._findings.add(CONFIRMED, at, None, ProblemKind.CONFIRMED_TORN, detail)
        if found is not None and found[1].offset > end and not damaged:
            detail = (
                f"replicas had confirmed the log up to {found[1].offset}, but it ends at {end}; "
                "another member of the group has the messages"
            )
            at = found[0] % SLOTS * CONFIRMED_SLOT_SIZE
            self._findings.add(CONFIRMED, at, end, ProblemKind.CONFIRMED_AHEAD, detail)

    def _decode(self, end: int) -> Checkpoint | None:
        if self._checkpoint is None:
            if end:
                detail = "no checkpoint; recovery after a crash would scan the whole log"
                self._findings.add(CHECKPOINT, 0, None, ProblemKind.CHECKPOINT_MISSING, detail)
            return None
        try:
            return decode_checkpoint(self._checkpoint)
        except FormatError as error:
            kind = ProblemKind.CHECKPOINT_UNREADABLE
            self._findings.add(
                CHECKPOINT, error.offset, None, kind, f"{error.field}: {error.detail}"
            )
            return None

    def _check_ahead(self, checkpoint: Checkpoint, last_time: int, end: int) -> None:
        for name in TIMES:
            value = getattr(checkpoint, name)
            if value > last_time:
                detail = f"is {value}, but the newest message was stored at {last_time}"
                self._note(name, ProblemKind.CHECKPOINT_AHEAD, detail)
        for name in OFFSETS:
            value = getattr(checkpoint, name)
            if value > end:
                self._note(
                    name, ProblemKind.CHECKPOINT_AHEAD, f"is {value}, but the log ends at {end}"
                )

    def _note(self, name: str, kind: ProblemKind, detail: str) -> None:
        text = f"{name.replace('_', ' ')} {detail}"
        self._findings.add(CHECKPOINT, LAYOUT.offsets[name], None, kind, text)

    def _check_watermark(self, checkpoint: Checkpoint) -> None:
        """Check the slots: a crash may tear one, but after a clean stop both are whole."""
        content = self._watermark or b""
        slots = [content[at : at + SLOT_SIZE] for at in range(0, 2 * SLOT_SIZE, SLOT_SIZE)]
        whole = [slot for slot in map(decode_slot, slots) if slot is not None]
        for number, slot in enumerate(slots):
            closed = self._view.state is StoreState.CLOSED
            if any(slot) and decode_slot(slot) is None and (closed or not whole):
                detail = f"slot {number} does not match its checksum"
                at = number * SLOT_SIZE
                self._findings.add(WATERMARK, at, None, ProblemKind.WATERMARK_TORN, detail)
        if whole and self._view.state is StoreState.CLOSED:
            self._check_behind(checkpoint, max(whole))

    def _check_behind(self, checkpoint: Checkpoint, slot: WatermarkSlot) -> None:
        """Check that the times have not decreased, which no program does after the watermark."""
        for name, before in zip(TIMES, slot.times, strict=True):
            value = getattr(checkpoint, name)
            if value < before:
                detail = f"is {value}, but the watermark has {before}"
                self._note(name, ProblemKind.CHECKPOINT_BEHIND, detail)
