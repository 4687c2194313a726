"""What the commands that talk to a cluster have in common."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from firetrail.cli.command import Subparsers
from firetrail.cli.common import add_plain_parser, meant
from firetrail.cli.output import say
from firetrail.client import Admin, NoRouteYetError, ResponseCode
from firetrail.errors import NoSuchError, NotReachedError, RequestError

NAMESRV = "NAMESRV_ADDR"
"""The environment variable that RocketMQ's own tools use as well."""
DEFAULT_NAMESRV = "127.0.0.1:9876"
_AGAIN_S = 1.0

T = TypeVar("T")


def add_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand's parser with the address of a name server."""
    parser = add_plain_parser(subparsers, name, summary, description, examples)
    add_namesrv(parser)
    return parser


def add_action(
    actions: Subparsers, name: str, summary: str, argument: str | None = None
) -> argparse.ArgumentParser:
    """One of a subcommand's actions; it takes the options of the subcommand behind it as well."""
    action = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    if argument is not None:
        action.add_argument(argument, metavar=argument.upper())
    add_namesrv(action, default=argparse.SUPPRESS)
    action.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="JSON instead of tables"
    )
    return action


def add_namesrv(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The address of a name server."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="ADDRESS",
        default=default or os.environ.get(NAMESRV, DEFAULT_NAMESRV),
        help=f"name servers, separated by ';' (default: {NAMESRV}, or {DEFAULT_NAMESRV})",
    )


def run(args: argparse.Namespace, work: Coroutine[Any, Any, T]) -> T:
    """Run it; who or what is not there is named, with what to do."""
    try:
        return asyncio.run(work)
    except BrokenPipeError:  # who reads what is printed has left
        raise
    except OSError as error:
        reason = str(error) or "no answer in time"
        remedy = f"is a cluster running at {args.namesrv}? (--namesrv, or {NAMESRV})"
        raise NotReachedError(f"{reason}; {remedy}") from None
    except RequestError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST or isinstance(error, NoRouteYetError):
            raise
        names = asyncio.run(_topics(args.namesrv))
        if args.topic in names:
            raise
        instead = meant(args.topic, names) or "firetrail topic list says which there are"
        raise NoSuchError(f"{args.namesrv}: no topic {args.topic!r}; {instead}") from None


async def _topics(namesrv: str) -> list[str]:
    """The names of all topics, or none if the name server does not tell them."""
    with suppress(RequestError):
        async with Admin(namesrv) as admin:
            return await admin.topics()
    return []


async def check_group(admin: Admin, namesrv: str, group: str) -> None:
    """NoSuchError if no broker knows a group: its name may be misspelt."""
    names = await admin.groups()
    if group not in names:
        instead = meant(group, names) or "firetrail group list says which there are"
        raise NoSuchError(f"{namesrv}: no group {group!r}; {instead}")


class Outages:
    """Tells once who cannot be reached while a live view goes on, and once that they can again."""

    def __init__(self) -> None:
        self._lost: set[str] = set()

    async def wait(self, who: str, error: OSError) -> None:
        """They cannot be reached: wait a little before the next attempt."""
        if who not in self._lost:
            self._lost.add(who)
            say(f"{str(error) or f'{who}: no answer in time'}; trying again until Ctrl-C")
        await asyncio.sleep(_AGAIN_S)

    def over(self, who: str) -> None:
        """They answer."""
        if who in self._lost:
            self._lost.remove(who)
            say(f"{who} is there again")
