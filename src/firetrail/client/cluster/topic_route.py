"""The queues of a topic, computed from its route."""

from firetrail.errors import NoSuchError
from firetrail.remoting.messages.bodies import MessageQueue, TopicRouteData
from firetrail.remoting.wire.codes import Permission
from firetrail.text import some_of


def queues_of(topic: str, route: TopicRouteData, permission: Permission) -> list[MessageQueue]:
    """Return the queues of a topic with a permission, in the order that all clients agree on."""
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data, queues in route.open_queues(permission)
        for queue_id in queues
    )


def no_such_queue(queue: MessageQueue, queues: list[MessageQueue]) -> NoSuchError:
    """Return the error of a send to a queue that is not among the ``queues`` of its topic."""
    ids = [each.queue_id for each in queues if each.broker_name == queue.broker_name]
    if ids:
        place = f"it has the queues {some_of(ids)}"
    else:
        names = sorted({each.broker_name for each in queues})
        place = f"the topic is on {some_of(names)}"
    what = f"{queue.topic}: no queue {queue.queue_id} on the broker {queue.broker_name}"
    return NoSuchError(f"{what}; {place}")
