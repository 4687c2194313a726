"""The state of a name server that its handlers share."""

from dataclasses import dataclass, field

from firetrail.namesrv.duplicate_brokers import DuplicateBrokers
from firetrail.namesrv.kv import KVConfig
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.namesrv.routes import Routes
from firetrail.system import Clock


@dataclass(slots=True)
class NameServerState:
    """The current settings and the tables."""

    config: NameServerConfig
    kv: KVConfig
    clock: Clock
    routes: Routes = field(default_factory=Routes)
    duplicates: DuplicateBrokers = field(init=False)

    def __post_init__(self) -> None:
        self.duplicates = DuplicateBrokers(self.clock.monotonic)
