"""A client of the proxy, known by the id in the metadata of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from firetrail.proxy.schema.messages import Settings
from firetrail.remoting.codes import Language, Version


@dataclass(slots=True, eq=False)
class ProxyClient:
    """A client of the proxy.

    Attributes:
        client_id: The id that the client has chosen, unique in the cluster.
        peer: ``ip:port`` of the client's latest connection.
        language: The language of the client, for lists of connections.
        version: The version of RocketMQ that it is listed with.
        settings: What the client has last sent and the proxy has completed; None before that.
        groups: The consumer groups of the client.
    """

    client_id: str
    peer: str = ""
    language: int = Language.OTHER
    version: int = Version.V5_0_0
    settings: Settings | None = None
    groups: set[str] = field(default_factory=set)
