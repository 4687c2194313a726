"""Arguments that subcommands share, and errors about missing topics and queues."""

import argparse
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from firetrail.cli.subcommand import Subparsers
from firetrail.errors import ConfigError, NoSuchError
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.format.values.integers import number_in, parse_whole
from firetrail.store.inspect.view import StoreView
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import allow_many_files
from firetrail.text import did_you_mean, some_of


def add_plain_parser(
    subparsers: Subparsers, name: str, summary: str, description: str, examples: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand's parser, with examples, if there are any, at the end of its help."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}" if examples else None,
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
    """Add a subcommand's parser, with a STORE argument and examples at the end of its help."""
    parser = add_plain_parser(subparsers, name, summary, description, examples)
    parser.add_argument(
        "store", metavar="STORE", type=store, help="folder of a RocketMQ or Firetrail store"
    )
    return parser


def add_actions(parser: argparse.ArgumentParser, module: str, title: str, metavar: str) -> None:
    """Add the subcommands of a subcommand: the modules whose names begin with ``module_``.

    Each has a function ``add(actions)``, which adds a parser with its own ``run``.
    """
    actions = parser.add_subparsers(title=title, metavar=metavar)
    for name in action_names(module):
        import_module(f"{module}_{name.replace('-', '_')}").add(actions)
    parser.set_defaults(group=parser)


def action_names(module: str) -> list[str]:
    """Return the names of the modules that begin with ``module_``, without that beginning.

    A hyphen in the name of an action is an underscore in that of its module.
    """
    folder, _, name = module.rpartition(".")
    names = (found.name for found in iter_modules(import_module(folder).__path__))
    found = (each.removeprefix(f"{name}_") for each in names if each.startswith(f"{name}_"))
    return sorted(action.replace("_", "-") for action in found)


def add_json(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the ``--json`` switch."""
    parser.add_argument("--json", action="store_true", help=help_text)


def add_delay_levels(parser: argparse.ArgumentParser) -> None:
    """Add ``--delay-levels``, on which the tags codes of delayed messages depend."""
    parser.add_argument(
        "--delay-levels",
        metavar="LEVELS",
        type=_delay_levels,
        default=DelayLevels.parse(DEFAULT_DELAY_LEVELS),
        help=f"messageDelayLevel of the broker (default: {DEFAULT_DELAY_LEVELS!r})",
    )


def _delay_levels(text: str) -> DelayLevels:
    try:
        return DelayLevels.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class KeyValues(argparse.Action):
    """The action of an argument KEY=VALUE, which may be repeated with other keys: a dict."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add what was given; a key that is given twice is a usage error."""
        found = dict(getattr(namespace, self.dest) or {})
        for text in [values] if isinstance(values, str) else values or ():
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise argparse.ArgumentError(self, f"{text!r} is not {self.metavar}")
            if key in found:
                raise argparse.ArgumentError(self, f"{key} is given twice")
            found[key] = value
        setattr(namespace, self.dest, found)


def not_negative(text: str) -> int:
    """Parse an argument that is an offset, a time or a count."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Parse an argument that is a count of at least 1."""
    return _at_least(1, text)


def moment(text: str) -> int:
    """Parse a local time in the form of ISO 8601, or ms since 1970; return ms since 1970."""
    if (ms := number_in(text, 0)) is not None:
        return ms
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        allowed = "a time such as 2026-11-15T09:30:00, or ms since 1970"
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None


def _at_least(least: int, text: str) -> int:
    try:
        return parse_whole(text, least)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def open_view(path: Path, config: StoreConfig | None = None) -> StoreView:
    """Open a store read-only."""
    allow_many_files()
    return StoreView.open(path, config)


def queues_of(view: StoreView, topic: str, queue_id: int | None) -> list[int]:
    """Return the selected queue ids of a topic; NoSuchError lists the existing ones."""
    ids = [number for name, number in view.queues.pairs() if name == topic]
    if not ids:
        raise NoSuchError(f"{view.root}: no topic {topic!r}{_alternatives(topic, view)}")
    if queue_id is None:
        return ids
    if queue_id not in ids:
        raise NoSuchError(
            f"{view.root}: topic {topic!r} has no queue {queue_id}; it has {some_of(ids)}"
        )
    return [queue_id]


def _alternatives(topic: str, view: StoreView) -> str:
    topics = view.queues.topics()
    if not topics:
        return "; the store has no topics"
    return did_you_mean(topic, topics) or f"; the store has {some_of(topics)}"
