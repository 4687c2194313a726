"""A RocketMQ broker, for programs with an event loop (``Broker``) and without one."""

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig

__all__ = ["BackgroundBroker", "Broker", "BrokerConfig"]
