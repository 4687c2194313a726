"""Queues without a folder, of a topic that was deleted and created again."""

import shutil
from pathlib import Path

import pytest
from tests.generations import (
    CONFIG,
    Damage,
    Shop,
    as_java_crashes,
    as_java_leaves_it,
    crashed_copy,
    not_empty,
    seen_in,
)
from tests.store.checks import DELAYS, checked
from tests.stores import flip, list_topics, records

from firetrail import Message, Store
from firetrail.format.names import LOCK_CONTENT
from firetrail.store.evidence.inventory import InventoryFile
from firetrail.store.inspect.view import StoreView
from firetrail.store.queues.generations import OmittedMessages, Reason
from firetrail.store.repair.rebuild import rebuild
from firetrail.store.repair.repair import Repair, repair_store
from firetrail.store.repair.salvage import salvage_store
from firetrail.system import System


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """T was deleted and created again; T/2 began again after the last message of T/0."""
    shop = Shop(tmp_path / "store")
    for queue_id in (0, 1, 2, 3) * 2:
        shop.put("T", queue_id)
    shop.delete("T")
    shop.put("T", 0, 2)
    shop.put("T", 2, 2)
    return shop


def remove_queue(root: Path, topic: str, queue_id: int) -> None:
    shutil.rmtree(root / "consumequeue" / topic / str(queue_id))


@pytest.mark.parametrize("left", [lambda root: None, as_java_leaves_it, as_java_crashes])
def test_a_start_derives_them_again(left: Damage, shop: Shop) -> None:
    shop.close()
    remove_queue(shop.root, "T", 0)
    left(shop.root)
    assert not_empty(seen_in(shop.root)) == shop.seen
    assert checked(shop.root).ok
    assert not_empty(seen_in(shop.root)) == shop.seen


def test_numbers_continue(shop: Shop) -> None:
    shop.close()
    remove_queue(shop.root, "T", 0)
    with Store.open(shop.root, CONFIG) as store:
        assert store.max_offset("T", 0) == 2
        assert store.put(Message("T", b"next", queue_id=0)).queue_offset == 2


def test_an_interrupted_start_does_not_leave_them_out(shop: Shop) -> None:
    """The next one has an inventory that is not valid, and no folder."""
    shop.close()
    remove_queue(shop.root, "T", 0)
    inventory = InventoryFile(System(), shop.root)
    inventory.noted = inventory.noted._replace(removed={})
    inventory.note_rebuilding((("T", 0),), False)
    assert not_empty(seen_in(shop.root)) == shop.seen


@pytest.mark.parametrize("left", [lambda root: None, as_java_crashes])
def test_repairs_derive_them_again_after_a_crash(left: Damage, shop: Shop, tmp_path: Path) -> None:
    """Also if the dispatcher has not created the folders of the last queues yet."""
    shop.put("T", 1, 1)
    shop.put("T", 3, 1)
    root = crashed_copy(shop)
    shop.close()
    for queue_id in (1, 2, 3):
        remove_queue(root, "T", queue_id)
    left(root)
    with StoreView.open(root) as view:
        made = rebuild(view, tmp_path / "new", DELAYS, lambda done: None)
    assert made.left_out == (OmittedMessages("T", Reason.FORMER, 8),)
    for queue_id in range(4):
        assert (tmp_path / "new/consumequeue/T" / str(queue_id)).is_dir()
    repair_store(System(), root, Repair.REBUILD_DERIVED, DELAYS)
    assert not_empty(seen_in(root)) == shop.seen


def test_a_repair_ignores_what_was_recorded_before_java_wrote_the_store(shop: Shop) -> None:
    """A Java broker has deleted T/0 and T/2 since: the inventory does not know."""
    shop.put("T", 0)
    shop.close()
    for queue_id in (0, 2):
        remove_queue(shop.root, "T", queue_id)
    list_topics(shop.root)
    (shop.root / "lock").write_bytes(LOCK_CONTENT)
    repair_store(System(), shop.root, Repair.REBUILD_DERIVED, DELAYS)
    assert not (shop.root / "consumequeue/T").exists()


def test_salvage_keeps_the_only_message_that_is_left_of_a_missing_queue(
    shop: Shop, tmp_path: Path
) -> None:
    """It is not taken for a record of another queue: the inventory lists its queue."""
    shop.put("U", 0, 2)
    shop.close()
    remove_queue(shop.root, "U", 0)
    lost, kept = [record for record in records(shop.root) if record.topic == "U"]
    base = lost.physical_offset // 2048 * 2048
    flip(shop.root / "commitlog" / f"{base:020}", lost.physical_offset - base + 4)
    saved = salvage_store(System(), shop.root, tmp_path / "saved", DELAYS)
    assert saved.misplaced == []
    assert not_empty(seen_in(tmp_path / "saved")) == shop.seen | {("U", 0): [kept.body]}


def test_salvage_keeps_messages_of_light_queues_whose_topic_was_deleted(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "store")
    shop.put("U")
    shop.put("T", 0, 3, "%LMQ%L")
    shop.delete("T")
    shop.put("T", 0, 1)
    shop.close()
    flip(shop.root / "commitlog" / f"{0:020}", 4)  # the message of U
    salvage_store(System(), shop.root, tmp_path / "saved", DELAYS)
    assert not_empty(seen_in(tmp_path / "saved")) == not_empty(shop.seen | {("U", 0): []})
