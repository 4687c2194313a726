"""What the subcommands have in common: their arguments, and errors about topics and queues."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path

from firetrail.cli.command import Subparsers
from firetrail.errors import ConfigError, NoSuchError
from firetrail.format.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.config import StoreConfig
from firetrail.store.inspect.view import StoreView
from firetrail.system import allow_many_files

_NAMES_SHOWN = 8


def add_plain_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A subcommand's parser with the examples of its help."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_parser(
    subparsers: Subparsers,
    name: str,
    summary: str,
    description: str,
    examples: str,
    *,
    store: type[Path] | type[str] = Path,
) -> argparse.ArgumentParser:
    """A subcommand's parser with its STORE argument and the examples of its help."""
    parser = add_plain_parser(subparsers, name, summary, description, examples)
    parser.add_argument(
        "store", metavar="STORE", type=store, help="folder of the store, of RocketMQ or Firetrail"
    )
    return parser


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """The ``--json`` switch."""
    parser.add_argument("--json", action="store_true", help=what)


def add_delay_levels(parser: argparse.ArgumentParser) -> None:
    """The delay levels that the tags codes of delayed messages depend on."""
    parser.add_argument(
        "--delay-levels",
        metavar="LEVELS",
        type=_delay_levels,
        default=DelayLevels.parse(DEFAULT_DELAY_LEVELS),
        help=f"the broker's messageDelayLevel (default: {DEFAULT_DELAY_LEVELS!r})",
    )


def _delay_levels(text: str) -> DelayLevels:
    try:
        return DelayLevels.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def not_negative(text: str) -> int:
    """An argument that is an offset, a time or a number of things."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


not_negative.__name__ = "number"  # what argparse calls it in its errors


def positive(text: str) -> int:
    """An argument that is a number of things, of which there is at least one."""
    value = not_negative(text)
    if value == 0:
        raise ValueError
    return value


positive.__name__ = "number"


def open_view(path: Path, config: StoreConfig | None = None) -> StoreView:
    """The store, open for reading only."""
    allow_many_files()
    return StoreView.open(path, config)


def queues_of(view: StoreView, topic: str, queue_id: int | None) -> list[int]:
    """The queue ids that a command is about, or an error that says what there is."""
    ids = [number for name, number in view.queues.pairs() if name == topic]
    if not ids:
        raise NoSuchError(f"{view.root}: no topic {topic!r}; {_instead(topic, view)}")
    if queue_id is None:
        return ids
    if queue_id not in ids:
        raise NoSuchError(
            f"{view.root}: topic {topic!r} has no queue {queue_id}; it has {_listed(ids)}"
        )
    return [queue_id]


def _instead(topic: str, view: StoreView) -> str:
    topics = view.queues.topics()
    if not topics:
        return "the store has no topics"
    return meant(topic, topics) or f"there is {_listed(topics)}"


def meant(name: str, names: Iterable[str]) -> str:
    """A question for the names that are nearly this one; empty if none is."""
    known = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(known[found]) for found in near)}?" if near else ""


def _listed(things: list[str] | list[int]) -> str:
    shown = ", ".join(str(thing) for thing in things[:_NAMES_SHOWN])
    return (
        shown if len(things) <= _NAMES_SHOWN else f"{shown} and {len(things) - _NAMES_SHOWN} more"
    )
