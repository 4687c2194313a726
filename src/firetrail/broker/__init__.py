"""A RocketMQ broker, for programs with an event loop (``Broker``) and without one."""

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.broker.replica.master_settings import ReplicaSettings, replica_settings

__all__ = ["BackgroundBroker", "Broker", "BrokerConfig", "ReplicaSettings", "replica_settings"]
