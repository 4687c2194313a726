"""An asyncio client for RocketMQ clusters, Firetrail's or Java's."""

from firetrail.client.admin import Admin
from firetrail.client.popping import Popped
from firetrail.client.producer import Outcome, Producer, Reply
from firetrail.client.pull_consumer import PullConsumer
from firetrail.client.push_consumer import PushConsumer
from firetrail.client.received import Received
from firetrail.client.sending import SendResult, SendStatus
from firetrail.client.simple_consumer import SimpleConsumer
from firetrail.client.subscription import by_sql, by_tags
from firetrail.format.kernels.draft import Message
from firetrail.remoting.bodies import MessageQueue

__all__ = [
    "Admin",
    "Message",
    "MessageQueue",
    "Outcome",
    "Popped",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Received",
    "Reply",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "by_sql",
    "by_tags",
]
