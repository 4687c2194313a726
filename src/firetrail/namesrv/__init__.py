"""The name server: it tells clients which broker has which queues of a topic."""

from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
