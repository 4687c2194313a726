"""The groups of a broker's settings, and their kinds of value."""

from ipaddress import IPv4Network, IPv6Network, ip_network

from firetrail.errors import ConfigError
from firetrail.format.names import TOPIC_PATTERN
from firetrail.remoting.connections.remoting_client import split_address
from firetrail.settings.settings_table import Flag, Group, Text, Whole

FLAG = Flag()
MS = Whole(1, unit="ms")
NAME = Text(TOPIC_PATTERN, "letters, digits and % | _ -")


class Addresses(Text):
    """Addresses of servers, separated by ``;``."""

    def check(self, value: str) -> str:
        Text.check(self, value)
        for address in filter(None, value.split(";")):
            try:
                split_address(address)
            except ConfigError:
                raise self.refusal() from None
        return value


class Networks(Text):
    """IP addresses and networks, separated by ``;``."""

    def check(self, value: str) -> str:
        Text.check(self, value)
        try:
            networks_in(value)
        except ValueError:
            raise self.refusal() from None
        return value


def networks_in(text: str) -> list[IPv4Network | IPv6Network]:
    """Return the networks in such a setting; raise ValueError if one of them is invalid."""
    return [ip_network(each, strict=False) for each in text.split(";") if each]


ADDRESSES = Addresses(r"[^\s]*", "host:port, several separated by ';', or nothing")
ADDRESS = Addresses(r"[^\s;]*", "host:port, or nothing")
HOST = Text(r"[^\s]+", "a host name or address")
HOST_OR_NONE = Text(r"[^\s]*", "a host name or address, or nothing")
ENDPOINTS = Text(r"[^\s]*", "host:port or https://host:port, several separated by ';', or nothing")
WORD = Text(r"[^\s]*", "text without spaces, or nothing")

NO_PORT = -1
"""The port of a service that is not opened."""

IDENTITY = Group(
    "Broker: identity", "Clients and name servers identify the broker by these settings."
)
TOPICS = Group(
    "Broker: topics and groups",
    "These settings control what is created when a client first uses it.",
)
CONSUMING = Group(
    "Broker: consuming",
    "These settings control how long pulls wait and how often offsets are saved.",
)
TRANSACTIONS = Group(
    "Broker: transactions", "These settings control when producers are asked about half messages."
)
TIMER = Group(
    "Broker: timer messages",
    "A message with a delivery time (`TIMER_DELIVER_MS`, `TIMER_DELAY_MS`, `TIMER_DELAY_SEC`) waits"
    " in the topic `rmq_sys_wheel_timer`, and can be recalled until it is due.",
)
REPLICATION = Group(
    "Broker: replication",
    "A master sends its commit log to replicas, which connect to its HA port. A slave follows its"
    " master and may serve consumers.",
)
FAILOVER = Group(
    "Broker: automatic failover",
    "With `etcd_endpoints`, the members of a group elect their master. Every member starts as a"
    " slave, and takes the role in its `brokerRole` when it becomes the master. A member with"
    " `brokerRole=SLAVE` cannot be the first master of the group; if it becomes the master later,"
    " it takes the role `SYNC_MASTER`.",
)

GRPC = Group(
    "Broker: gRPC",
    "Clients of RocketMQ 5 speak gRPC, with TLS and without it on the same port. The service needs"
    " the extra `grpc`.",
)
TLS = Group(
    "Broker: TLS",
    "The mode of the ports, certificates of clients and the requests of the broker itself have"
    " settings in a file of their own.",
)
