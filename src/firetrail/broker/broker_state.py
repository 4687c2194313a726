"""The state of a broker that its processors share."""

from dataclasses import dataclass

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter.message_selector import MessageSelector
from firetrail.broker.services.clients import Clients
from firetrail.broker.services.long_polling import LongPolling
from firetrail.broker.services.traffic import Traffic
from firetrail.broker.state.group_table import GroupTable
from firetrail.broker.state.offset_table import OffsetTable
from firetrail.broker.state.topic_table import TopicTable
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.system import System


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Settings, store and tables of a running broker."""

    live: Live[BrokerConfig]
    store: BrokerStore
    system: System
    address: str
    """``ip:port`` that clients connect to."""
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: Clients
    selector: MessageSelector
    long_polling: LongPolling
    traffic: Traffic

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now; parts that use live settings keep :attr:`live` instead."""
        return self.live.current
