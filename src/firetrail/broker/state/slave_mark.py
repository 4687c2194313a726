"""The mark of a store whose broker was last a slave.

A slave copies tables that may lag behind its log, and does not write the log itself. A master that
opens such a store therefore has to do the work of a promotion first: recover the tables and begin
an epoch, by which a former master is fenced. The mark is in the store's own folder, so this holds
for all ways to become a master: a command, an edit of ``broker.conf``, or a start after a crash
in the middle of a promotion.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.messages.typed_body import Body
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System

SLAVE_JSON = "firetrailSlave.json"


def full_name(config: BrokerConfig) -> str:
    """Return the name of a broker in notes: its cluster and its name, separated by ``/``."""
    return f"{config.cluster}/{config.name}"


@dataclass(frozen=True, slots=True)
class SlaveNotes(Body):
    """Notes in a store about the broker's time as a slave.

    Attributes:
        is_slave: Whether the broker was last a slave.
        master_role: ``brokerRole`` of the last master that it followed, or that it was itself;
            empty if it is not known.
        known_epoch: The largest epoch number that the broker learned as a slave. The epochs that it
            has copied may end earlier.
        has_controller: Whether the master that it last followed was in controller mode.
        followed: Full name of the broker whose log this store has; empty if it is not known. None
            for a master, whose log is its own, and in files of versions that did not save it.
        owner: Full name of the broker that has become the master with this store; empty if the
            store was never a slave's, or if it is not known.
        diverged: Why the log is not that of the master; empty if it is not known to differ.
    """

    is_slave: bool = False
    master_role: str = ""
    known_epoch: int = 0
    has_controller: bool = False
    followed: str | None = None
    diverged: str = ""
    owner: str = ""

    @property
    def log_of(self) -> str:
        """Full name of the broker whose log this store is known to have; empty if none."""
        return self.followed or self.owner

    def is_copy_of(self, name: str) -> bool:
        """Return whether the log is known to be that of a broker.

        A version that did not save the broker's name stored the role of a master only after it had
        compared the logs, and the name in the settings was that of the master.

        Args:
            name: Full name of the broker.
        """
        if self.diverged:
            return False
        is_old = self.is_slave and self.followed is None and self.master_role != ""
        return is_old or self.followed == name


class SlaveMark:
    """The file of the mark.

    Attributes:
        notes: Its content.
    """

    def __init__(self, system: System, folder: Path) -> None:
        """Read the file.

        Args:
            system: The operating system.
            folder: The folder of the store.

        Raises:
            StoreError: Neither the file nor its backup can be decoded.
        """
        self._file = ConfigFile(system, folder, SLAVE_JSON)
        self.notes = self._file.load(SlaveNotes)

    def set(self, *, known_epoch: int) -> None:
        """Note that the store is a slave's. The caller must have the store open."""
        self.save(
            replace(
                self.notes,
                is_slave=True,
                followed=self.notes.followed if self.notes.is_slave else "",
                known_epoch=max(self.notes.known_epoch, known_epoch),
            )
        )

    def clear(self, owner: str) -> None:
        """Note that the store is a master's: all work of the promotion is done.

        Args:
            owner: Full name of the master.
        """
        self.save(
            replace(
                self.notes,
                is_slave=False,
                has_controller=False,
                followed=None,
                diverged="",
                owner=owner if self.notes.is_slave else self.notes.owner,
            )
        )

    def learn_role(self, master_role: str, *, has_controller: bool = False) -> None:
        """Note the role of the master, and whether it is in controller mode."""
        self.save(
            replace(
                self.notes,
                master_role=master_role or self.notes.master_role,
                has_controller=has_controller,
            )
        )

    def learn_comparison(self, name: str, divergence: str) -> None:
        """Note the outcome of the comparison with a master's log.

        Args:
            name: Full name of the master.
            divergence: The reason why the logs differ; empty if the master's continues this one.
        """
        if not divergence:
            self.save(replace(self.notes, followed=name, diverged=""))
        elif not self.notes.diverged:  # its offsets may change with every comparison
            self.save(replace(self.notes, diverged=divergence))

    def rewound(self, known_epoch: int = 0) -> None:
        """Note that all records that the master lacks were removed from the log."""
        known = max(self.notes.known_epoch, known_epoch)
        self.save(replace(self.notes, diverged="", known_epoch=known))

    def save(self, notes: SlaveNotes) -> None:
        """Write the file durably; nothing is written if it has this content."""
        if notes != self.notes:
            self._file.save_both(notes.to_json())
            self.notes = notes
