"""The selection of one read of a consume queue, compared with the same rules in plain Python."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.format.kernels.drafts import fenced

from firetrail.format.files.unit import PRE_BLANK, ConsumeQueueUnit, encode_unit
from firetrail.store.kernels.select import ELSEWHERE, EXHAUSTED, FULL, Selection

BASE = 1000
LOG = bytes(range(250))
READABLE = BASE + 200

units = st.lists(
    st.builds(
        ConsumeQueueUnit,
        st.one_of(
            st.integers(BASE - 20, BASE + 220),
            st.sampled_from([-1, 2**63 - 1, -(2**63), 2**63 - 20]),
        ),
        st.one_of(st.integers(-1, 60), st.sampled_from([2**31 - 1, -(2**31)])),
        st.one_of(
            st.integers(-3, 3),
            st.sampled_from([2**31, -(2**31), 2**32 + 1, -(2**31) - 1, -(2**63), 2**63 - 1]),
        ),
    ),
    max_size=10,
)
tag_sets = st.one_of(st.none(), st.frozensets(st.integers(-3, 3), max_size=3))


@dataclass
class Model:
    """The rules of Java's getMessage, a unit at a time."""

    count_max: int
    memory_bytes: int
    memory_count: int
    disk_bytes: int
    disk_count: int
    disk_below: int
    tags: frozenset[int] | None
    found: list[bytes] = field(default_factory=list)
    size: int = 0
    last_offset: int = -1
    filtered: bool = False

    def take(self, queue: list[ConsumeQueueUnit]) -> tuple[int, int]:
        """(why it stopped, units dealt with)"""
        for number, unit in enumerate(queue):
            self.last_offset = unit.physical_offset
            if self.found and self.is_full(unit):
                return FULL, number
            if self.tags is not None and not self.matches(unit.tags_code):
                self.filtered = True
                continue
            if unit.size <= 0 or not BASE <= unit.physical_offset <= READABLE - unit.size:
                return ELSEWHERE, number
            at = unit.physical_offset - BASE
            self.found.append(LOG[at : at + unit.size])
            self.size += unit.size
        return EXHAUSTED, len(queue)

    def is_full(self, unit: ConsumeQueueUnit) -> bool:
        on_disk = unit.physical_offset < self.disk_below
        size_max = self.disk_bytes if on_disk else self.memory_bytes
        count_max = self.disk_count if on_disk else self.memory_count
        return len(self.found) >= min(self.count_max, count_max) or self.size + unit.size > size_max

    def matches(self, tags_code: int) -> bool:
        if tags_code < -(2**31):
            return True  # the address of an extended unit
        assert self.tags is not None
        return (tags_code + 2**31) % 2**32 - 2**31 in self.tags


def raw(queue: list[ConsumeQueueUnit]) -> bytes:
    return b"".join(map(encode_unit, queue))


@given(
    units,
    units,
    st.integers(0, 8),
    st.integers(0, 200),
    st.integers(0, 8),
    st.integers(0, 200),
    st.integers(0, 8),
    st.integers(BASE, READABLE),
    tag_sets,
)
def test_selects_as_the_model_does(
    first: list[ConsumeQueueUnit],
    second: list[ConsumeQueueUnit],
    count_max: int,
    memory_bytes: int,
    memory_count: int,
    disk_bytes: int,
    disk_count: int,
    disk_below: int,
    tags: frozenset[int] | None,
) -> None:
    caps = (count_max, memory_bytes, memory_count, disk_bytes, disk_count, disk_below, tags)
    model = Model(*caps)
    selection = Selection(*caps)
    log = fenced(LOG)
    for queue in (first, second):  # the second call continues with the results of the first
        data = raw(queue)
        stop, dealt_with = model.take(queue)
        assert selection.take(fenced(data), 0, len(data), log, BASE, READABLE) == stop
        assert selection.position == 20 * dealt_with
        assert [bytes(message) for message in selection.found] == model.found
        assert selection.size == model.size
        assert selection.last_offset == model.last_offset
        assert selection.filtered == model.filtered


def everything() -> Selection:
    return Selection(
        count_max=100,
        memory_bytes=10**6,
        memory_count=100,
        disk_bytes=10**6,
        disk_count=100,
        disk_below=0,
        tags=None,
    )


def test_messages_are_slices_of_the_log() -> None:
    selection = everything()
    log = memoryview(bytearray(LOG))
    data = raw([ConsumeQueueUnit(BASE + 5, 3, 0)])
    assert selection.take(data, 0, len(data), log, BASE, READABLE) == EXHAUSTED
    log[5:8] = b"new"
    assert bytes(selection.found[0]) == b"new"


def test_only_the_units_asked_for() -> None:
    data = raw([ConsumeQueueUnit(BASE + i, 1, 0) for i in range(6)])
    selection = everything()
    selection.take(data, 40, 99, memoryview(LOG), BASE, READABLE)
    assert [bytes(message) for message in selection.found] == [LOG[2:3], LOG[3:4]]
    assert selection.position == 80
    assert selection.take(data, 80, 80, memoryview(LOG), BASE, READABLE) == EXHAUSTED
    assert selection.take(b"", 0, 0, memoryview(LOG), BASE, READABLE) == EXHAUSTED


def test_pre_blank_units_are_elsewhere() -> None:
    data = raw([PRE_BLANK])
    selection = everything()
    assert selection.take(data, 0, 20, memoryview(LOG), 0, 250) == ELSEWHERE
    assert selection.position == 0


@pytest.mark.parametrize(("at", "end"), [(-20, 20), (0, 21), (0, 2**62), (-(2**62), 0)])
def test_units_that_are_not_there(at: int, end: int) -> None:
    data = raw([ConsumeQueueUnit(BASE, 1, 0)])
    with pytest.raises(ValueError, match=f"units {at}:{end} of 20 bytes"):
        everything().take(fenced(data), at, end, memoryview(LOG), BASE, READABLE)


@pytest.mark.parametrize(
    ("offset", "readable", "stop"),
    [
        (BASE + 249, 2**63 - 1, EXHAUSTED),
        (BASE + 250, 2**63 - 1, ELSEWHERE),  # readable, but in the next segment
        (BASE, BASE, ELSEWHERE),
        (BASE, 0, ELSEWHERE),
        (BASE, -(2**63), ELSEWHERE),
    ],
)
def test_the_log_ends_where_the_segment_does(offset: int, readable: int, stop: int) -> None:
    data = raw([ConsumeQueueUnit(offset, 1, 0)])
    assert everything().take(data, 0, 20, memoryview(LOG), BASE, readable) == stop
