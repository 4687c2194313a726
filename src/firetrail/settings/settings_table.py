"""The building blocks of a settings table: kinds of value, groups, and the settings themselves.

A dataclass becomes a table if each field has a default that a :class:`Group` creates::

    FLUSH = Group("Flush", "When the log reaches the disk.")

    @dataclass(frozen=True, slots=True)
    class Config:
        interval_ms: int = FLUSH(500, "flushInterval", Whole(1, unit="ms"), "Pause between …")

The kind parses text, checks a value given from Python, and describes what is allowed.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from firetrail.errors import ConfigError, FormatError, WrongTypeError
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import Host, format_host, parse_host
from firetrail.format.values.integers import INT32_MAX, INT64_MAX, number_in, parse_whole
from firetrail.format.values.truths import truth_in, truth_text

FOLDER_SEPARATOR = ","
"""Between the folders of one value, as RocketMQ's MULTI_PATH_SPLITTER."""

HIDDEN = "(hidden)"
"""Shown in place of a secret."""

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

_FRACTION = re.compile(r"[0-9]*\.[0-9]+")
_STEPS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "bytes": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")),
    "ms": ((3_600_000, "h"), (60_000, "min"), (1_000, "s")),
}
"""Larger units, used to show a value that is a whole number of them."""


class Kind(Generic[T]):
    """A kind of value. ``parse`` and ``check`` raise ValueError with the reason as its text."""

    is_secret: ClassVar[bool] = False
    """Whether error messages must not show a value."""

    @property
    def allowed(self) -> str:
        """A description of valid values, to follow "must be"."""
        raise NotImplementedError

    @property
    def restricted(self) -> bool:
        """Whether the reference page should show ``allowed`` besides the default."""
        return True

    def parse(self, text: str) -> T:
        """Return the value that ``text`` denotes, not checked yet."""
        raise NotImplementedError

    def parse_key(self, key: str, text: str, current: T) -> T:
        """Return the value after ``key`` is set to ``text``.

        A kind with several keys keeps the parts that belong to its other keys.
        """
        return self.parse(text)

    def tolerate(self, value: T) -> T:
        """Return the value as RocketMQ corrects it when it reads a file."""
        return value

    def check(self, value: T) -> T:
        """Return the value in its normal form."""
        raise NotImplementedError

    def show(self, value: T) -> str:
        """Return the value as text for people."""
        return str(value)

    def refusal(self) -> ValueError:
        return ValueError(f"must be {self.allowed}")


@dataclass(frozen=True, slots=True)
class Whole(Kind[int]):
    """A whole number in the range of a Java ``int``, rounded up to a multiple of ``step``.

    With ``most=INT64_MAX`` it is one in the range of a ``long``.
    """

    least: int
    most: int = INT32_MAX
    unit: str = ""
    step: int = 1

    @property
    def allowed(self) -> str:
        unit = self.unit and f" of {self.unit}"
        if self.most >= INT64_MAX:
            return f"a whole number{unit}, at least {self.least}"
        rounded = f", rounded up to a multiple of {self.step}" if self.step > 1 else ""
        return f"a whole number{unit} from {self.least} to {self.most}{rounded}"

    @property
    def restricted(self) -> bool:
        return False

    def parse(self, text: str) -> int:
        number = number_in(text)
        if number is None:
            raise self.refusal()
        return number

    def check(self, value: int) -> int:
        if type(value) is not int or value < self.least:
            raise self.refusal()
        rounded = -(-value // self.step) * self.step
        if rounded > self.most:
            raise self.refusal()
        return rounded

    def show(self, value: int) -> str:
        for size, name in _STEPS.get(self.unit, ()):
            if value and value % size == 0:
                return f"{value // size} {name}"
        return f"{value:,} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Port(Whole):
    """A port; 0 picks a free one."""

    least: int = 0
    most: int = 65535

    def show(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Flag(Kind[bool]):
    """``true`` or ``false``. Java treats any other text as false; here it is an error."""

    @property
    def allowed(self) -> str:
        return "true or false"

    @property
    def restricted(self) -> bool:
        return False

    def parse(self, text: str) -> bool:
        value = truth_in(text)
        if value is None:
            raise self.refusal()
        return value

    def check(self, value: bool) -> bool:
        if type(value) is not bool:
            raise self.refusal()
        return value

    def show(self, value: bool) -> str:
        return truth_text(value)


@dataclass(frozen=True, slots=True)
class Text(Kind[str]):
    """A line of text that fully matches ``pattern``, which ``form`` describes."""

    pattern: str
    form: str

    @property
    def allowed(self) -> str:
        return self.form

    def parse(self, text: str) -> str:
        return text

    def check(self, value: str) -> str:
        if type(value) is not str or re.fullmatch(self.pattern, value) is None:
            raise self.refusal()
        return value


@dataclass(frozen=True, slots=True)
class OneOf(Kind[E]):
    """A member of an enum whose values are RocketMQ's names."""

    choices: type[E]

    @property
    def allowed(self) -> str:
        return _any_of(choice.value for choice in self.choices)

    def parse(self, text: str) -> E:
        for choice in self.choices:
            if choice.value.upper() == text.upper():
                return choice
        raise self.refusal()

    def check(self, value: E) -> E:
        if not isinstance(value, self.choices):
            raise ValueError(f"must be {_any_of(map(str, self.choices))}")
        return value

    def show(self, value: E) -> str:
        return str(value.value)


def _any_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@dataclass(frozen=True, slots=True)
class Ratio(Kind[float]):
    """A fraction. Files give it as whole percents (``75``) or with a decimal point (``0.75``)."""

    least: float = 0.0
    most: float = 1.0

    @property
    def allowed(self) -> str:
        return f"a fraction from {self.least:.2f} to {self.most:.2f}, or whole percents in a file"

    def parse(self, text: str) -> float:
        percents = number_in(text)
        if percents is not None:
            return percents / 100
        if _FRACTION.fullmatch(text):
            return float(text)
        raise self.refusal()

    def tolerate(self, value: float) -> float:
        return min(max(value, self.least), self.most)

    def check(self, value: float) -> float:
        if type(value) not in (int, float) or not self.least <= value <= self.most:
            raise self.refusal()
        return float(value)

    def show(self, value: float) -> str:
        return f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Hours(Kind[tuple[int, ...]]):
    """Hours of the local day, separated by ``;`` in a file."""

    @property
    def allowed(self) -> str:
        return "hours from 0 to 23, separated by ';' in a file"

    def parse(self, text: str) -> tuple[int, ...]:
        words = [word.strip() for word in text.split(";") if word.strip()]
        try:
            return tuple(sorted({parse_whole(word) for word in words}))
        except ValueError:
            raise self.refusal() from None

    def check(self, value: tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(value, tuple) or not all(type(hour) is int for hour in value):
            raise self.refusal()
        if not all(0 <= hour <= 23 for hour in value):
            raise self.refusal()
        return tuple(sorted(set(value)))

    def show(self, value: tuple[int, ...]) -> str:
        return ";".join(f"{hour:02}" for hour in value)


@dataclass(frozen=True, slots=True)
class Folders(Kind[tuple[str, ...]]):
    """Folders, separated by ``,`` in a file."""

    @property
    def allowed(self) -> str:
        return "folders, separated by ',' in a file"

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in text.split(FOLDER_SEPARATOR) if word.strip())

    def check(self, value: tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(value, tuple) or not all(type(folder) is str for folder in value):
            raise self.refusal()
        if any(not folder or FOLDER_SEPARATOR in folder or "\n" in folder for folder in value):
            raise self.refusal()
        return value

    def show(self, value: tuple[str, ...]) -> str:
        return FOLDER_SEPARATOR.join(value)


@dataclass(frozen=True, slots=True)
class Delays(Kind[DelayLevels]):
    """The delays of the delay levels, level 1 first."""

    @property
    def allowed(self) -> str:
        return "delays with a unit s, m, h or d, separated by spaces"

    def parse(self, text: str) -> DelayLevels:
        try:
            return DelayLevels.parse(text)
        except ConfigError as error:
            raise ValueError(error.allowed) from None

    def check(self, value: DelayLevels) -> DelayLevels:
        if not isinstance(value, DelayLevels):
            raise ValueError("must be a DelayLevels, such as DelayLevels.parse('1s 5s 10s')")
        return value

    def show(self, value: DelayLevels) -> str:
        units = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
        return " ".join(
            next(f"{wait // size}{unit}" for unit, size in units.items() if wait % size == 0)
            for wait in value.waits_ms
        )


@dataclass(frozen=True, slots=True)
class Address(Kind[Host]):
    """An IP address and a port, which have separate keys in a file."""

    port_key: str

    @property
    def allowed(self) -> str:
        return "a numeric IPv4 or IPv6 address and a port from 0 to 65535"

    def parse(self, text: str) -> Host:
        try:
            return parse_host(text)
        except FormatError as error:
            raise ValueError(error.detail) from None

    def parse_key(self, key: str, text: str, current: Host) -> Host:
        port = Port()
        if key == self.port_key:
            return current._replace(port=port.check(port.parse(text)))
        return self.check(current._replace(ip=text))

    def check(self, value: Host) -> Host:
        if not isinstance(value, Host):
            raise ValueError("must be a Host(ip, port)")
        return self.parse(format_host(value))


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that belong together: a section of the reference page."""

    title: str
    intro: str

    def __call__(self, default: T, keys: str, kind: Kind[T], doc: str) -> T:
        """Return a dataclass field, typed as its value.

        ``keys`` are the names in ``broker.conf``, separated by spaces; empty for a setting that
        RocketMQ does not have. If a file has several of them, the first one here takes precedence,
        so older spellings come last.
        """
        return self._field(default, keys, kind, doc, live=False)

    def live(self, default: T, keys: str, kind: Kind[T], doc: str) -> T:
        """Return the same for a setting that can be changed while its owner runs."""
        return self._field(default, keys, kind, doc, live=True)

    def _field(self, default: T, keys: str, kind: Kind[T], doc: str, *, live: bool) -> T:
        line = {"group": self, "keys": tuple(keys.split()), "kind": kind, "doc": doc, "live": live}
        field: T = dataclasses.field(default=default, metadata=line)
        return field


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: one line of the table."""

    name: str
    default: Any
    group: Group
    keys: tuple[str, ...]
    kind: Kind[Any]
    doc: str
    live: bool = False

    def checked(self, value: Any) -> Any:
        """Return ``value`` in its normal form, or raise ConfigError."""
        try:
            return self.kind.check(value)
        except ValueError as error:
            kind = ConfigError if self._has_type_of(value) else WrongTypeError
            raise kind(self.name, self.shown(value), str(error)) from None

    def shown(self, value: Any) -> Any:
        """Return a value for an error message, which must not show a secret."""
        return HIDDEN if self.kind.is_secret else value

    def _has_type_of(self, value: object) -> bool:
        """Return whether a value has the type of the default; a whole number is a fraction too."""
        wanted = type(self.default)
        if isinstance(value, bool) or wanted is bool:
            return type(value) is wanted
        return isinstance(value, wanted) or (wanted is float and isinstance(value, int))

    @property
    def key(self) -> str:
        """The key to write to a file: RocketMQ's, if it has this setting."""
        return self.keys[0] if self.keys else self.name

    def written(self, value: Any) -> str:
        """Return the value as it is written to a file: numbers have no units."""
        return str(value) if type(value) in (int, float, str) else self.kind.show(value)

    @property
    def names_in_file(self) -> tuple[str, ...]:
        """Its names in a file; a later one overrides an earlier one."""
        return (*reversed(self.keys), self.name)

    def parse(self, name: str, text: str, current: Any) -> Any:
        """Return the value after ``name`` (in ``names_in_file``) is set to ``text``, unchecked."""
        if name == self.name:
            return self.kind.parse(text)
        return self.kind.parse_key(name, text, current)


def table(config: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in order, and check every default."""
    settings = {}
    for field in dataclasses.fields(config):
        settings[field.name] = setting = Setting(field.name, field.default, **field.metadata)
        if setting.kind.check(setting.default) != setting.default:
            raise ValueError(f"default of {setting.name} is not in its normal form")
    _check_unique(name for setting in settings.values() for name in setting.names_in_file)
    return settings


class Live(Generic[T]):
    """The settings currently in effect, shared by the parts of a running store or broker.

    A configuration object never changes. Its owner replaces :attr:`current`, and the parts read it
    each time.
    """

    __slots__ = ("current",)

    def __init__(self, current: T) -> None:
        self.current = current


def _check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two settings have the name {name}")
        seen.add(name)
