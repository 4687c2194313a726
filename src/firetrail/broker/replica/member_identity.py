"""The identity of a member of a group: a random text that stays with its store.

The consensus engine binds the number of a member to it. Two brokers with one number, and a broker
whose store was replaced by an empty one, are therefore noticed before they can be elected.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from firetrail.remoting.body import Body
from firetrail.settings.config_file import ConfigFile
from firetrail.system import System

MEMBER_JSON = "firetrailMember.json"


@dataclass(frozen=True, slots=True)
class MemberIdentity(Body):
    """The content of the file."""

    identity: str = ""


def member_identity(system: System, folder: Path) -> str:
    """Return the identity of a store; it gets one if it has none.

    Raises:
        OSError: The file cannot be written.
    """
    file = ConfigFile(system, folder, MEMBER_JSON)
    known = file.load(MemberIdentity).identity
    if known:
        return known
    created = MemberIdentity(secrets.token_hex(8))
    file.save(created.to_json())
    return created.identity
