"""Messages of the log that have no consume queue for a good reason."""

from collections.abc import Container
from functools import cached_property

from firetrail.format.names import CONSUME_QUEUE, is_queue
from firetrail.store.inspect.fsck.report import Findings
from firetrail.store.inspect.view import StoreView
from firetrail.store.problems import ProblemKind
from firetrail.store.queues.generations import QueueGenerations, Reason
from firetrail.store.queues.queue_table import QueueKey

_KINDS = {Reason.DELETED: ProblemKind.TOPIC_DELETED, Reason.BATCHES: ProblemKind.BATCH_QUEUES}
"""The reasons that are not found when queues are compared with the log."""


class UnqueuedMessages:
    """Finds topics that were deleted, or have only batch queues.

    All units are passed to it in the order of the log.
    """

    def __init__(self, view: StoreView) -> None:
        self._catalog = view.catalog()
        self._generations = QueueGenerations()

    def admits(self, key: QueueKey, number: int, length: int, first: int, newest: int) -> bool:
        """Note a run of units; return whether, as far as is known, they should be in a queue."""
        if key[0] in self._catalog.batches:
            return False
        if is_queue(*key):
            self._generations.note(key, number, length, first, newest)
        return True

    @cached_property
    def queues(self) -> Container[QueueKey]:
        """The queues that were deleted with their topic; valid when the log is done."""
        return self._generations.absent(self._catalog)

    def finish(self, findings: Findings) -> None:
        """Report the topics that were found."""
        for left_out in self._generations.left_out(self._catalog):
            kind = _KINDS.get(left_out.reason)
            if kind is not None:
                folder = f"{CONSUME_QUEUE}/{left_out.topic}"
                findings.add(folder, 0, None, kind, str(left_out))
