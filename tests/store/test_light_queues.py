"""Light queues: derived as Java does, kept by recovery, numbered on by puts."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S, crash_image, small_config
from tests.stores import GOLDEN, copy_of, derived, overwrite
from tests.stores import LIGHT as NAME

from firetrail import Message, Store, StoreConfig
from firetrail.errors import IllegalMessageError
from firetrail.format import light
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.layout import UNIT
from firetrail.format.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    encode_properties,
)
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.admission import drafter as putting
from firetrail.store.admission.drafter import Batch
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.fsck.report import CheckReport
from firetrail.store.inspect.view import StoreView
from firetrail.store.problems import ProblemKind
from firetrail.store.repair.rebuild import rebuild

pytestmark = pytest.mark.stepped_threads

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
A, B = "%LMQ%a", "%LMQ%b"
IN_A = [n for n in range(30) if n % 3 < 2] + [35, 37, 38]
IN_B = [n for n in range(30) if n % 3 == 1] + [34, 36]


def checked(root: Path) -> CheckReport:
    with StoreView.open(root) as view:
        return check_store(view, DELAYS)


def bodies(store: Store, topic: str) -> list[int]:
    return [int(message.body.split()[-1]) for message in store.read(topic)]


def naming(*queues: str, **properties: str) -> Message:
    named = {INNER_MULTI_DISPATCH: ",".join(queues), **properties}
    return Message("mqtt", b"light 99", properties=named)


@pytest.fixture
def java_store(tmp_path: Path) -> Path:
    return copy_of(NAME, tmp_path)


class TestStoresOfJava:
    @pytest.mark.parametrize("crashed", [True, False])
    def test_opening_leaves_every_unit(self, java_store: Path, crashed: bool) -> None:
        if not crashed:
            (java_store / "abort").unlink()
        with Store.open(java_store) as store:
            assert store.recovery.clean is not crashed
            assert bodies(store, A) == IN_A
            assert bodies(store, B) == IN_B
            assert bodies(store, "%LMQ%c") == [34]
            assert store.min_offset("%LMQ%c") == 1
        assert queues(java_store) == queues(GOLDEN / NAME)
        assert checked(java_store).ok

    def test_a_second_crash_keeps_the_light_queues(self, java_store: Path, tmp_path: Path) -> None:
        with Store.open(java_store) as store:
            store.put(naming(A))
            assert store.wait_dispatched()
            crash_image(java_store, tmp_path / "copy")
        with Store.open(tmp_path / "copy") as store:
            assert not store.recovery.clean
            assert bodies(store, A) == [*IN_A, 99]
        assert checked(tmp_path / "copy").ok

    def test_light_queues_are_rebuilt_from_the_log(self, tmp_path: Path) -> None:
        with StoreView.open(GOLDEN / NAME) as view:
            rebuild(view, tmp_path / "new", DELAYS, lambda done: None)
        assert derived(tmp_path / "new") == derived(GOLDEN / NAME)

    def test_light_queues_are_derived_again_when_all_queues_are_lost(
        self, java_store: Path
    ) -> None:
        shutil.rmtree(java_store / "consumequeue")
        with Store.open(java_store, StoreConfig().for_files(consume_queue_file_size=400)):
            pass
        assert queues(java_store) == queues(GOLDEN / NAME)

    def test_recovery_keeps_units_that_it_would_not_derive(self, java_store: Path) -> None:
        """RocketMQ 4.9 puts retries into light queues, too."""
        with StoreView.open(java_store) as view:
            retry = view.tails["%RETRY%g", 0].last
            end = view.tails[A, 0].max_offset
        assert retry is not None
        unit = UNIT.struct.pack(*retry)
        files = sorted((java_store / "consumequeue" / A / "0").iterdir())
        position = end * len(unit) - int(files[-1].name)
        overwrite(files[-1], position, unit)
        with Store.open(java_store) as store:
            assert bodies(store, A) == [*IN_A, 30]

    @pytest.mark.parametrize("torn", [b"\0" * 20, UNIT.struct.pack(77, 20, 3)])
    def test_recovery_removes_bytes_that_are_not_units(self, java_store: Path, torn: bytes) -> None:
        first = java_store / "consumequeue" / A / "0" / f"{0:020d}"
        overwrite(first, 5 * len(torn), torn)
        with Store.open(java_store) as store:
            assert bodies(store, A) == IN_A
        assert queues(java_store) == queues(GOLDEN / NAME)

    def test_following_continues_after_the_last_message(self, java_store: Path) -> None:
        with Store.open(java_store) as store:
            followed = store.follow(A, timeout=0.2)
            found = [next(followed) for _ in IN_A]
            store.put(naming(A))
            assert store.wait_dispatched(PATIENCE_S)
            found += followed
            assert [int(message.body.split()[-1]) for message in found] == [*IN_A, 99]


class TestChecks:
    def test_a_wrong_unit_is_reported(self, java_store: Path) -> None:
        file = java_store / "consumequeue" / B / "0" / f"{0:020d}"
        overwrite(file, 3 * UNIT.size + 12, b"\x01")
        problems = checked(java_store).problems
        assert [(problem.kind, problem.offset) for problem in problems] == [
            (ProblemKind.UNIT_WRONG, 60)
        ]

    def test_missing_units_are_reported(self, java_store: Path) -> None:
        (java_store / "abort").unlink()
        shutil.rmtree(java_store / "consumequeue" / B)
        (problem,) = checked(java_store).problems
        assert problem.kind is ProblemKind.UNIT_MISSING
        assert f"messages 0 to {len(IN_B) - 1} of the queue" in problem.detail

    def test_a_unit_of_no_record_is_reported(self, java_store: Path) -> None:
        (java_store / "abort").unlink()
        file = java_store / "consumequeue" / B / "0" / f"{0:020d}"
        overwrite(file, len(IN_B) * UNIT.size, UNIT.struct.pack(1 << 40, 100, 0))
        (problem,) = checked(java_store).problems
        assert problem.kind is ProblemKind.UNIT_STRAY


class TestPuts:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with Store.open(tmp_path / "store", small_config(light_queues=True)) as store:
            yield store

    def test_numbers_continue_those_of_java(self, java_store: Path) -> None:
        with Store.open(java_store) as store:
            assert store.max_offset(A) == len(IN_A)
            place = store.put(naming(B, A, B, INNER_MULTI_QUEUE_OFFSET="5"))
            assert bodies(store, A) == [*IN_A, 99]
            assert bodies(store, B) == [*IN_B, 99]
            stored = store.at(place.physical_offset)
            assert stored is not None
            b = str(len(IN_B))
            assert stored.properties[INNER_MULTI_QUEUE_OFFSET] == f"{b},{len(IN_A)},{b}"
            store.put(naming(A))
            assert bodies(store, A) == [*IN_A, 99, 99]
        assert checked(java_store).ok

    def test_light_queues_are_not_filled_without_the_setting(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "store") as store:
            place = store.put(naming(A, INNER_MULTI_QUEUE_OFFSET="5"))
            assert store.wait_dispatched()
            assert store.topics() == ["mqtt"]
            stored = store.at(place.physical_offset)
            assert stored is not None and stored.properties[INNER_MULTI_QUEUE_OFFSET] == "5"
        assert checked(tmp_path / "store").ok

    def test_retries_and_delayed_messages_are_in_no_light_queue(self, store: Store) -> None:
        properties = {INNER_MULTI_DISPATCH: A}
        store.put(Message("%RETRY%g", b"x", properties=properties))
        store.put(Message("mqtt", b"x", properties=properties, delay_level=2))
        assert store.wait_dispatched()
        assert store.topics() == ["%RETRY%g", "SCHEDULE_TOPIC_XXXX", "mqtt"]

    @pytest.mark.parametrize("name", ["other", "%LMQ%a/b", ""])
    def test_a_name_that_is_not_a_light_queue_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(IllegalMessageError) as raised:
            store.put(naming(A, name, B))
        assert str(raised.value) == (
            f"INNER_MULTI_DISPATCH: {name!r} is not a light queue; its name must begin with %LMQ%"
        )

    def test_too_many_light_queues_are_refused(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(putting, "LIGHT_QUEUES_MAX", 1)
        store.put(naming(A))
        store.put(naming(A))
        with pytest.raises(IllegalMessageError, match="%LMQ%b: there are 1 light queues already"):
            store.put(naming(B))

    def test_batches_cannot_name_light_queues(self, store: Store) -> None:
        with pytest.raises(IllegalMessageError, match="messages of a batch cannot name light"):
            store.put_batch([naming(A), naming(A)])
        shared = encode_properties({INNER_MULTI_DISPATCH: A, INNER_MULTI_QUEUE_OFFSET: "7"})
        body = encode_batch([BatchItem(0, b"x", b"")])
        with pytest.raises(IllegalMessageError, match="messages of a batch cannot name light"):
            store.put_batch(Batch("mqtt", body, shared_properties=shared))

    def test_messages_of_system_topics_name_none_alone_or_in_a_batch(self, store: Store) -> None:
        message = Message("rmq_sys_x", b"x", properties={INNER_MULTI_DISPATCH: A})
        store.put(message)
        store.put_batch([message, message])

    def test_batches_may_mention_the_property(self, store: Store) -> None:
        """Only a property of exactly this name names light queues."""
        text = b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        near = Message("T", text, raw_properties=b"X" + text)
        store.put_batch([near, near])
        assert [record.body for record in store.read("T")] == [text, text]


def test_light_queues_are_enabled_in_broker_conf() -> None:
    loaded = StoreConfig.from_properties("enableLmq=true\nenableMultiDispatch=true\n")
    assert loaded.config.light_queues
    assert [str(remark.key) for remark in loaded.ignored] == ["enableMultiDispatch"]


class TestNames:
    @pytest.mark.parametrize(
        ("names", "numbers", "found"),
        [
            ("%LMQ%a", "7", [(A, 7)]),
            ("%LMQ%a,%LMQ%b", "7,+8", [(A, 7), (B, 8)]),
            ("%LMQ%a,%LMQ%a", "7,7", [(A, 7)]),
            ("%LMQ%a,x,%LMQ%b", "7,,8", [(A, 7), (B, 8)]),
            ("%LMQ%a,", "7", [(A, 7)]),
            ("%LMQ%a,%LMQ%b", "7", []),
            ("%LMQ%a,%LMQ%..", "7,x", [(A, 7)]),
            ("%LMQ%../../etc,%LMQ%b", "1,2", [(B, 2)]),
        ],
    )
    def test_numbered_queues_are_parsed(
        self, names: str, numbers: str, found: list[tuple[str, int]]
    ) -> None:
        properties = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{numbers}\x02"
        assert light.numbered_queues(properties.encode()) == found

    def test_names_without_numbers_give_no_queues(self) -> None:
        assert light.numbered_queues(b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02") == []


def queues(root: Path) -> dict[str, bytes]:
    """The files of all queues."""
    return derived(root)[0]
