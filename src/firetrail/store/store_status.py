"""The status of an open store: settings, topics, offsets and counters."""

from firetrail.format.values.arguments import instance
from firetrail.format.values.integers import whole
from firetrail.store.engine import Engine
from firetrail.store.recovery.recovery import RecoveryReport
from firetrail.store.settings.store_config import StoreConfig
from firetrail.store.stats import Snapshot


class StoreStatus:
    """The part of a :class:`Store` that describes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._log = engine.log
        self._dispatcher = engine.dispatcher
        self._lookups = engine.lookups

    @property
    def config(self) -> StoreConfig:
        """The settings in force; file sizes are those of the existing files."""
        return self._engine.config

    @property
    def recovery(self) -> RecoveryReport:
        """The findings and changes of opening the store."""
        return self._engine.recovery

    @property
    def refusal(self) -> str:
        """The reason why puts are refused; empty while they are accepted."""
        return self._engine.writer.refusal

    @property
    def has_light_queues(self) -> bool:
        """Whether messages are put into the light queues that they name."""
        return self._engine.drafter.rules.light_queues

    def topics(self) -> list[str]:
        """Return every topic that has a queue, in order."""
        return self._lookups.topics()

    def queues(self, topic: str) -> list[int]:
        """Return the queue ids of a topic, in order.

        Args:
            topic: The topic; one without queues has none.
        """
        return self._lookups.of(instance("topic", topic, str))

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return the queue offset of the oldest message; 0 if the queue does not exist.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue; 0 by default.
        """
        return self._lookups.min_offset(instance("topic", topic, str), whole("queue_id", queue_id))

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """Return one past the last readable queue offset; 0 if the queue does not exist.

        Does not wait for dispatch, so the offset lags the puts by a moment;
        :meth:`Store.wait_dispatched` waits for them.

        Args:
            topic: The topic of the queue.
            queue_id: The number of the queue; 0 by default.
        """
        self._engine.check_open()
        return self._lookups.max_offset(instance("topic", topic, str), whole("queue_id", queue_id))

    @property
    def log_range(self) -> tuple[int, int]:
        """Physical offsets of the oldest record and of the end of the newest one."""
        return self._log.min_offset, self._log.max_offset

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the log is on disk."""
        return self._log.flushed_offset

    @property
    def dispatch_behind(self) -> int:
        """Bytes of the log that are not in queues and index yet."""
        return max(self._log.max_offset - self._dispatcher.position, 0)

    def statistics(self) -> Snapshot:
        """Return the counters since the store was opened."""
        return self._engine.statistics.snapshot(self._engine.system.clock.monotonic())
