"""One opening of a store: recovery, then the restoration of what is missing."""

from contextlib import closing
from dataclasses import replace
from functools import partial

from firetrail.format.columns import Check
from firetrail.store.dispatch.derivation import DerivePolicy, LeavesOut
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.evidence.inventory import InventoryFile, missing_config
from firetrail.store.evidence.removals import refuse_empty_folder
from firetrail.store.log.log_records import store_time_at
from firetrail.store.log.paths import LogPaths
from firetrail.store.recovery.recovery import Recovery, RecoveryReport
from firetrail.store.recovery.restoration import LostParts, RecoveredRuns, Restoration
from firetrail.store.root.folder import AbortFile
from firetrail.store.root.store_parts import StoreParts
from firetrail.store.root.watermark import Watermark, WatermarkFile, read_checkpoint, read_watermark


class Startup:
    """Brings log, queues and index of a store into a state in which they fit together."""

    def __init__(
        self, parts: StoreParts, abort: AbortFile, log_paths: LogPaths | None, *, by_java: bool
    ) -> None:
        """Read the state that the last process has left.

        Args:
            parts: Log, queues and index, which are not loaded yet.
            abort: The mark of an unclean stop.
            log_paths: The folders of the log; None if they are not configured.
            by_java: Whether the last process was RocketMQ.
        """
        self._parts = parts
        self._system, self._root = parts.system, parts.root
        self._config = parts.live.current
        self._abort = abort
        self._log_paths = log_paths
        self._by_java = by_java
        self._clean = clean = not abort.exists
        is_ours = clean or abort.is_ours
        self.watermark = read_watermark(self._system, self._root) if is_ours else None
        """The positions that were on disk; None if they are not known."""
        self.inventory = InventoryFile(self._system, self._root)
        if by_java:
            self.inventory.distrust()
        noted = self.inventory.noted
        self.missing_config = missing_config(self._system, self._root, noted)
        """Files of the broker that the store had when it was last open and that are missing."""
        self._listed = noted.is_current(clean, self.watermark)
        self.is_listed = False
        """Whether the inventory lists the files as they are now."""
        self.batched: frozenset[str] = frozenset()
        """The topics with batch queues."""
        self.has_tag_entries = False
        """Whether the index contains tags beside the keys."""

    def run(self) -> RecoveryReport:
        """Recover the log, queues and index, and derive missing parts again."""
        clean, listed, noted = self._clean, self._listed, self.inventory.noted
        log, queues = self._parts.log.queue, self._parts.queues
        log.load()
        if listed and self._log_paths is not None:
            refuse_empty_folder(self._log_paths.all, log, noted, clean=clean)
        queues.torn = not clean
        queues.list_folders()
        catalog = Catalog(
            self._system.files,
            self._root,
            queues.pairs(),
            partial(store_time_at, log),
            noted.listed_queues(listed=listed, closed=clean),
        )
        restoration = Restoration(self._parts, self.inventory, catalog)
        self.batched = batched = catalog.batches
        lost = restoration.find_lost(listed=listed).without(batched)
        self.is_listed = clean and listed and lost == LostParts()
        if clean and listed:
            queues.known_extents = dict(noted.queues)
        report, policy = self._recover(catalog, lost, restoration.note_gap)
        self.has_tag_entries = policy.tags
        if not (clean and listed):
            more = restoration.find_more(report, policy.delays)
            lost = lost.and_also(more).without(batched)
        restoration.derive(lost, policy, report.end)
        queues.lost = frozenset()
        if listed:
            restoration.warn_of_removal(clean=clean)
        return replace(report, restored_queues=len(lost.queues), restored_index=lost.whole_index)

    def _recover(
        self, catalog: Catalog, lost: LostParts, leaves_out: LeavesOut
    ) -> tuple[RecoveryReport, DerivePolicy]:
        """Find the end of the log and derive queues and index up to it, except for lost parts."""
        clean, config, queues = self._clean, self._config, self._parts.queues
        index = None if lost.whole_index else self._parts.index
        if index is not None:
            index.load(torn=not clean)
        queues.lost = lost.queues
        chosen = RecoveredRuns(catalog, lost.queues, clean=clean)
        policy = DerivePolicy(
            config.delay_levels,
            light=config.light_queues or queues.may_lack_light_queues,
            tags=config.index_tags,
            wants=chosen.wants if chosen.may_leave_out else None,
            leaves_out=leaves_out,
        )
        recovery = Recovery(self._parts.log.queue, queues, index, policy, self._check())
        checkpoint = read_checkpoint(self._system, self._root)
        report = recovery.run(clean, self.watermark, checkpoint, self._mark_unclean)
        chosen.finish(self._root, queues, recovery.generations)
        return report, recovery.policy

    def _check(self) -> Check:
        """Return the extent to which recovery checks records."""
        if not self._config.check_crc_on_recover:
            return Check.NONE
        # RocketMQ 4.9 leaves an existing abort file as it is and does not seal records.
        if self._abort.is_sealed and self.watermark is not None and not self._by_java:
            return Check.SEALED  # the stopped process wrote everything after the watermark
        return Check.RECORD if self._config.property_crc else Check.BODY

    def _mark_unclean(self, watermark: Watermark) -> None:
        """Make the next opening recover from ``watermark``, even if this one fails."""
        with closing(WatermarkFile(self._system, self._root)) as file:
            file.write(watermark)
        self._abort.create(sealed=False)
