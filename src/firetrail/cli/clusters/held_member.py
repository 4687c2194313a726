"""A member of a cluster on this machine that must not be started, because it is being replaced.

The file ``held`` in its folder is locked by the process that replaces the member. The lock ends
with the process, so a replacement that was killed keeps nobody from starting the member. If its
store was moved aside before, the replacement is finished first: nothing is lost by that, because
the group no longer counted on the member.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from firetrail.broker.replica.replacement import Replacement
from firetrail.cli.clusters.local_cluster import LocalMember
from firetrail.cli.output import say
from firetrail.errors import FiretrailError
from firetrail.system import SYSTEM


@contextmanager
def held(member: LocalMember) -> Iterator[None]:
    """Keep a member from being started.

    Raises:
        FiretrailError: Another process replaces the member.
        OSError: The file cannot be written.
    """
    files = SYSTEM.files
    descriptor = files.open(member.held, writable=True, create=True)
    try:
        if not files.lock(descriptor):
            raise FiretrailError(
                f"member {member.number} is being replaced already, by process {member.replacer}"
            )
        yield
        files.remove(member.held)
    finally:
        files.close(descriptor)


def may_start(member: LocalMember) -> bool:
    """Return whether a member may be started; finish a replacement that was killed."""
    if not member.held.exists():
        return True
    if member.replacer is not None:
        return False
    try:
        if not member.store.exists():
            with closing(Replacement(SYSTEM, member.settings.broker, member.store)) as replacement:
                replacement.run()
            say(f"the replacement of member {member.number} was interrupted, and is finished")
        with suppress(FileNotFoundError):  # the replacement has just ended
            SYSTEM.files.remove(member.held)
    except (FiretrailError, OSError) as error:
        say(f"the replacement of member {member.number} cannot be finished, will retry: {error}")
        return False
    return True
