"""RocketMQ's message store in Python, with Spark as its data pipeline."""

from firetrail.errors import (
    DiskFullError,
    FiretrailError,
    FlushFailedError,
    IllegalMessageError,
    MissingExtraError,
    NotAStoreError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
    StoreReadOnlyError,
)
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from firetrail.format.record import Record
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import Host
from firetrail.store.admission.drafter import Batch
from firetrail.store.dispatch.derivation import Arrival
from firetrail.store.inspect.view import StoreView
from firetrail.store.reads.reader import Boundary
from firetrail.store.recovery.recovery import RecoveryReport
from firetrail.store.results import GetResult, GetStatus, PutResult, PutStatus
from firetrail.store.settings.store_config import FlushMode, StoreConfig
from firetrail.store.stats import Snapshot
from firetrail.store.store import Store
from firetrail.system import Clock, System

__version__ = "0.1.0"

__all__ = [
    "TRANSACTION_COMMIT",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "Arrival",
    "Batch",
    "Boundary",
    "Clock",
    "DelayLevels",
    "DiskFullError",
    "FiretrailError",
    "FlushFailedError",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "Host",
    "IllegalMessageError",
    "Message",
    "MissingExtraError",
    "NotAStoreError",
    "PutResult",
    "PutStatus",
    "Record",
    "RecoveryReport",
    "Snapshot",
    "Store",
    "StoreClosedError",
    "StoreConfig",
    "StoreDamagedError",
    "StoreError",
    "StoreLockedError",
    "StoreReadOnlyError",
    "StoreView",
    "System",
    "__version__",
]
