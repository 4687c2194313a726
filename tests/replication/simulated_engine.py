"""The consensus engine of a simulated group, which can lose its data, repeat itself and go back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from firetrail.replication.group.election import LeaseTiming
from firetrail.replication.group.group_view import (
    Candidate,
    ConfirmedNote,
    GroupView,
    InSyncSet,
    LeaseHolder,
    MemberReport,
    SetChange,
)

if TYPE_CHECKING:
    from tests.replication.simulated_group import World

TIMING = LeaseTiming(5.0)


@dataclass(frozen=True)
class EngineBackup:
    """The data of an engine; by default that of a new one."""

    revision: int = 1
    holder: LeaseHolder | None = None
    in_sync: InSyncSet | None = None
    expires_at: dict[str, float] = field(default_factory=dict)
    identities: dict[int, str] = field(default_factory=dict)
    reports: dict[int, MemberReport] = field(default_factory=dict)
    confirmed: ConfirmedNote | None = None


@dataclass
class SimulatedEngine:
    """The entries of the group, with a lease that expires by the engine's own clock."""

    world: World
    revision: int = 1
    holder: LeaseHolder | None = None
    in_sync: InSyncSet | None = None
    expires_at: dict[str, float] = field(default_factory=dict)  # leases by token
    identities: dict[int, str] = field(default_factory=dict)
    reports: dict[int, MemberReport] = field(default_factory=dict)
    confirmed: ConfirmedNote | None = None
    successor: int = 0
    named_until: float = 0.0  # when the entry of the successor vanishes

    def view(self) -> GroupView:
        self.expire()
        identities, reports = dict(self.identities), dict(self.reports)
        return GroupView(
            self.revision,
            self.holder,
            self.in_sync,
            identities,
            reports,
            self.successor,
            confirmed=self.confirmed,
        )

    def note_confirmed(self, epoch: int, note: ConfirmedNote) -> GroupView:
        self.expire()
        if self.holder is not None and self.holder.epoch == epoch:
            self.revision += 1
            self.confirmed = note
        return self.view()

    def leave(self, epoch: int, successor: int) -> GroupView:
        """Delete the entry of the holder, and name its successor."""
        self.expire()
        if self.holder is not None and self.holder.epoch == epoch:
            self.revision += 1
            self.expires_at.pop(self.holder.token, None)
            self.holder, self.successor = None, successor
            self.named_until = self.world.now * self.world.engine_rate + TIMING.ttl_s
        return self.view()

    def backup(self) -> EngineBackup:
        self.expire()
        return EngineBackup(
            self.revision,
            self.holder,
            self.in_sync,
            dict(self.expires_at),
            dict(self.identities),
            dict(self.reports),
            self.confirmed,
        )

    def restore(self, backup: EngineBackup) -> None:
        """Go back to a backup. A lease that was alive then lasts its full time again."""
        self.revision, self.holder, self.in_sync = backup.revision, backup.holder, backup.in_sync
        self.identities, self.reports = dict(backup.identities), dict(backup.reports)
        self.confirmed = backup.confirmed
        self.expires_at, self.successor = {}, 0
        if backup.holder is not None:
            self.grant(backup.holder.token)

    def edit(self, members: set[int]) -> None:
        """Put other members into the in-sync set, as an operator with etcdctl does."""
        assert self.in_sync is not None
        self.revision += 1
        edited = frozenset(members)
        self.in_sync = replace(self.in_sync, members=edited, offset=0, revision=self.revision)

    def report(self, member: int, report: MemberReport | None) -> GroupView:
        self.revision += 1
        self.reports.pop(member, None)
        if report is not None:
            self.reports[member] = report
        return self.view()

    def claim(self, member: int, identity: str) -> GroupView:
        if member not in self.identities:
            self.revision += 1
            self.identities[member] = identity
        return self.view()

    def expire(self) -> None:
        now = self.world.now * self.world.engine_rate
        self.expires_at = {k: at for k, at in self.expires_at.items() if at > now}
        if self.holder is not None and self.holder.token not in self.expires_at:
            self.holder = None
            self.revision += 1
        if self.successor and self.named_until <= now:
            self.successor = 0
            self.revision += 1

    def grant(self, token: str) -> None:
        self.expires_at[token] = self.world.now * self.world.engine_rate + TIMING.ttl_s

    def campaign(
        self, candidate: Candidate, expected: InSyncSet | None, proposed: InSyncSet
    ) -> GroupView:
        self.expire()
        if (
            self.holder is None
            and self.in_sync == expected
            and candidate.token in self.expires_at  # a late request finds its lease gone
        ):
            self.revision += 1
            self.holder = LeaseHolder(
                candidate.member,
                candidate.address,
                candidate.ha_address,
                candidate.token,
                self.revision,
            )
            self.in_sync = replace(proposed, revision=self.revision)
            self.world.wins.append((self.world.now, self.revision, candidate.member))
        return self.view()

    def renew(self, token: str) -> bool:
        self.expire()
        if token not in self.expires_at:
            return False
        self.grant(token)
        return True

    def change_in_sync(self, change: SetChange) -> GroupView:
        self.expire()
        if (
            self.holder is not None
            and self.holder.epoch == change.epoch
            and self.in_sync == change.before
        ):
            self.revision += 1
            self.in_sync = replace(change.after, revision=self.revision)
        return self.view()

    def recover(self, expected: InSyncSet | None, decided: InSyncSet) -> GroupView:
        self.expire()
        if self.holder is None and self.in_sync == expected:
            self.revision += 1
            self.in_sync = replace(decided, revision=self.revision)
            self.reports = {}
        return self.view()
