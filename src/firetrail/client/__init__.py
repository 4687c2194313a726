"""An asyncio client for RocketMQ clusters, Firetrail's or Java's.

Programs import everything from here, including the errors that the clients raise.
"""

from firetrail.access.user_bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from firetrail.auth.credentials import Credentials
from firetrail.auth.policies import Decision, PolicyType, UserStatus, UserType
from firetrail.client.administration.admin import Admin
from firetrail.client.consumers.pop_client import Popped
from firetrail.client.consumers.pull_client import Pulled
from firetrail.client.consumers.pull_consumer import PullConsumer
from firetrail.client.consumers.push.listener import Listener
from firetrail.client.consumers.push.push_consumer import PushConsumer
from firetrail.client.consumers.push.rebalance import (
    averagely,
    by_circle,
    by_consistent_hash,
    fixed,
    in_rooms,
    nearby,
)
from firetrail.client.consumers.simple_consumer import SimpleConsumer
from firetrail.client.consumers.subscription import by_sql, by_tags
from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import SendResult, SendStatus
from firetrail.client.producers.producer import Producer, Reply
from firetrail.client.producers.transaction_outcome import Outcome
from firetrail.errors import (
    ClientClosedError,
    ConfigError,
    FiretrailError,
    FormatError,
    IllegalMessageError,
    NoAnswerError,
    NoMasterYetError,
    NoRouteYetError,
    NotReachedError,
    NotRocketMQError,
    ProtocolError,
    RequestError,
    TlsError,
    UnsupportedError,
    WrongTypeError,
)
from firetrail.format.kernels.draft import Message
from firetrail.format.message_types import MessageType
from firetrail.remoting.connections.access import Access
from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    MessageModel,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from firetrail.remoting.messages.retry_policies import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
)
from firetrail.remoting.wire.codes import Permission, ResponseCode
from firetrail.tls.client_tls import ClientTls

__all__ = [
    "Access",
    "AclInfo",
    "Admin",
    "ClientClosedError",
    "ClientTls",
    "ConfigError",
    "ConsumeFromWhere",
    "Credentials",
    "CustomizedRetryPolicy",
    "Decision",
    "ExponentialRetryPolicy",
    "FiretrailError",
    "FormatError",
    "GroupRetryPolicy",
    "IllegalMessageError",
    "Listener",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageType",
    "NoAnswerError",
    "NoMasterYetError",
    "NoRouteYetError",
    "NotReachedError",
    "NotRocketMQError",
    "Outcome",
    "Permission",
    "PolicyEntryInfo",
    "PolicyInfo",
    "PolicyType",
    "Popped",
    "Producer",
    "ProtocolError",
    "PullConsumer",
    "Pulled",
    "PushConsumer",
    "Received",
    "Reply",
    "RequestError",
    "ResponseCode",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TlsError",
    "TopicConfig",
    "UnsupportedError",
    "UserInfo",
    "UserStatus",
    "UserType",
    "WrongTypeError",
    "averagely",
    "by_circle",
    "by_consistent_hash",
    "by_sql",
    "by_tags",
    "fixed",
    "in_rooms",
    "nearby",
]
