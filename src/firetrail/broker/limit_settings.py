"""The settings that limit what clients can make a broker keep."""

from dataclasses import dataclass

from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.settings.settings_table import Group, Whole

KEPT = Group(
    "Broker: limits",
    "These settings limit what clients can make the broker keep. Administrators can create topics"
    " and groups beyond the limits of automatic creation.",
)


@dataclass(frozen=True, kw_only=True)
class BrokerLimitSettings(ServerLimitSettings):
    """The limits of a broker that an operator can change."""

    auto_topics_max: int = KEPT.live(
        50_000,
        "",
        Whole(1),
        "Number of topics, retry topics included, from which on none is created automatically.",
    )
    auto_groups_max: int = KEPT.live(
        50_000,
        "",
        Whole(1),
        "Number of consumer groups from which on none is created automatically.",
    )
    auto_create_rate: int = KEPT.live(
        100,
        "",
        Whole(1),
        "Topics, and groups, that are created automatically per second, after a first 10,000.",
    )
    offsets_max: int = KEPT.live(
        2_000_000,
        "",
        Whole(1),
        "Offsets of groups in queues. Clients cannot add more; those that exist can change.",
    )
    open_transactions_max: int = KEPT.live(
        200_000,
        "",
        Whole(1),
        "Half messages whose transactions have not ended. More are refused as busy.",
    )
