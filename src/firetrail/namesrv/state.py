"""What a name server knows, for all who answer from it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from firetrail.namesrv.config import NameServerConfig
from firetrail.namesrv.kv import KVConfig
from firetrail.namesrv.rivals import Rivals
from firetrail.namesrv.routes import Routes


@dataclass(slots=True)
class State:
    """The settings in force, and the tables."""

    config: NameServerConfig
    kv: KVConfig
    routes: Routes = field(default_factory=Routes)
    rivals: Rivals = field(default_factory=lambda: Rivals(time.monotonic))
