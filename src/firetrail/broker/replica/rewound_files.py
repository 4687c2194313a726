"""Changes to the files of a broker whose log was rewound to that of a master."""

from pathlib import Path

from firetrail.broker.replica.saved_role import remove_role, saved_role
from firetrail.broker.state.slave_mark import SlaveMark
from firetrail.remoting.messages.replica_bodies import is_slave_role
from firetrail.system import System


def settle_rewound(system: System, folder: Path) -> str:
    """Let a closed store follow after its rewind: it has not diverged, and is no longer a master.

    Call this when the rewind is complete. After a crash in between, the store still counts as
    diverged or promoted, and the rewind can be repeated.

    Args:
        system: The operating system.
        folder: The folder of the store.

    Returns:
        The role of a master that the broker was given by command and that was removed; empty if
        there was none. The saved role of a slave stays.

    Raises:
        OSError: A file cannot be written.
        StoreError: A file and its backup cannot be decoded.
    """
    saved = saved_role(system, folder)
    # The epoch is kept in the mark before the file that has it is removed.
    SlaveMark(system, folder).rewound(saved.known_epoch if saved is not None else 0)
    if saved is None or is_slave_role(saved.role):
        return ""
    remove_role(system, folder)
    return saved.role
