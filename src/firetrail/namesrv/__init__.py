"""The name server: which brokers there are, and which queues of which topics they have."""

from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
