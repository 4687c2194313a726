"""The program etcd of this machine, which decides elections in a local cluster."""

import os
import shutil
from pathlib import Path

from firetrail.errors import UnsupportedError

PROGRAM = "FIRETRAIL_ETCD"
"""The environment variable that names another program."""
MISSING = (
    "there is no etcd on this machine, which elects the master of a group; install it with 'apt "
    "install etcd-server' (Debian, Ubuntu) or 'dnf install etcd' (Fedora), or set "
    f"{PROGRAM} to the path of the program"
)


def etcd_program() -> str:
    """Return the path of the program.

    Raises:
        UnsupportedError: There is none. The message says how to get it.
    """
    found = os.environ.get(PROGRAM) or shutil.which("etcd")
    if not found:
        raise UnsupportedError(MISSING)
    return found


def etcd_command(program: str, folder: Path, log: Path, host: str, port: int) -> list[str]:
    """Return the command that runs one server for clients on the same machine.

    Args:
        program: The path of the program.
        folder: Its data.
        log: Its log.
        host: The address to listen on.
        port: The port for clients. The next one is for other servers of etcd.
    """
    client, peer = f"http://{host}:{port}", f"http://{host}:{port + 1}"
    return [
        *(program, "--name", "local", "--data-dir", str(folder)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"local={peer}"),
        *("--logger", "zap", "--log-level", "warn", "--log-outputs", str(log)),
    ]
