"""The connection of a replica to the HA port of a Java master in controller mode."""

from __future__ import annotations

from firetrail.replication.epochs import EpochFile
from firetrail.replication.ha_client import HAClient
from firetrail.replication.learner_session import LearnerSession


class LearnerClient(HAClient):
    """Follows a master over one connection, in the auto-switch protocol.

    :meth:`connect` also raises StoreError if the epochs of the replica cannot be read.
    """

    def _open_session(self, now: float) -> LearnerSession:
        log = self._log
        epochs = EpochFile(log.system, log.root)
        return LearnerSession(log, epochs, log.durable_offset, self._begin, now, self._heartbeat_s)
