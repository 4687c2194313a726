"""Headers of the requests that change the roles of master and replicas; they are Firetrail's."""

from __future__ import annotations

from dataclasses import dataclass

from firetrail.remoting.header import Header


@dataclass(frozen=True, slots=True)
class PromoteHeader(Header):
    """PROMOTE_REPLICA: the replica becomes the master.

    With ``force``, the master before is not asked. ``role`` is ``ASYNC_MASTER`` or ``SYNC_MASTER``;
    by default that of the master before, or ``ASYNC_MASTER`` if that is not known. ``override``
    forces it although the replica has diverged, or its master accepts messages.
    """

    force: bool = False
    role: str | None = None
    override: bool = False


@dataclass(frozen=True, slots=True)
class EpochHeader(Header):
    """GET_BROKER_EPOCH_CACHE; ``replica`` is Firetrail's: a replica asks, which may be promoted."""

    replica: bool = False


@dataclass(frozen=True, slots=True)
class HandOverHeader(Header):
    """HAND_OVER: the master refuses messages, because the broker at an address will replace it.

    With ``cancel`` it accepts messages again.
    """

    successor: str
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class StepDownHeader(Header):
    """STEP_DOWN: the master, which hands over, becomes a slave of its successor.

    ``epoch`` is the number of the epoch that its successor begins.
    """

    successor: str
    broker_id: int
    epoch: int = 0
