"""Arguments of the public face: whole numbers or an error, limits, and stores that are dropped."""

import ast
import gc
import inspect
import warnings
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import Machine

from firetrail import Batch, Message, Store, StoreConfig
from firetrail.errors import ConfigError, FormatError, IllegalMessageError, WrongTypeError
from firetrail.format.kernels import draft
from firetrail.format.values.integers import whole

NOT_WHOLE: tuple[Any, ...] = (1.7, 1.0, "1", b"1", Decimal(1), Fraction(3, 2), 1j, [1], True)
FIELDS = (
    *("queue_id", "delay_level", "flag", "sys_flag"),
    *("born_time", "reconsume_times", "prepared_offset"),
)
CALLS: dict[str, Callable[[Store, Any], object]] = {
    "get queue_id": lambda store, bad: store.get("T", bad),
    "get offset": lambda store, bad: store.get("T", 0, bad),
    "get max_count": lambda store, bad: store.get("T", 0, 0, bad),
    "read queue_id": lambda store, bad: list(store.read("T", bad)),
    "read offset": lambda store, bad: list(store.read("T", 0, bad)),
    "follow queue_id": lambda store, bad: list(store.follow("T", bad, timeout=0)),
    "follow offset": lambda store, bad: list(store.follow("T", 0, bad, timeout=0)),
    "query begin": lambda store, bad: store.query("T", "k", bad),
    "query end": lambda store, bad: store.query("T", "k", 0, bad),
    "query max_count": lambda store, bad: store.query("T", "k", max_count=bad),
    "offset_at queue_id": lambda store, bad: store.offset_at("T", bad, 0),
    "offset_at time_ms": lambda store, bad: store.offset_at("T", 0, bad),
    "at physical_offset": lambda store, bad: store.at(bad),
    "min_offset queue_id": lambda store, bad: store.min_offset("T", bad),
    "max_offset queue_id": lambda store, bad: store.max_offset("T", bad),
}


@pytest.mark.parametrize("bad", NOT_WHOLE, ids=repr)
@pytest.mark.parametrize("field", FIELDS)
def test_message_fields_must_be_whole_numbers(field: str, bad: object) -> None:
    with pytest.raises(TypeError, match=f"^{field} = .*: expected a whole number$"):
        Message("T", b"", **{field: bad})  # type: ignore[arg-type]


WRONG_FIELDS: list[tuple[str, object, str]] = [
    *(("topic", bad, "expected a str") for bad in (None, 3, b"T")),
    *(("body", bad, "expected bytes") for bad in (None, 3, "text")),
    *(("tags", bad, "expected a str") for bad in (3, b"a", ["a"])),
    ("keys", "o-1", "expected a list, such as ['o-1']"),
    *(("keys", bad, "expected a list of str") for bad in (None, 3, b"k", iter(["k"]))),
    *(("properties", bad, "expected a dict") for bad in (3, "a", [("a", "b")])),
    *(("born_host", bad, "expected a Host") for bad in (3, "10.0.0.1:80", ("10.0.0.1", 80))),
    *(("raw_properties", bad, "expected bytes") for bad in ("x", bytearray(b"x"), 3)),
    *(("wait_for_flush", bad, "expected True or False") for bad in (None, 1)),
]


@pytest.mark.parametrize(
    ("field", "bad", "allowed"),
    WRONG_FIELDS,
    ids=[f"{field}-{type(bad).__name__}" for field, bad, _ in WRONG_FIELDS],
)
def test_the_constructor_of_a_message_names_the_argument_of_a_wrong_type(
    field: str, bad: object, allowed: str
) -> None:
    """Compiled and uncompiled alike."""
    given: dict[str, Any] = {"topic": "T", "body": b"", field: bad}
    with pytest.raises(WrongTypeError) as caught:
        Message(**given)
    assert (caught.value.key, caught.value.value, caught.value.allowed) == (field, bad, allowed)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("file_reserved_hours", "72"), ("file_reserved_hours", True), ("flush", "SYNC")],
)
def test_a_setting_of_a_wrong_type(name: str, bad: object) -> None:
    with pytest.raises(WrongTypeError, match=f"^{name} = .*: must be "):
        StoreConfig(**{name: bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        StoreConfig(file_reserved_hours=-1)
    assert type(caught.value) is ConfigError


class Topic(StrEnum):
    """A kind of str that programs use for names."""

    ORDERS = "orders"


def test_a_message_keeps_the_text_of_a_kind_of_str() -> None:
    message = Message(Topic.ORDERS, memoryview(b"x"), tags=Topic.ORDERS, keys=("k",))
    assert type(message.topic) is type(message.tags) is str
    assert message == Message("orders", b"x", tags="orders", keys=("k",))


@given(number=st.integers(-(2**63), 2**63 - 1), field=st.sampled_from(FIELDS))
def test_whole_numbers_are_kept(number: int, field: str) -> None:
    message = Message("T", b"", **{field: number})  # type: ignore[arg-type]
    assert getattr(message, field) == number


class Numpy:
    """As the integers of other libraries are."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("field", FIELDS)
def test_integers_of_other_kinds_are_converted(field: str) -> None:
    message = Message("T", b"", **{field: Numpy()})  # type: ignore[arg-type]
    assert getattr(message, field) == 7


@pytest.mark.parametrize("call", CALLS)
def test_store_arguments_must_be_whole_numbers(call: str, store: Store) -> None:
    store.put(Message("T", b"x", keys=["k"]))
    name = call.split()[-1]
    for bad in NOT_WHOLE:
        with pytest.raises(TypeError, match=f"^{name} = .*: expected a whole number$"):
            CALLS[call](store, bad)
    CALLS[call](store, 1 if name == "max_count" else 0)
    CALLS[call](store, Numpy())


def test_numbers_that_are_too_large() -> None:
    with pytest.raises(
        ValueError, match=r"^offset = 1180591620717411303424: does not fit into 64 bits"
    ):
        whole("offset", 2**70)


class TestQueryLimits:
    @pytest.fixture
    def many(self, store: Store) -> Store:
        for number in range(100):
            store.put(Message("T", b"%d" % number, keys=["k"]))
        return store

    @pytest.mark.parametrize(
        ("asked", "found"), [(None, 32), (0, 0), (1, 1), (33, 33), (64, 64), (65, 64), (1000, 64)]
    )
    def test_query_limits_are_as_documented(
        self, many: Store, asked: int | None, found: int
    ) -> None:
        messages = many.query("T", "k", max_count=asked)
        assert [m.body for m in messages] == [b"%d" % n for n in range(99, 99 - found, -1)]

    def test_negative_counts_are_refused(self, many: Store) -> None:
        with pytest.raises(ValueError, match=r"^max_count = -1: expected 0 or more$"):
            many.query("T", "k", max_count=-1)
        for count in (0, -1):
            with pytest.raises(ValueError, match=rf"^max_count = {count}: expected 1 or more$"):
                many.get("T", max_count=count)


TEXT: tuple[Any, ...] = (None, 5, b"T", ["T"])
TAGS: tuple[Any, ...] = (5, b"a", [5], ["a", None])
OFFSET: tuple[Any, ...] = NOT_WHOLE
SECONDS: tuple[Any, ...] = ("1", True, nan, inf, -1)
MESSAGE: tuple[Any, ...] = (None, b"", "T", Message)
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "open": {"path": (None, 5, b"folder", ""), "config": (5, {}, "broker.conf"), "system": (5, {})},
    "close": {"within_s": SECONDS},
    "put": {"message": MESSAGE},
    "try_put": {"message": MESSAGE},
    "put_async": {"message": MESSAGE},
    "put_batch": {
        "batch": (None, Message("T", b""), (each for each in [Message("T", b"")]), "T", [5], [])
    },
    "try_put_batch": {"batch": (None, [Message("T", b"")])},
    "get": {
        **{"topic": TEXT, "queue_id": OFFSET, "offset": OFFSET, "tags": TAGS},
        "max_count": (*OFFSET, 0, -1),
    },
    "read": {"topic": TEXT, "queue_id": OFFSET, "offset": OFFSET, "tags": TAGS},
    "follow": {
        **{"topic": TEXT, "queue_id": OFFSET, "offset": OFFSET, "tags": TAGS},
        "timeout": SECONDS,
    },
    "by_id": {"message_id": (None, 5, b"id", "xyz")},
    "at": {"physical_offset": OFFSET},
    "query": {
        **{"topic": TEXT, "key": TEXT, "begin": OFFSET, "end": OFFSET},
        "max_count": (*OFFSET, -1),
    },
    "offset_at": {
        **{"topic": TEXT, "queue_id": OFFSET, "time_ms": OFFSET, "boundary": (None, "lower")}
    },
    "queues": {"topic": TEXT},
    "min_offset": {"topic": TEXT, "queue_id": OFFSET},
    "max_offset": {"topic": TEXT, "queue_id": OFFSET},
    "wait_dispatched": {"timeout": (None, *SECONDS)},
    "delete_expired": {"forced": (None, 0, "no")},
    "on_arrival": {"listener": (None, 5)},
}
GOOD: dict[str, Any] = {"topic": "T", "key": "k", "queue_id": 0, "time_ms": 0}
ALIASES = {"batch": ("batch", "messages", "body"), "message_id": ("message id", "message_id")}


def test_the_table_of_arguments_is_complete() -> None:
    found = {
        (name, parameter)
        for name, method in inspect.getmembers(Store, callable)
        if not name.startswith("_")
        for parameter in inspect.signature(method).parameters
        if parameter != "self"
    }
    assert found == {(name, each) for name, wrong in WRONG.items() for each in wrong}


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, each) for name, given in WRONG.items() for each in given]
)
async def test_wrong_arguments_are_refused_by_name(
    name: str, wrong: str, store: Store, tmp_path: Path
) -> None:
    """The call itself refuses them, with an error that names the argument."""
    method = getattr(store, name)
    needed = {
        each.name: GOOD.get(each.name, tmp_path / "other")
        for each in inspect.signature(method).parameters.values()
        if each.default is each.empty
    }
    for value in WRONG[name][wrong]:
        with pytest.raises((ConfigError, IllegalMessageError, FormatError)) as raised:
            returned = method(**(needed | {wrong: value}))
            if inspect.iscoroutine(returned):
                await returned
            pytest.fail(f"{value!r} was taken")
        assert str(raised.value).startswith(ALIASES.get(wrong, wrong)), f"{value!r}: {raised.value}"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("topic", (None, 5, b"T", "", "a b")),
        ("body", (None, "text", 5)),
        ("tags", (5, b"a", ["a"], 0)),
        ("keys", ("k", 5, [1], ["a", ""], ["a b"], b"ab", (each for each in "ab"))),
        ("properties", ("ab", [("a", "b")], {"a": 1}, {1: "a"}, {"a": None}, {"a": ""})),
        ("queue_id", (-1, 2**31, 2**70, 10**5000)),
        ("delay_level", (-1, 2**70)),
        ("flag", (2**31, 2**70)),
        ("born_host", ("127.0.0.1", ("127.0.0.1", 1))),
        ("raw_properties", ("a", 5, bytearray(b"a"))),
        ("wait_for_flush", (None, 0, "no")),
    ],
)
def test_wrong_message_fields_are_refused(
    field: str, values: tuple[Any, ...], store: Store
) -> None:
    """Invalid values are refused when a message is created, or when it is put."""
    named = field.removesuffix("ies").removesuffix("s")
    for value in values:
        with pytest.raises((TypeError, ConfigError, IllegalMessageError), match=named):
            store.put(Message(**({"topic": "T", "body": b""} | {field: value})))
            pytest.fail(f"{value!r:.40} was taken")
    assert store.log_range == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("topic", 5),
            ("body", "text"),
            ("queue_id", 1.5),
            ("queue_id", 2**31),
            ("sys_flag", "1"),
        ),
        *(("born_time", True), ("born_host", "host"), ("reconsume_times", None)),
        *(("shared_properties", "a"), ("wait_for_flush", 1)),
    ],
)
def test_wrong_batch_fields_are_refused(field: str, value: object) -> None:
    with pytest.raises((ConfigError, IllegalMessageError), match=f"^{field}"):
        Batch(**({"topic": "T", "body": b""} | {field: value}))  # type: ignore[arg-type]


class TestDropped:
    def test_a_store_that_is_not_closed(self, tmp_path: Path) -> None:
        store: Store | None = Store.open(tmp_path)
        assert store is not None
        engine = store._engine
        with pytest.warns(ResourceWarning, match="was dropped and not closed") as caught:
            del store
            gc.collect()
        assert str(tmp_path) in str(caught[0].message)
        engine.stop()

    def test_a_closed_store_gives_no_warning(self, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Store.open(tmp_path):
                pass
            gc.collect()

    def test_one_that_was_not_opened(self, tmp_path: Path) -> None:
        (tmp_path / "other").touch()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(Exception, match="choose an empty folder"):
                Store.open(tmp_path)
            gc.collect()


def test_the_signature_of_a_message_is_that_of_the_source() -> None:
    """help() and IDEs show what the source says."""
    shown = inspect.signature(Message)
    source = Path(draft.__file__).with_name("draft.py")
    tree = ast.parse(source.read_text())
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Message"]
    (init,) = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    names = [argument.arg for argument in init.args.args[1:]]
    assert list(shown.parameters) == names
    defaults = [ast.literal_eval(default) for default in init.args.defaults]
    given = [p.default for p in shown.parameters.values() if p.default is not p.empty]
    assert given == defaults
    assert str(shown).startswith("(topic: 'str', body: 'bytes | bytearray | memoryview', tags: ")
    with pytest.raises(TypeError, match="missing a required argument: 'body'"):
        shown.bind("T")


class TestClockSetBack:
    """As the guide says."""

    def put(self, store: Store, machine: Machine, name: bytes) -> int:
        began = machine.clock.now_ms()
        for number in range(5):
            store.put(Message("T", name + b"%d" % number, keys=["k"]))
            machine.clock.advance(1000)
        return began

    def test_store_times_stay_in_order_if_the_clock_is_set_back_a_little(
        self, store: Store, machine: Machine
    ) -> None:
        began = self.put(store, machine, b"a")
        machine.clock.advance(-30_000)
        self.put(store, machine, b"b")
        times = [message.store_time for message in store.read("T")]
        assert times == sorted(times)
        assert store.offset_at("T", 0, began + 2000) == 2
        found = store.query("T", "k", began, began + 2000)
        assert [m.body for m in found] == [b"a2", b"a1", b"a0"]

    def test_store_times_follow_a_clock_that_is_set_back_by_an_hour(
        self, store: Store, machine: Machine
    ) -> None:
        self.put(store, machine, b"a")
        machine.clock.advance(-3_600_000)
        self.put(store, machine, b"b")
        times = [message.store_time for message in store.read("T")]
        assert times != sorted(times)
        assert len(store.query("T", "k")) == 10
        assert 0 <= store.offset_at("T", 0, times[0]) <= 10
