"""New passwords of users: from a file, from the environment, or from the terminal.

An argument would be visible in the list of processes and in the history of the shell.
"""

import argparse
import os
import sys
from getpass import getpass

from firetrail.access.user_bodies import check_password
from firetrail.errors import ConfigError
from firetrail.remoting.connections.access import secret_content

VARIABLE = "FIRETRAIL_NEW_PASSWORD"
STANDARD_INPUT = "-"


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--password-file``."""
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="file with the password, which only its owner can read, or - for standard input "
        f"(default: ${VARIABLE}, or a prompt)",
    )


def new_password(file: str | None, name: str) -> str:
    """Return the new password of a user.

    Args:
        file: The file that contains it; None if it is in the environment, or to be asked for.
        name: The name of the user, for the prompt.

    Raises:
        ConfigError: There is no password, or it is not allowed.
    """
    return check_password(_given(file, name))


def _given(file: str | None, name: str) -> str:
    if file == STANDARD_INPUT:
        return sys.stdin.readline().rstrip("\r\n")
    if file is not None:
        return secret_content("--password-file", file).strip()
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    if not sys.stdin.isatty():
        remedy = f"give a file with --password-file, or set {VARIABLE}: there is no terminal to ask"
        raise ConfigError("password", "", remedy)
    password = getpass(f"New password of {name}: ")
    if getpass("The same again: ") != password:
        raise ConfigError("password", "", "the two are not the same; try again")
    return password
