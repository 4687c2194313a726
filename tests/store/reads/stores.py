"""Stores and messages for the tests of reads."""

from tests.helpers import put_all
from tests.store.conftest import OpenStore

from firetrail import Store
from firetrail.store.settings.store_config import BrokerRole

SLAVE = {"role": BrokerRole.SLAVE}


def numbered(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(count)]


def beheaded(open_store: OpenStore) -> Store:
    """A store whose oldest files were deleted."""
    store = open_store(flush_interval_ms=1, flush_least_pages=0)
    put_all(store, numbered(100, 100), keys=["k"])
    store.flush()
    assert store.delete_expired(forced=True) > 0
    return store
