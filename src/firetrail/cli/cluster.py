"""What the commands that talk to a cluster have in common."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from firetrail.cli.command import Subparsers
from firetrail.cli.common import add_plain_parser
from firetrail.errors import FiretrailError

NAMESRV = "NAMESRV_ADDR"
"""The environment variable that RocketMQ's own tools use as well."""
DEFAULT_NAMESRV = "127.0.0.1:9876"

T = TypeVar("T")


class NotReachedError(FiretrailError):
    """A name server or a broker that is not there, or does not answer."""


def add_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand's parser with the address of a name server."""
    parser = add_plain_parser(subparsers, name, summary, description, examples)
    add_namesrv(parser)
    return parser


def add_namesrv(parser: argparse.ArgumentParser) -> None:
    """The address of a name server."""
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="ADDRESS",
        default=os.environ.get(NAMESRV, DEFAULT_NAMESRV),
        help=f"name servers, separated by ';' (default: {NAMESRV}, or {DEFAULT_NAMESRV})",
    )


def run(args: argparse.Namespace, work: Coroutine[Any, Any, T]) -> T:
    """Run it; who is not there or does not answer is named, with what to do."""
    try:
        return asyncio.run(work)
    except BrokenPipeError:  # who reads what is printed has left
        raise
    except (OSError, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        remedy = f"is a cluster running at {args.namesrv}? (--namesrv, or {NAMESRV})"
        raise NotReachedError(f"{reason}; {remedy}") from None
