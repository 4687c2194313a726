"""The handlers that refuse requests on a slave.

Requests that change messages or tables belong to the master, from which the slave gets them. The
table of requests lists their codes, and how they are refused. Heartbeats and locks are
accepted, as in RocketMQ. Commits of offsets are passed on to the master
(:mod:`firetrail.broker.replica.relay`), and so are requests that members of a group would refuse.
"""

from collections.abc import Mapping

from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.requests import REFUSED_BY_SLAVES
from firetrail.remoting.wire.command import RemotingCommand


def slave_handlers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the handlers of a slave: those of a master, except for requests that a slave
    refuses."""
    return {code: _refuse if code in REFUSED_BY_SLAVES else handlers[code] for code in handlers}


def _refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    return request.answer(*REFUSED_BY_SLAVES[request.code])
