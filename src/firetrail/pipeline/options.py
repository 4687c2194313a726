"""The reader of options, for the source and the sink: names, kinds of values, and errors.

Spark passes the names of options in lower case; errors show them as they are documented. The kinds
of values are those of settings (:mod:`firetrail.settings.settings_table`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from firetrail.errors import ConfigError, FiretrailError
from firetrail.format.values.integers import INT64_MAX
from firetrail.settings.settings_table import HIDDEN, Kind, Text, Whole
from firetrail.text import did_you_mean

GROUP = "FIRETRAIL_SPARK"
"""Group under which brokers see the pipeline; it has no consumers of its own."""
RETRY_MS = 120_000
"""Default of ``retryTimeoutMs``; Kafka's producers have the same as ``delivery.timeout.ms``."""
_SECRET_WORDS = ("secret", "password", "token")


@dataclass(frozen=True, slots=True)
class Parsed(Kind[Any]):
    """A value that a function returns for its text; it raises an error for a wrong one."""

    function: Callable[[str], Any]
    form: str

    @property
    def allowed(self) -> str:
        return self.form

    def parse(self, text: str) -> Any:
        try:
            return self.function(text)
        except FiretrailError:
            raise
        except (ValueError, KeyError, TypeError, re.error) as error:
            raise self.refusal() from error

    def check(self, value: Any) -> Any:
        return value


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas; raise ValueError for an empty one."""
    return each_once(text.split(","))


def each_once(names: Iterable[str], form: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return names without the spaces around them; one that is repeated counts once.

    Args:
        names: The names.
        form: The form in which two of them are compared. Default: as they are.

    Raises:
        ValueError: A name is empty, or there is none.
    """
    found: dict[str, str] = {}
    for name in map(str.strip, names):
        if not name:
            raise ValueError
        found.setdefault(form(name), name)
    if not found:
        raise ValueError
    return tuple(found.values())


def some_text(form: str) -> Text:
    """Return the kind of a text that is not empty.

    Args:
        form: What it is, to follow "must be".
    """
    return Text("(?s).+", form)


def any_text(form: str) -> Text:
    """Return the kind of a text that may be empty, which means that the option is not given.

    Args:
        form: What it is.
    """
    return Text("(?s).*", form)


@dataclass(frozen=True, slots=True)
class Option:
    """The name of an option, the field that it sets, and the kind of its value."""

    name: str
    target: str
    kind: Kind[Any]

    def parse(self, text: str) -> Any:
        """Return the value; raise ConfigError, with what is allowed, for a wrong one."""
        try:
            return self.kind.check(self.kind.parse(text))
        except FiretrailError:
            raise
        except ValueError as error:
            raise ConfigError(self.name, text, str(error)) from error


NAMESRV = Option("namesrv", "namesrv", some_text("HOST:PORT of a name server"))
RETRY = Option("retryTimeoutMs", "retry_ms", Whole(0, INT64_MAX, "ms"))


class OptionTable:
    """The options of a source or sink.

    Args:
        options: Those that users set, which errors list.
        internal: Those that Spark and the jobs set. Default: none.
    """

    def __init__(self, options: Iterable[Option], internal: Iterable[Option] = ()) -> None:
        self._listed = [option.name for option in options]
        self._by_key = {option.name.lower(): option for option in (*options, *internal)}

    def __getitem__(self, name: str) -> Option:
        return self._by_key[name.lower()]

    def named(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return options by their documented names; raise ConfigError for an unknown one."""
        found = {}
        for key, text in given.items():
            option = self._by_key.get(key.lower())
            if option is None:
                hint, names = did_you_mean(key, self._listed), ", ".join(self._listed)
                reason = f"no such option{hint}; the options are {names}"
                raise ConfigError(key, _masked(key, text), reason)
            found[option.name] = text
        return found

    def values(self, named: Mapping[str, str]) -> dict[str, Any]:
        """Return the values by the fields that they set; raise ConfigError for a wrong one."""
        options = ((self[name], text) for name, text in named.items())
        return {option.target: option.parse(text) for option, text in options}


def _masked(name: str, value: str) -> str:
    """Return the value of an unknown option for an error, unless it may be a secret."""
    return HIDDEN if any(word in name.lower() for word in _SECRET_WORDS) else value
