"""Stores that follow a master, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import PATIENCE_S
from tests.replication.logs import SMALL

from firetrail.errors import FiretrailError
from firetrail.replication.ha_client import HAClient
from firetrail.store.broker_store import BrokerStore
from firetrail.store.config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM

REPLICA = SMALL.replace(commit_log_file_size=16 << 10, role=BrokerRole.SLAVE)


@contextmanager
def following(
    folder: Path, address: str, config: StoreConfig = REPLICA, errors: list[Exception] | None = None
) -> Iterator[BrokerStore]:
    """A replica that follows the master at an address."""
    with BrokerStore.open(folder, config) as store:
        log = store.log_copy()
        client = HAClient(log, address, log.max_offset, SYSTEM.clock, heartbeat_s=0.05)

        def follow() -> None:
            try:
                client.follow()
            except FiretrailError as error:
                assert errors is not None, error
                errors.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield store
        finally:
            client.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
