"""Arguments of the public face: whole numbers or an error, limits, and stores that are dropped."""

from __future__ import annotations

import ast
import gc
import inspect
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import Machine

from firetrail import Message, Store
from firetrail.format.kernels import draft
from firetrail.format.whole import whole

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
def test_fields_of_a_message(field: str, bad: object) -> None:
    with pytest.raises(TypeError, match=f"^{field} = .*: expected a whole number$"):
        Message("T", b"", **{field: bad})  # type: ignore[arg-type]


@given(number=st.integers(-(2**63), 2**63 - 1), field=st.sampled_from(FIELDS))
def test_whole_numbers_are_kept(number: int, field: str) -> None:
    message = Message("T", b"", **{field: number})  # type: ignore[arg-type]
    assert getattr(message, field) == number


class Numpy:
    """As the integers of other libraries are."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("field", FIELDS)
def test_integers_of_other_kinds(field: str) -> None:
    message = Message("T", b"", **{field: Numpy()})  # type: ignore[arg-type]
    assert getattr(message, field) == 7


@pytest.mark.parametrize("call", CALLS)
def test_calls_of_a_store(call: str, store: Store) -> None:
    store.put(Message("T", b"x", keys=["k"]))
    name = call.split()[-1]
    for bad in NOT_WHOLE:
        with pytest.raises(TypeError, match=f"^{name} = .*: expected a whole number$"):
            CALLS[call](store, bad)
    CALLS[call](store, 0)
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
    def test_as_documented(self, many: Store, asked: int | None, found: int) -> None:
        messages = many.query("T", "k", max_count=asked)
        assert [m.body for m in messages] == [b"%d" % n for n in range(99, 99 - found, -1)]

    def test_less_than_nothing(self, many: Store) -> None:
        with pytest.raises(ValueError, match=r"^max_count: -1 is no number of messages$"):
            many.query("T", "k", max_count=-1)


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

    def test_one_that_is_closed(self, tmp_path: Path) -> None:
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


def test_the_signature_of_a_message() -> None:
    """What help() and IDEs show is what the source says."""
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

    def test_by_less_than_a_minute(self, store: Store, machine: Machine) -> None:
        began = self.put(store, machine, b"a")
        machine.clock.advance(-30_000)
        self.put(store, machine, b"b")
        times = [message.store_time for message in store.read("T")]
        assert times == sorted(times)
        assert store.offset_at("T", 0, began + 2000) == 2
        found = store.query("T", "k", began, began + 2000)
        assert [m.body for m in found] == [b"a2", b"a1", b"a0"]

    def test_by_more(self, store: Store, machine: Machine) -> None:
        self.put(store, machine, b"a")
        machine.clock.advance(-3_600_000)
        self.put(store, machine, b"b")
        times = [message.store_time for message in store.read("T")]
        assert times != sorted(times)
        assert len(store.query("T", "k")) == 10
        assert 0 <= store.offset_at("T", 0, times[0]) <= 10
