"""The past of a group: which changes of its in-sync set led to the present one.

Every election and every change of the in-sync set is one *version*. Its id depends on the id of the
version before and on its own content, so an entry that was edited by hand has a wrong id. The last
ids are kept with the entry. A member that remembers the id of the last version that it has seen can
therefore tell whether the engine continues that version, or has lost it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from hashlib import sha256

HISTORY_MAX = 256
"""The ids that are kept. A member that was away for more versions cannot check the engine."""
OVERRULED_MAX = 64
"""The ids that decisions of operators leave. Each decision adds those of the members that were
asked. They do not age with the history: such a member is recognized whenever it comes back."""
EPOCH_STEP = 1000
"""Epoch numbers are congruent to the number of the member that begins them, modulo this. So two
members never begin the same epoch, even if they do not know of each other."""
_NONCE_BYTES, _ID_DIGITS = 4, 16


@dataclass(frozen=True, slots=True)
class LogDecision:
    """The decision of an operator which log is the group's.

    Attributes:
        overruled: The ids of the last versions of the members that were asked.
        asked: The numbers of these members.
        version: The largest version that any of the asked ones has seen.
        epoch: The largest epoch that any of them has seen.
    """

    overruled: frozenset[str] = frozenset()
    asked: frozenset[int] = frozenset()
    version: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The past of an in-sync set.

    Attributes:
        group: A random text that the group got when it was created. Empty in an entry of a release
            that kept no past.
        version: The number of versions so far.
        epoch: The number of the newest epoch of the log.
        history: The ids of the last versions, newest last.
        decided: The version at which an operator last decided which log is the group's; 0 if that
            never happened.
        overruled: The ids of the last versions of members that operators have asked, newest last.
        asked: The numbers of the members that were asked for the last decision. What others have
            seen of the time before it counts no more. Empty if that is not known.
    """

    group: str = ""
    version: int = 0
    epoch: int = 0
    history: tuple[str, ...] = ()
    decided: int = 0
    overruled: tuple[str, ...] = ()
    asked: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The id of the newest version; empty if there is none."""
        return self.history[-1] if self.history else ""

    def continues(self, version_id: str) -> bool:
        """Return whether a version is known to be one of this past, or to be overruled by it.

        Args:
            version_id: The id of the version.
        """
        return version_id in self.history or version_id in self.overruled

    def excludes(self, member: int, decided: int) -> bool:
        """Return whether an operator has decided without a member, which has not heard of it.

        Args:
            member: The number of the member.
            decided: The version of the last decision that it has seen.
        """
        return bool(self.asked) and member not in self.asked and decided < self.decided

    def continued(self, members: frozenset[int], offset: int, epoch: int = 0) -> Lineage:
        """Return the lineage of the next version.

        Args:
            members: The members of its in-sync set.
            offset: The offset of its in-sync set.
            epoch: The number of the epoch that begins with it. Default: 0, none.
        """
        following = replace(
            self,
            group=self.group or secrets.token_hex(_NONCE_BYTES),
            version=self.version + 1,
            epoch=max(self.epoch, epoch),
        )
        new = _id_of(secrets.token_hex(_NONCE_BYTES), following, self.id, members, offset)
        return replace(following, history=(*self.history, new)[-HISTORY_MAX:])

    def with_decision(self, decision: LogDecision) -> Lineage:
        """Return a lineage that a decision of the operator continues."""
        version = max(self.version, decision.version)
        known = [each for each in self.overruled if each not in decision.overruled]
        return replace(
            self,
            version=version,
            epoch=max(self.epoch, decision.epoch),
            decided=version + 1,
            overruled=(*known, *sorted(decision.overruled))[-OVERRULED_MAX:],
            asked=tuple(sorted(decision.asked)),
        )

    def is_genuine(self, members: frozenset[int], offset: int) -> bool:
        """Return whether a member of the group has written an entry with this lineage.

        Args:
            members: The members in the entry.
            offset: The offset in the entry.
        """
        before = self.history[-2] if len(self.history) > 1 else ""
        nonce = self.id[: 2 * _NONCE_BYTES]
        return self.id == _id_of(nonce, self, before, members, offset)


NO_PAST = Lineage()
"""The lineage of a group that does not exist yet, or of a release that kept none."""


def _id_of(nonce: str, own: Lineage, before: str, members: frozenset[int], offset: int) -> str:
    content = (own.group, own.version, own.epoch, own.decided, sorted(members), offset)
    decision = (own.overruled, own.asked) if own.overruled or own.asked else ()
    parts = (nonce, before, *content, *decision)
    return (nonce + sha256(repr(parts).encode()).hexdigest())[:_ID_DIGITS]


def next_epoch(member: int, known: int) -> int:
    """Return the number of the epoch that a member begins.

    Args:
        member: The number of the member.
        known: The largest number of an epoch that it has heard of.
    """
    return known + 1 + (member - known - 1) % EPOCH_STEP
