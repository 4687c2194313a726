"""A RocketMQ broker, for programs with an event loop (``Broker``) and without one.

The names are imported when they are used: most modules of this package need no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firetrail.broker.background import BackgroundBroker
    from firetrail.broker.broker import Broker
    from firetrail.broker.broker_config import BrokerConfig
    from firetrail.broker.replica.master_settings import ReplicaSettings, replica_settings

__all__ = ["BackgroundBroker", "Broker", "BrokerConfig", "ReplicaSettings", "replica_settings"]

_MODULES = {
    "BackgroundBroker": "background",
    "Broker": "broker",
    "BrokerConfig": "broker_config",
    "ReplicaSettings": "replica.master_settings",
    "replica_settings": "replica.master_settings",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
