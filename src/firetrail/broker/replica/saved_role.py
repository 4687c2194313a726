"""The role that a broker was given while it ran, so that a restart keeps it.

A promotion, and the step-down of the previous master, are saved in ``config/firetrailRole.json``.
The file counts as long as ``broker.conf`` still has the role and the id that it had when the role
was changed. If they are edited afterwards, the file is removed.

A hand-over that is not finished is noted in the same file on both sides, so that a restart can
finish it or undo it (:mod:`firetrail.broker.replica.hand_over.unfinished_hand_over`).
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from firetrail.remoting.messages.typed_body import Body
from firetrail.settings.config_file import ConfigFile
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import System

ROLE_JSON = "firetrailRole.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandOverNote(Body):
    """A hand-over in which the master was asked to step down.

    Attributes:
        master: ``ip:port`` of the master.
        successor: ``ip:port`` that its successor had when it asked.
        epoch: The number of the epoch that begins with the successor.
        role: ``brokerRole`` that the master had.
        successor_role: ``brokerRole`` that the successor will have; only it knows.
    """

    master: str = ""
    successor: str = ""
    epoch: int = 0
    role: str = ""
    successor_role: str = ""


@dataclass(frozen=True, slots=True)
class SavedRole(Body):
    """A role and id, and those in ``broker.conf`` that they replace.

    ``master_address`` is the master of a slave that cannot learn it from a name server, and
    ``known_epoch`` the number of its master's epoch, which it may not have copied yet.

    ``taking_over`` is a hand-over in which this broker is the successor, and ``stepped_down`` one
    in which it was the master. They are None as soon as the outcome is known.
    """

    role: str = ""
    broker_id: int = 0
    master_address: str = ""
    configured_role: str = ""
    configured_id: int = 0
    known_epoch: int = 0
    taking_over: HandOverNote | None = None
    stepped_down: HandOverNote | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the role or the id differ from ``broker.conf``."""
        return (self.role, self.broker_id) != (self.configured_role, self.configured_id)

    @property
    def hand_over(self) -> HandOverNote | None:
        """The hand-over that is not finished; None if there is none."""
        return self.taking_over or self.stepped_down


def saved_role(system: System, folder: Path) -> SavedRole | None:
    """Return the role in the file of a store, whether it counts or not; None if there is none."""
    saved = ConfigFile(system, folder, ROLE_JSON).load(SavedRole)
    return saved if saved.role else None


def remove_role(system: System, folder: Path) -> None:
    """Remove the file of a closed store, so that ``broker.conf`` decides."""
    ConfigFile(system, folder, ROLE_JSON).remove()


class RoleFile:
    """The file of the saved role.

    Attributes:
        known_epoch: The largest number of an epoch that was loaded or saved; 0 if none was.
        saved: The role that was last loaded or saved; None if there is none that counts.
    """

    def __init__(
        self, system: System, folder: Path, configured_role: BrokerRole, configured_id: int
    ) -> None:
        """Open the file of a broker.

        Args:
            system: The operating system.
            folder: The folder of the store.
            configured_role: The role in ``broker.conf``.
            configured_id: The id in ``broker.conf``.
        """
        self._file = ConfigFile(system, folder, ROLE_JSON)
        self._configured = (configured_role.value, configured_id)
        self.known_epoch = 0
        self.saved: SavedRole | None = None

    def load(self) -> SavedRole | None:
        """Return the role that was saved; None if none was, or the settings have changed since."""
        saved = self._file.load(SavedRole)
        self.known_epoch = max(self.known_epoch, saved.known_epoch)
        self.saved = saved if self._counts(saved) else None
        return self.saved

    def discard_outdated(self) -> None:
        """Remove a role that no longer counts. The caller must have the store open."""
        saved = self._file.load(SavedRole)
        if saved.role and not self._counts(saved):
            _log.warning(
                "%s is removed, and this broker is %s with id %d, as in its settings: the file "
                "replaced %s with id %d, but the settings were changed since then",
                self._file.path,
                *self._configured,
                saved.configured_role,
                saved.configured_id,
            )
            self._file.remove()

    def _counts(self, saved: SavedRole) -> bool:
        configured = (saved.configured_role, saved.configured_id)
        return bool(saved.role) and configured == self._configured

    def save(self, saved: SavedRole | None) -> None:
        """Save a role durably, or remove the file."""
        if saved is not None:
            self.known_epoch = max(self.known_epoch, saved.known_epoch)
            self._file.save_both(saved.to_json())
        else:
            self._file.remove()
        self.saved = saved

    def changed(
        self,
        role: BrokerRole,
        broker_id: int,
        master_address: str,
        epoch: int,
        stepped_down: HandOverNote | None = None,
    ) -> SavedRole:
        """Return a role to save, together with the present values in ``broker.conf``."""
        return SavedRole(
            role.value,
            broker_id,
            master_address,
            *self._configured,
            epoch,
            stepped_down=stepped_down,
        )

    def begin_hand_over(self, broker_id: int, note: HandOverNote) -> None:
        """Note that this slave takes over. It must be saved before the master is asked to."""
        saved = self.saved or self.changed(BrokerRole.SLAVE, broker_id, "", 0)
        known = max(saved.known_epoch, note.epoch)
        self.save(replace(saved, taking_over=note, stepped_down=None, known_epoch=known))

    def end_hand_over(self) -> None:
        """Note that the outcome of a hand-over is known."""
        if self.saved is not None and self.saved.hand_over is not None:
            self.save(replace(self.saved, taking_over=None, stepped_down=None))
