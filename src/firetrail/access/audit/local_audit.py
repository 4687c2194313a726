"""The audit log of changes that a command makes in the folder of a stopped server.

They have a file of their own, because the server of the folder may be running after all: a name
server or proxy reads its users again, and writes its own files.
"""

import os
import pwd
from pathlib import Path

from firetrail.access.audit.audit_details import audit_details
from firetrail.access.audit.audit_log import DONE
from firetrail.access.audit.audit_trail import AuditTrail, EventKind
from firetrail.access.user_bodies import AclInfo, UserInfo
from firetrail.auth.caller import Caller
from firetrail.remoting.messages.typed_header import Header
from firetrail.remoting.wire.codes import RequestCode, request_name
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import System

LOCAL = "local.log"
"""The file in the folder of the audit log."""
SOURCE = "local command"


def record_local_change(
    system: System,
    folder: Path,
    code: RequestCode,
    header: Header,
    body: UserInfo | AclInfo | None = None,
) -> None:
    """Record a change as a server would record the corresponding request.

    Args:
        system: Files and clock to use.
        folder: The folder of the server.
        code: The code of the request.
        header: Its header.
        body: Its body. Default: None.
    """
    content = b"" if body is None else body.encode(standard=True)
    request = RemotingCommand(code, header.encode(), content)
    request.caller = Caller(None, "", is_checked=False)  # so that the body is looked at
    trail = AuditTrail(folder, LOCAL, AuditSettings(), system)
    trail.start()
    trail.put(
        EventKind.ADMINISTRATION,
        {
            "outcome": DONE,
            "source": SOURCE,
            "os_user": _os_user(),
            "request": request_name(code),
            **audit_details(request),
        },
    )
    trail.stop()


def _os_user() -> str:
    """Return the name of the account that runs the command; its number if it has no name."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
