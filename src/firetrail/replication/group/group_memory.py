"""The memory of a member: the state of its group that it has seen, kept in its store.

The consensus engine can lose its data, or be restored from an old backup. Its members then know
more of the group than the engine does. Each of them keeps in ``config/firetrailMember.json`` the
newest version of the in-sync set that it has seen, before it acts on it.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from firetrail.remoting.messages.typed_body import Body
from firetrail.replication.group.lineage import Lineage
from firetrail.settings.config_file import ConfigFile
from firetrail.system import NO_SPACE, System

_log = logging.getLogger(__name__)

MEMBER_JSON = "firetrailMember.json"
KEEPS_MEMORY = 2
"""The form of a file that says what the member has seen; earlier files have only the identity."""


@dataclass(frozen=True, slots=True)
class GroupMemory(Body):
    """The state of its group that a member has seen.

    Attributes:
        group: The text that the group got when it was created; empty if the member has never been
            in one.
        version: The newest version of the in-sync set that it has seen.
        epoch: The largest number of an epoch that it has heard of.
        history: The ids of the last versions, newest last.
        decided: The version at which an operator last decided; 0 if that never happened.
        in_sync: The members of the in-sync set.
        offset: The offset of the in-sync set.
        members: The members of the group.
        may_truncate: Whether an operator has decided that the log of another member is the group's,
            and this member has not followed since.
        overruled: The ids of versions over which operators have decided.
        decision_members: The members that were asked for the last decision.
        was_excluded: Whether this member was not asked, and has not followed since.
    """

    group: str = ""
    version: int = 0
    epoch: int = 0
    history: list[str] = field(default_factory=list)
    decided: int = 0
    in_sync: list[int] = field(default_factory=list)
    offset: int = 0
    members: list[int] = field(default_factory=list)
    may_truncate: bool = field(default=False, metadata={"wire": "mayCut"})
    overruled: list[str] = field(default_factory=list)
    decision_members: list[int] = field(default_factory=list, metadata={"wire": "asked"})
    was_excluded: bool = field(default=False, metadata={"wire": "leftOut"})

    @property
    def lineage(self) -> Lineage:
        """The past of the in-sync set."""
        return Lineage(
            group=self.group,
            version=self.version,
            epoch=self.epoch,
            history=tuple(self.history),
            decided=self.decided,
            overruled=tuple(self.overruled),
            asked=tuple(self.decision_members),
        )

    @property
    def last_id(self) -> str:
        """The id of the version; empty if there is none."""
        return self.history[-1] if self.history else ""


NOTHING_SEEN = GroupMemory()


@dataclass(frozen=True, slots=True)
class _Content(Body):
    """The content of the file.

    Attributes:
        identity: A random text that stays with the store of a replica. The consensus engine binds
            the number of a member to it. Two brokers with one number, and a broker whose store was
            replaced by an empty one, are therefore noticed before they can be elected. Masters
            count the copies of a message by it: A replica that has connected twice is one copy.
        form: The members that the file has.
        group: The state that the member has seen; None in a file of an earlier form.
    """

    identity: str = ""
    form: int = 1
    group: GroupMemory | None = None


def is_full_disk(error: Exception) -> bool:
    """Return whether an error says that there is no space on a disk."""
    return isinstance(error, OSError) and error.errno in NO_SPACE


@contextmanager
def full_disk_tolerated() -> Iterator[None]:
    """Go on if this member cannot keep what it has seen, because its disk is full.

    Giving the lease away needs no memory. The member acts on nothing that it has not kept.
    """
    try:
        yield
    except OSError as error:
        if not is_full_disk(error):
            raise
        _log.warning("the state of the group cannot be kept on disk: %s", error)


class MemberFile:
    """The file of a member. A store in use has one such object.

    Attributes:
        identity: The identity of the store.
        memory: What the member has seen of its group; None if it was a member under a release that
            did not keep it.
    """

    def __init__(self, system: System, folder: Path) -> None:
        """Read the file. Nothing is written before :meth:`create`.

        Args:
            system: The operating system.
            folder: The folder of the store.

        Raises:
            StoreError: Neither the file nor its backup can be decoded.
        """
        self._file = ConfigFile(system, folder, MEMBER_JSON)
        found = self._file.load(_Content)
        self.identity = found.identity
        self.memory = found.group
        if not found.identity or (found.form >= KEEPS_MEMORY and found.group is None):
            self.memory = NOTHING_SEEN

    def create(self) -> None:
        """Give the store an identity, if it has none. The caller must have the store open.

        Raises:
            OSError: The file cannot be written.
        """
        if not self.identity:
            self.identity = secrets.token_hex(8)
            self._save(NOTHING_SEEN)

    def remember(self, memory: GroupMemory) -> None:
        """Save what the member has seen, unless it is saved already.

        Raises:
            OSError: The file cannot be written.
        """
        if memory != self.memory:
            self._save(memory)

    def _save(self, memory: GroupMemory) -> None:
        content = _Content(self.identity, KEEPS_MEMORY, memory)
        self._file.save_both(content.to_json())
        self.memory = memory


def member_identity(system: System, folder: Path) -> str:
    """Return the identity of a store; it gets one if it has none.

    Raises:
        OSError: The file cannot be written.
        StoreError: Neither the file nor its backup can be decoded.
    """
    file = MemberFile(system, folder)
    file.create()
    return file.identity
