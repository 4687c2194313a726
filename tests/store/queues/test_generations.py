"""Topics that were deleted and created again: only the last life is in queues, however derived."""

import json
from pathlib import Path

import pytest
from tests.generations import (
    Damage,
    Shop,
    as_java_crashes,
    as_java_leaves_it,
    copy_with,
    not_empty,
    seen_in,
)
from tests.store.checks import DELAYS, checked
from tests.stores import copy_of, derived, flip, list_topics, overwrite, records

from firetrail.cli.main import main
from firetrail.store.evidence.catalog import Catalog
from firetrail.store.evidence.inventory import Inventory
from firetrail.store.inspect.view import StoreView
from firetrail.store.problems import ProblemKind
from firetrail.store.queues.generations import (
    OmittedMessages,
    QueueGenerations,
    Reason,
    begins_generation,
)
from firetrail.store.queues.queue_table import QueueExtent, QueueKey
from firetrail.store.repair.rebuild import RebuildResult, rebuild
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.repair.salvage import salvage_store
from firetrail.system import System

LIGHT = "%LMQ%L"
NOT_LISTED = Inventory()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """T/0 has 6 old messages and 2 new ones, T/1 only old ones; U is never deleted."""
    shop = Shop(tmp_path / "store")
    shop.put("T", 0, 3)
    shop.put("T", 1, 2)
    shop.put("T", 0, 3)
    shop.put("U", 0, 3)
    shop.delete("T")
    shop.put("T", 0, 2)
    shop.put("U", 0, 2)
    return shop


def rebuilt(root: Path, target: Path) -> RebuildResult:
    with StoreView.open(root) as view:
        return rebuild(view, target, DELAYS, lambda done: None)


def left_out_by_a_rebuild(shop: Shop, target: Path) -> tuple[OmittedMessages, ...]:
    """Close the store and rebuild it; check that queues and index are the same."""
    shop.close()
    made = rebuilt(shop.root, target)
    assert derived(target) == derived(shop.root)
    return made.left_out


def catalog_of(
    root: Path, *folders: QueueKey, inventory: Inventory = NOT_LISTED, closed: bool = False
) -> Catalog:
    known = inventory.listed_queues(listed=inventory is not NOT_LISTED, closed=closed)
    times: dict[int, int] = {}  # no record has a known store time
    return Catalog(System().files, root, folders, times.get, known)


def spoil(root: Path, *bodies: bytes) -> None:
    for found in [record for record in records(root) if record.body in bodies]:
        base = found.physical_offset // 2048 * 2048
        flip(root / "commitlog" / f"{base:020}", found.physical_offset - base + 4)


def test_only_number_0_after_others_begins_a_new_life() -> None:
    assert begins_generation(0, 1)
    assert not begins_generation(0, 0)
    assert not begins_generation(3, 9)


def test_former_and_repeated_messages_are_counted(tmp_path: Path) -> None:
    generations = QueueGenerations()
    assert not generations.note(("T", 0), 4, 3, 0, 2)  # retention has deleted what was before
    assert not generations.note(("T", 0), 6, 2, 3, 4)  # the first is one again
    assert generations.note(("T", 0), 0, 1, 5, 5)
    assert generations.note(("T", 0), 0, 2, 6, 7)
    assert not generations.note(("T", 0), 1, 2, 8, 9)
    assert generations.end(("T", 0)) == 3 and generations.end(("T", 1)) is None
    catalog = catalog_of(tmp_path, ("T", 0))
    assert generations.left_out(catalog) == (
        OmittedMessages("T", Reason.FORMER, 6),
        OmittedMessages("T", Reason.REPEATED, 1),
    )


class TestFormerQueues:
    """T/0 began again at 70, T/2 at 90; the other queues have no folder."""

    @pytest.fixture
    def generations(self) -> QueueGenerations:
        generations = QueueGenerations()
        generations.note(("T", 0), 0, 3, 0, 20)
        generations.note(("T", 1), 0, 4, 10, 50)  # before the last message of T/2 that was deleted
        generations.note(("T", 2), 0, 2, 30, 40)
        generations.note(("T", 3), 0, 2, 50, 60)  # before or after the topic was deleted
        generations.note(("T", 0), 0, 2, 70, 80)
        generations.note(("T", 2), 0, 1, 90, 90)
        return generations

    def test_only_proven_ones_are_left_out(
        self, generations: QueueGenerations, tmp_path: Path
    ) -> None:
        assert generations.former(catalog_of(tmp_path)) == [("T", 1)]

    def test_a_recorded_deletion_decides(
        self, generations: QueueGenerations, tmp_path: Path
    ) -> None:
        catalog = catalog_of(tmp_path, inventory=Inventory(removed={"T": 65}))
        assert generations.former(catalog) == [("T", 1), ("T", 3)]
        catalog = catalog_of(tmp_path, inventory=Inventory(removed={"T": 45}))
        assert generations.former(catalog) == []

    def test_a_complete_inventory_decides(
        self, generations: QueueGenerations, tmp_path: Path
    ) -> None:
        inventory = Inventory(durable_offset=85, queues={("T", 1): QueueExtent(0, 4)})
        catalog = catalog_of(tmp_path, inventory=inventory, closed=True)
        assert generations.former(catalog) == [("T", 0), ("T", 3)]  # T/2 has a later message

    def test_after_an_unclean_stop_the_inventory_may_lack_queues(
        self, generations: QueueGenerations, tmp_path: Path
    ) -> None:
        inventory = Inventory(durable_offset=85, queues={("T", 1): QueueExtent(0, 4)})
        assert generations.former(catalog_of(tmp_path, inventory=inventory)) == []

    def test_numbers_that_are_not_consecutive_prove_nothing(self, tmp_path: Path) -> None:
        """The messages between them, which are damaged, may have begun a new life."""
        generations = QueueGenerations()
        generations.note(("T", 1), 0, 4, 10, 20)
        generations.note(("T", 0), 0, 3, 30, 40)
        generations.note(("T", 0), 0, 3, 60, 70)
        generations.note(("T", 1), 2, 2, 80, 90)
        assert generations.former(catalog_of(tmp_path)) == []


def test_a_rebuild_gives_up_the_former_life(shop: Shop, tmp_path: Path) -> None:
    assert left_out_by_a_rebuild(shop, tmp_path / "new") == (
        OmittedMessages("T", Reason.FORMER, 8),
    )


def test_several_lives_and_a_last_one_that_is_longer(shop: Shop, tmp_path: Path) -> None:
    for count in (1, 9):
        shop.delete("T")
        shop.put("T", 0, count)
    assert left_out_by_a_rebuild(shop, tmp_path / "new") == (
        OmittedMessages("T", Reason.FORMER, 11),
    )


def test_a_life_whose_beginning_has_expired(tmp_path: Path) -> None:
    """The log begins with messages of the former life, which have higher numbers."""
    shop = Shop(tmp_path / "store")
    shop.put("U", 0, 15)
    shop.put("T", 0, 8)
    shop.delete("T")
    shop.put("T", 0, 2)
    shop.close()
    (shop.root / "commitlog" / f"{0:020}").unlink()
    left = [record for record in records(shop.root) if record.topic == "T"]
    assert left[0].queue_offset > 0
    made = rebuilt(shop.root, tmp_path / "new")
    queue = f"consumequeue/T/0/{0:020}"
    assert (tmp_path / "new" / queue).read_bytes() == (shop.root / queue).read_bytes()
    assert made.left_out == (OmittedMessages("T", Reason.FORMER, len(left) - 2),)
    assert checked(shop.root).ok


def test_a_deleted_light_queue_is_rebuilt_without_former_messages(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "store")
    shop.put("U", 0, 4, LIGHT)
    shop.delete(LIGHT)
    shop.put("U", 0, 2, LIGHT)
    assert left_out_by_a_rebuild(shop, tmp_path / "new") == (
        OmittedMessages(LIGHT, Reason.FORMER, 4),
    )
    report = checked(shop.root)
    assert report.ok and [warning.kind for warning in report.warnings] == [
        ProblemKind.QUEUE_RESTART
    ]


def test_a_topic_that_stays_deleted(shop: Shop, tmp_path: Path) -> None:
    shop.delete("T")
    assert left_out_by_a_rebuild(shop, tmp_path / "new") == (
        OmittedMessages("T", Reason.DELETED, 10),
    )
    report = checked(shop.root)
    assert report.ok
    (warning,) = report.warnings
    assert warning.kind is ProblemKind.TOPIC_DELETED
    assert warning.detail.startswith(
        "10 messages of topic T are left out: config/topics.json is newer"
    )


def test_a_topic_that_the_list_is_too_old_for_is_derived(shop: Shop, tmp_path: Path) -> None:
    shop.delete("T")
    shop.close()
    list_topics(shop.root, "U", changed_ms=1)
    as_java_leaves_it(shop.root)  # nor does another list say which queues there are
    made = rebuilt(shop.root, tmp_path / "new")
    assert (tmp_path / "new/consumequeue/T/0").is_dir()
    assert made.left_out == (OmittedMessages("T", Reason.FORMER, 8),)
    report = checked(shop.root)
    assert {problem.kind for problem in report.problems} == {ProblemKind.UNIT_MISSING}


def test_a_topic_created_again_without_messages(shop: Shop, tmp_path: Path) -> None:
    """A closed store knows that it has no queue of that topic."""
    shop.delete("T")
    shop.create("T")
    assert left_out_by_a_rebuild(shop, tmp_path / "new") == (
        OmittedMessages("T", Reason.FORMER, 10),
    )
    assert checked(shop.root).ok


def test_a_repair_gives_up_the_former_life(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.close()
    command = ["fsck", str(shop.root), "--repair", "rebuild-derived"]
    assert main([*command, "--dry-run"]) == 0
    notice = "8 messages of topic T, which was deleted and created again since, are left out"
    out = capsys.readouterr().out
    assert notice in out and "discard no message" not in out
    assert main([*command, "--dry-run", "--json"]) == 0
    (left_out,) = json.loads(capsys.readouterr().out)["left_out"]
    assert left_out == {"topic": "T", "reason": "created-again", "messages": 8}
    assert main(command) == 0
    assert notice in capsys.readouterr().out
    assert not_empty(seen_in(shop.root)) == shop.seen
    assert main([*command[:2], "--json"]) == 0


def test_queues_that_an_older_version_derived_wrongly_are_mended(shop: Shop) -> None:
    """Such queues held the old messages and hid the new ones."""
    shop.close()
    old = [record for record in records(shop.root) if record.topic == "T"][:6]
    units = b"".join(
        record.physical_offset.to_bytes(8, "big") + record.size.to_bytes(4, "big") + bytes(8)
        for record in old
    )
    (shop.root / f"consumequeue/T/0/{0:020}").write_bytes(units[:100])
    (shop.root / f"consumequeue/T/0/{100:020}").write_bytes(units[100:].ljust(100, b"\0"))
    assert {problem.kind for problem in checked(shop.root).problems} == {
        ProblemKind.UNIT_WRONG,
        ProblemKind.UNIT_STRAY,
    }
    repair_store(System(), shop.root, Repair.REBUILD_DERIVED, DELAYS)
    assert not_empty(seen_in(shop.root)) == shop.seen


def test_a_single_message_that_is_left_of_a_deleted_topic(tmp_path: Path) -> None:
    """It is not mistaken for a record of another queue whose topic is damaged."""
    shop = Shop(tmp_path / "store")
    for topic, count in (("D", 2), ("U", 17), ("D", 1), ("U", 3)):
        shop.put(topic, 0, count)
    shop.delete("D")
    shop.expire()
    shop.close()
    assert [record.queue_offset for record in records(shop.root) if record.topic == "D"] == [2]
    repair_store(System(), shop.root, Repair.REBUILD_DERIVED, DELAYS)
    assert not_empty(seen_in(shop.root)) == shop.seen


class TestDamage:
    def test_the_log_is_cut_after_the_new_beginning(self, shop: Shop) -> None:
        shop.close()
        spoil(shop.root, shop.seen["T", 0][1])
        repair_store(System(), shop.root, Repair.TRUNCATE_LOG, DELAYS)
        assert not_empty(seen_in(shop.root)) == {
            ("T", 0): shop.seen["T", 0][:1],
            ("U", 0): shop.seen["U", 0][:3],
        }
        assert checked(shop.root).ok

    def test_the_log_is_cut_before_the_new_beginning(self, shop: Shop) -> None:
        """Then only deleted messages of the topic are left."""
        shop.close()
        spoil(shop.root, shop.seen["T", 0][0])
        done = repair_store(System(), shop.root, Repair.TRUNCATE_LOG, DELAYS)
        notice = "8 messages of topic T, which was deleted and created again since, are left out"
        assert notice in done
        assert not (shop.root / "consumequeue/T").exists()
        assert not_empty(seen_in(shop.root)) == {("U", 0): shop.seen["U", 0][:3]}
        assert checked(shop.root).ok

    def test_the_loss_does_not_count_deleted_messages(
        self, shop: Shop, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shop.put("Gone", 0, 3)
        shop.delete("Gone")
        shop.close()
        spoil(shop.root, b"T/0: 2")  # of the former life
        assert main(["fsck", str(shop.root), "--repair", "truncate-log", "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert "would discard 7 messages, from physical offset " in out
        assert "T/0: 2 messages, offsets 0 to 1, stored" in out
        assert "Gone" not in out and "T/1" not in out

    @pytest.mark.parametrize("body", [b"T/0: 2", b"U/0: 10", b"T/0: 12"])
    def test_a_salvage_leaves_deleted_topics_out(
        self, body: bytes, shop: Shop, tmp_path: Path
    ) -> None:
        shop.put("Gone", 0, 3)
        shop.delete("Gone")
        shop.close()
        spoil(shop.root, body)
        salvage_store(System(), shop.root, tmp_path / "saved", DELAYS)
        left = {key: [b for b in bodies if b != body] for key, bodies in shop.seen.items()}
        assert not_empty(seen_in(tmp_path / "saved")) == left
        assert checked(tmp_path / "saved").ok

    @pytest.mark.parametrize("left", [lambda root: None, as_java_leaves_it])
    @pytest.mark.parametrize("destroyed", [1, 5, 8])
    def test_salvage_finds_the_new_beginning_after_its_loss(
        self, left: Damage, destroyed: int, shop: Shop, tmp_path: Path
    ) -> None:
        """The units still say where it was. With 5, the next one has the last old number."""
        shop.put("T", 0, 8)
        shop.close()
        left(shop.root)
        spoil(shop.root, *shop.seen["T", 0][:destroyed])
        saved = salvage_store(System(), shop.root, tmp_path / "saved", DELAYS)
        assert saved.misplaced == []
        kept = shop.seen | {("T", 0): shop.seen["T", 0][destroyed:]}
        assert not_empty(seen_in(tmp_path / "saved")) == kept
        assert checked(tmp_path / "saved").ok

    def test_salvage_does_not_trust_a_damaged_unit(self, shop: Shop, tmp_path: Path) -> None:
        """The first unit of U/0 points into another record, as if U had been created there."""
        shop.close()
        as_java_leaves_it(shop.root)
        place = records(shop.root)[-1].physical_offset - 10
        unit = place.to_bytes(8, "big") + (50).to_bytes(4, "big") + bytes(8)
        overwrite(shop.root / f"consumequeue/U/0/{0:020}", 0, unit)
        spoil(shop.root, b"T/0: 2")
        salvage_store(System(), shop.root, tmp_path / "saved", DELAYS)
        assert not_empty(seen_in(tmp_path / "saved")) == shop.seen

    def test_salvage_says_what_it_leaves_out(
        self, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shop.put("Gone", 0, 3)
        shop.delete("Gone")
        shop.close()
        spoil(shop.root, b"U/0: 10")
        assert main(["salvage", str(shop.root), "--into", str(tmp_path / "saved")]) == 0
        assert "3 messages of deleted topics left out" in capsys.readouterr().out


class TestTakeOver:
    @pytest.mark.parametrize("left", [as_java_leaves_it, as_java_crashes])
    def test_queues_come_out_as_they_were(self, left: object, shop: Shop) -> None:
        shop.close()
        assert callable(left)
        root = copy_with(shop.root, "java", left)
        assert not_empty(seen_in(root)) == shop.seen
        assert checked(root).ok

    def test_a_queue_that_may_have_been_lost_is_derived(self, tmp_path: Path) -> None:
        """T/1 got its only message just before T was deleted, or just after it was created."""
        shop = Shop(tmp_path / "store")
        shop.put("T", 0)
        shop.put("T", 1)
        shop.delete("T")
        shop.put("T", 0)
        shop.close()
        root = copy_with(shop.root, "java", as_java_leaves_it)
        assert not_empty(seen_in(root)) == shop.seen | {("T", 1): [b"T/1: 2"]}
        assert not_empty(seen_in(shop.root)) == shop.seen  # its inventory knows

    def test_a_store_without_queues_derives_them_again(self, shop: Shop) -> None:
        """An operator who removes all queues wants them derived again."""
        shop.put("T", 1)
        shop.close()
        for path in sorted((shop.root / "consumequeue").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        assert not_empty(seen_in(shop.root)) == shop.seen


class TestQueuesOfBatches:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A Java store in which T1 has queues of batches."""
        root = copy_of("v5-clean", tmp_path)
        (root / "batchconsumequeue").mkdir()
        (root / "consumequeue" / "T1").rename(root / "batchconsumequeue" / "T1")
        return root

    def test_they_are_left_alone_and_named(
        self, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["rebuild", str(root), "--into", str(tmp_path / "new")]) == 0
        notice = "topic T1 is left out: it has batch queues, which only RocketMQ reads"
        assert notice in capsys.readouterr().out
        assert derived(tmp_path / "new")[0] == derived(root)[0]
        assert main(["fsck", str(root)]) == 0
        assert f"batch-queues: {notice}" in capsys.readouterr().out
        assert main(["fsck", str(root), "--repair", "rebuild-derived"]) == 0
        assert notice in capsys.readouterr().out
        assert not (root / "consumequeue" / "T1").exists()

    def test_the_attribute_alone_says_it(self, root: Path, tmp_path: Path) -> None:
        """This holds even if the folder is lost: Java would not start with ordinary queues."""
        (root / "batchconsumequeue" / "T1").rename(tmp_path / "lost")
        topics = [path.name for path in (root / "consumequeue").iterdir()]
        list_topics(root, "T1", *topics, attributes={"T1": {"queue.type": "BatchCQ"}})
        made = rebuilt(root, tmp_path / "new")
        assert OmittedMessages("T1", Reason.BATCHES, None) in made.left_out
        assert not (tmp_path / "new/consumequeue/T1").exists()
        assert checked(root).ok
