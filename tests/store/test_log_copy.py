"""The log of a replica."""

from pathlib import Path

import pytest
from tests.helpers import Machine, small_config
from tests.replication.logs import log_content

from firetrail import Message, Store
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole

pytestmark = pytest.mark.stepped_threads


def test_records_are_written_to_the_file_rather_than_to_new_pages_of_a_mapping(
    tmp_path: Path, machine: Machine
) -> None:
    with Store.open(tmp_path / "master", small_config(log=8192)) as master:
        for body in (b"one", b"two"):
            master.put(Message("T", body))
        end = master.log_range[1]
    records = memoryview(log_content(tmp_path / "master"))[:end]
    config = small_config(log=8192, role=BrokerRole.SLAVE)
    with BrokerStore.open(tmp_path / "replica", config, system=machine.system) as replica:
        copy = replica.log_copy()
        copy.append_copied(0, records, 1)
        copy.confirm(end)
        assert machine.files.count("write", "0") == 1
        assert replica.embedded.log_range == (0, end)
        assert log_content(tmp_path / "replica")[:end] == records
        assert replica.embedded.wait_dispatched()
        assert [record.body for record in replica.embedded.read("T", 0, 0)] == [b"one", b"two"]
    assert machine.files.count("populate") == 0
