"""The check of the lease for everything that a master does as the only one.

A master whose lease is over may have a successor, and so may one that has heard of a newer epoch.
What it changes would be lost, and what it hands out is handed out there as well. The table of
requests lists what it refuses; the store refuses messages itself. It serves pulls, because messages
stay what they are, but does not say where a queue ends.
"""

from collections.abc import Awaitable, Mapping

from firetrail.errors import RequestError
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Answer, Handler, WaitingHandler
from firetrail.remoting.messages.requests import LEASED
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.gate import Gate


def require_lease(gate: Gate) -> None:
    """Raise RequestError if another broker may be the master now."""
    if refusal := gate.fence.refusal:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)


def leased_handlers(handlers: Mapping[int, Handler], gate: Gate) -> dict[int, Handler]:
    """Return the handlers of a master, with the check for those that need it."""
    return {
        code: _checked(handler, gate) if code in LEASED else handler
        for code, handler in handlers.items()
    }


def _checked(handler: Handler, gate: Gate) -> Handler:
    def handle(connection: Connection, request: RemotingCommand) -> Answer:
        require_lease(gate)
        answer = handler(connection, request)
        if answer is None or isinstance(answer, RemotingCommand):
            return answer
        return _confirmed(answer, gate)

    return WaitingHandler(handler.wait, handle) if isinstance(handler, WaitingHandler) else handle


async def _confirmed(
    answer: Awaitable[RemotingCommand | None], gate: Gate
) -> RemotingCommand | None:
    """Return the answer, unless the lease has ended meanwhile, so that a success may be lost."""
    found = await answer
    if found is not None and found.code == ResponseCode.SUCCESS:
        require_lease(gate)
    return found
