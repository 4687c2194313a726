"""Arguments and errors that the commands for a running cluster share."""

import argparse
import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from firetrail.cli.common import add_plain_parser
from firetrail.cli.output import say
from firetrail.cli.subcommand import Subparsers
from firetrail.client import Admin, NoRouteYetError, ResponseCode
from firetrail.errors import NoSuchError, NotReachedError, NotRocketMQError, RequestError, TlsError
from firetrail.remoting.connections.access import TLS_CA, Access
from firetrail.text import did_you_mean

NAMESRV = "NAMESRV_ADDR"
"""The environment variable with the addresses of name servers, as RocketMQ's tools have it."""
DEFAULT_NAMESRV = "127.0.0.1:9876"
_RETRY_PAUSE_S = 1.0

T = TypeVar("T")


def add_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a subcommand's parser, with the ``--namesrv`` option."""
    parser = add_plain_parser(subparsers, name, summary, description, examples)
    add_namesrv(parser)
    return parser


def add_action(
    actions: Subparsers, name: str, summary: str, argument: str | None = None
) -> argparse.ArgumentParser:
    """Add an action of a subcommand; it accepts the options of the subcommand as well."""
    action = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    if argument is not None:
        action.add_argument(argument, metavar=argument.upper(), help=f"name of the {argument}")
    add_namesrv(action, default=argparse.SUPPRESS)
    action.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print JSON instead of a table",
    )
    return action


def add_namesrv(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the ``--namesrv`` option."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="ADDRESSES",
        default=default or os.environ.get(NAMESRV, DEFAULT_NAMESRV),
        help="HOST:PORT of the name servers, separated by ';' "
        f"(default: ${NAMESRV}, or {DEFAULT_NAMESRV})",
    )


def run(args: argparse.Namespace, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; turn errors about servers and topics into errors with a remedy."""
    try:
        return asyncio.run(work)
    except BrokenPipeError:  # the reader of standard output exited, not a server
        raise
    except (NotRocketMQError, TlsError):  # a server runs there, and the error says what is wrong
        raise
    except OSError as error:
        reason = str(error) or "no answer in time"
        remedy = f"is a cluster running at {args.namesrv}? (--namesrv, or {NAMESRV})"
        is_lost = isinstance(error.__cause__ or error, ConnectionResetError)
        if is_lost and Access.from_environment().tls is None:
            remedy = f"if the server requires TLS, set {TLS_CA}; {remedy}"
        raise NotReachedError(f"{reason}; {remedy}") from None
    except RequestError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST or isinstance(error, NoRouteYetError):
            raise
        names = asyncio.run(_topics(args.namesrv))
        if args.topic in names:
            raise
        hint = did_you_mean(args.topic, names) or "; 'firetrail topic list' lists the topics"
        raise NoSuchError(f"{args.namesrv}: no topic {args.topic!r}{hint}") from None


async def _topics(namesrv: str) -> list[str]:
    """Return the names of all topics; none if the name server refuses to list them."""
    with suppress(RequestError):
        async with Admin(namesrv) as admin:
            return await admin.topics()
    return []


async def check_group(admin: Admin, namesrv: str, group: str) -> None:
    """Raise NoSuchError if no broker knows the group: its name may be misspelt."""
    names = await admin.groups()
    if group not in names:
        hint = did_you_mean(group, names) or "; 'firetrail group list' lists the groups"
        raise NoSuchError(f"{namesrv}: no group {group!r}{hint}")


class Outages:
    """Reports once that a server became unreachable, and once that it answers again."""

    def __init__(self) -> None:
        self._lost: set[str] = set()

    async def wait(self, server: str, error: OSError) -> None:
        """Report that a server cannot be reached, and wait before the next attempt."""
        if server not in self._lost:
            self._lost.add(server)
            say(f"{str(error) or f'{server}: no answer in time'}; retrying until Ctrl-C")
        await asyncio.sleep(_RETRY_PAUSE_S)

    def over(self, server: str) -> None:
        """Report that a server answers, if it did not before."""
        if server in self._lost:
            self._lost.remove(server)
            say(f"{server} is reachable again")
