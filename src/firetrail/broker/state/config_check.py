"""The check of the broker's JSON files, for ``firetrail fsck``."""

from pathlib import Path

from firetrail.format.names import (
    CONFIG,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS_JSON,
    LMQ_OFFSETS,
    TOPICS_JSON,
)
from firetrail.remoting.messages.bodies import (
    ConsumerOffsets,
    DelayOffsets,
    LmqConsumerOffsets,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from firetrail.remoting.messages.pop.pop_bodies import OrderInfos, RequestModes
from firetrail.remoting.messages.typed_body import Body
from firetrail.settings.config_file import ORDERS, REQUEST_MODES, ConfigFile
from firetrail.store.problems import Problem, ProblemKind
from firetrail.system import System

TABLES: dict[str, type[Body]] = {
    TOPICS_JSON: TopicConfigTable,
    GROUPS_JSON: SubscriptionGroupTable,
    CONSUMER_OFFSETS: ConsumerOffsets,
    LMQ_OFFSETS: LmqConsumerOffsets,
    DELAY_OFFSETS: DelayOffsets,
    ORDERS: OrderInfos,
    REQUEST_MODES: RequestModes,
}
"""The files that a broker reads when it starts, and their content."""


def unreadable_files(system: System, root: Path) -> list[Problem]:
    """Return the files that a broker cannot decode when it starts."""
    found = []
    for name, kind in TABLES.items():
        fault = ConfigFile(system, root, name).fault(kind)
        if fault is not None:
            place = f"{CONFIG}/{name}"
            found.append(Problem(place, 0, None, ProblemKind.CONFIG_UNREADABLE, fault))
    return found
