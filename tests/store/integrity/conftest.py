"""A store with several full log files, whose records have checksums of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import Machine

from firetrail import Message, StoreConfig
from firetrail.store.broker_store import BrokerStore

CONFIG = StoreConfig(property_crc=True).for_files(
    commit_log_file_size=4096, consume_queue_file_size=400, index_slots=20, index_entries=64
)
BODIES = [b"%04d" % number * 30 for number in range(60)]


@pytest.fixture
def store(tmp_path: Path, machine: Machine) -> Iterator[BrokerStore]:
    with BrokerStore.open(tmp_path / "store", CONFIG, system=machine.system) as store:
        for body in BODIES:
            store.embedded.put(Message("T", body))
        store.embedded.flush()
        assert store.embedded.wait_dispatched()
        yield store
