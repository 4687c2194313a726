"""The connection of a replica to the HA port of a Java master in controller mode."""

from typing import NamedTuple

from firetrail.replication.ha.ha_client import HAClient
from firetrail.replication.learner.learner_session import LearnerSession
from firetrail.replication.log.epochs import EpochFile
from firetrail.store.log_copy import LogCopy
from firetrail.system import Clock


class EpochLog(NamedTuple):
    """The log of a replica with its epochs."""

    log: LogCopy
    epochs: EpochFile


class LearnerClient(HAClient):
    """Follows a master over one connection, in the auto-switch protocol."""

    def __init__(
        self,
        log: EpochLog,
        address: str,
        begin: int,
        clock: Clock,
        *,
        heartbeat_s: float = 5.0,
        silence_s: float = 20.0,
    ) -> None:
        """Prepare a connection; the arguments are those of :class:`HAClient`."""
        super().__init__(
            log.log, address, begin, clock, heartbeat_s=heartbeat_s, silence_s=silence_s
        )
        self._epochs = log.epochs

    def _open_session(self, now: float) -> LearnerSession:
        log = self._log
        return LearnerSession(
            log, self._epochs, log.durable_offset, self._begin, now, self._heartbeat_s
        )
