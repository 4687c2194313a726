"""RocketMQ's message store in Python, with Spark as its data pipeline."""

from firetrail.errors import FiretrailError
from firetrail.format.kernels.draft import Message
from firetrail.format.record import Record
from firetrail.store.config import FlushMode, StoreConfig
from firetrail.store.putting import Batch
from firetrail.store.reading import Boundary
from firetrail.store.results import GetResult, GetStatus, PutResult, PutStatus
from firetrail.store.store import Store

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Boundary",
    "FiretrailError",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "Message",
    "PutResult",
    "PutStatus",
    "Record",
    "Store",
    "StoreConfig",
    "__version__",
]
