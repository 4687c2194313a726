"""The texts of ``--help``: every command and every argument has one, in one style."""

import argparse
from collections.abc import Iterator

import pytest

from firetrail.cli.main import build_parser

COLUMNS_MAX = 100


def _commands(
    parser: argparse.ArgumentParser, summary: str
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield a parser and those of its subcommands, with the lines that list them."""
    yield parser, summary
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                yield from _commands(action.choices[listed.dest], listed.help or "")


COMMANDS = {found.prog: (found, summary) for found, summary in _commands(build_parser(), "run")}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_all_its_arguments_have_help(name: str) -> None:
    parser, summary = COMMANDS[name]
    assert summary and not summary.endswith(".")
    assert parser.description
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        label = f"{name}: {'/'.join(action.option_strings) or action.dest}"
        assert action.help, f"{label} has no help"
        assert not action.help.endswith("."), f"{label}: a fragment without a full stop"
        if action.option_strings and action.nargs != 0:
            assert action.metavar or action.choices, f"{label} has no metavar"


@pytest.mark.parametrize("name", COMMANDS)
def test_descriptions_and_examples_fit_a_terminal(name: str) -> None:
    parser, _ = COMMANDS[name]
    if parser.formatter_class is argparse.RawDescriptionHelpFormatter:
        for line in f"{parser.description}\n{parser.epilog}".splitlines():
            assert len(line) <= COLUMNS_MAX, line


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_not_abbreviated(name: str) -> None:
    assert not COMMANDS[name][0].allow_abbrev


@pytest.mark.parametrize(
    "arguments",
    [("broker", "data", "--inse"), ("proxy", "--user", "users"), ("user", "list", "--stor", ".")],
)
def test_an_abbreviated_option_is_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(arguments)
    assert "unrecognized arguments: --" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["follow", "status", "promote", "rewind"])
def test_actions_on_replicas_can_print_json(action: str) -> None:
    assert "--json" in COMMANDS[f"firetrail replica {action}"][0].format_help()
