"""The clients of the proxy, known by the id in the metadata of their calls.

A client is known from its first call on, whether or not it has sent settings: after a restart of
the proxy, clients continue to call before they send their settings again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from firetrail.access.audit.audit_log import CERTIFICATE, SIGNATURE, AuditLog
from firetrail.access.client_owners import ClientOwners, owned_by_another
from firetrail.access.user_limits import UserLimits
from firetrail.auth.caller import Caller
from firetrail.auth.policies import User
from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.schema.messages import ClientType, Code, Settings, TelemetryCommand
from firetrail.proxy.transport.call import Call, StatusCode, Stream
from firetrail.remoting.messages.bodies import SubscriptionData
from firetrail.remoting.servers.addresses import source_of
from firetrail.remoting.servers.fair_shares import FairShares, ShareHolder, holder_of
from firetrail.remoting.wire.codes import Language, Version

NOBODY = ShareHolder("nobody")
CLIENTS_MAX = 10_000
"""Maximum number of known clients, like that of connections; calls of further ones are answered
TOO_MANY_REQUESTS."""
CLIENT_ID_MAX = 255
"""Maximum length of a client id in characters."""
STREAMS_MAX = 8
"""Telemetry streams of one client. Released clients have one per address; a client that reconnects
has another until the lost one is noticed. The oldest is ended in favour of a new one."""
UNREAD_MAX = 1 << 20
"""A client that has not read this many bytes of commands gets no more until it reads."""
CLAIM_S = 60.0
"""The pause between claims of a client id for its user: less often than every call, and more often
than it is given up."""
SILENT_S = 120.0
"""A client that calls nothing for this long is forgotten; clients send heartbeats every 10 s."""

_LANGUAGES = {language.name: language for language in Language}


@dataclass(slots=True, eq=False, weakref_slot=True)
class ProxyClient:
    """A client of the proxy.

    Attributes:
        client_id: The id that the client has chosen, unique in the cluster.
        peer: ``ip:port`` of the client's latest call.
        is_encrypted: Whether its latest call came over TLS.
        language: The language of the client, for lists of connections.
        version: The version of RocketMQ that it is listed with.
        client_type: The type of the client, if it is known.
        settings: What the client has last sent, as the proxy has completed it; None before that.
        published: The topics that the client publishes to; brokers know each as a producer group.
        subscriptions: The subscriptions of the client by consumer group and topic.
        streams: Its open telemetry streams, the newest last.
        last_seen: The time at which the client called last, by the clock of the registry.
        claim_at: The time at which its id is claimed again for its user.
        is_closed: Whether the client has left; a later call makes it a new one.
        caller: Who made its latest call, if that is checked. Each call has a caller of its own: all
            are of one user, but from different addresses, and some may be on a white list.
        holder: The name under which it is counted.
    """

    client_id: str
    peer: str = ""
    language: int = Language.OTHER
    version: int = Version.V5_0_0
    client_type: int = ClientType.CLIENT_TYPE_UNSPECIFIED
    settings: Settings | None = None
    published: set[str] = field(default_factory=set)
    subscriptions: dict[str, dict[str, SubscriptionData]] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    last_seen: float = 0.0
    claim_at: float = -inf
    is_closed: bool = False
    caller: Caller | None = None
    is_encrypted: bool = False
    holder: ShareHolder = NOBODY

    def tell(self, command: TelemetryCommand) -> bool:
        """Send a command on the newest stream; return whether there is one that is being read."""
        for stream in reversed(self.streams):
            if stream.is_open:
                if stream.waiting_bytes > UNREAD_MAX:
                    return False
                stream.send(command)
                return True
        return False


class ProxyClients:
    """The table of all clients.

    Args:
        now: A monotonic clock.
        audit: Records logins. Default: logins are not recorded.
        limits: The limits of each user. Default: users have no limits.
        owners: The users that client ids belong to. Default: there is no access control.

    Attributes:
        on_left: Called with each client that has left or was silent for too long.
    """

    def __init__(
        self,
        now: Callable[[], float],
        audit: AuditLog | None = None,
        limits: UserLimits | None = None,
        owners: ClientOwners | None = None,
    ) -> None:
        self._owners = owners
        self._now = now
        self._limits = limits
        self._audit = audit
        self._clients: dict[str, ProxyClient] = {}
        remedy = "Close clients that are not used, or use fewer client ids"
        self._shares = FairShares("gRPC clients", remedy, lambda: CLIENTS_MAX, now)
        self.on_left: list[Callable[[ProxyClient], None]] = []

    def __len__(self) -> int:
        return len(self._clients)

    def all(self) -> list[ProxyClient]:
        """Return all clients."""
        return list(self._clients.values())

    def find(self, client_id: str) -> ProxyClient | None:
        """Return the client with an id, None if it is not known."""
        return self._clients.get(client_id)

    def of(self, call: Call) -> ProxyClient:
        """Return the client that makes a call.

        Args:
            call: The call, which names its client. If it has a caller, so has the client.

        Raises:
            ProxyError: The call does not name its client, another user has a client of this name,
                or there are too many clients, or too many of its user.
        """
        client_id = call.metadata.get("x-mq-client-id", "")
        client = self._clients.get(client_id)
        if client is None:
            _check_id(client_id)
        caller, now = call.caller, self._now()
        if caller is not None:
            known = None if client is None else client.caller
            if known is not None and known.identity != caller.identity:
                raise self._refused(owned_by_another(client_id), call, caller)
            if client is None or now >= client.claim_at:
                self._claim(client_id, call, caller)
        if client is None:
            client = self._new(client_id, call)
        if caller is not None:
            if now >= client.claim_at:
                client.claim_at = now + CLAIM_S
            if client.caller is None and caller.user is not None:
                self._log_in(client, call, caller.user)
            client.caller = caller
        client.last_seen = now
        client.peer, client.is_encrypted = call.peer, call.is_encrypted
        return client

    def _log_in(self, client: ProxyClient, call: Call, user: User) -> None:
        """Note the user of a client; raise ProxyError if it has too many clients."""
        if self._limits is not None and (excess := self._limits.enter(user, client)) is not None:
            self.leave(client)
            raise ProxyError(Code.TOO_MANY_REQUESTS, excess)
        if self._audit is not None:
            method = SIGNATURE if "authorization" in call.metadata else CERTIFICATE
            encrypted = call.is_encrypted
            self._audit.login(
                user.name, method, call.peer, client=client.client_id, is_encrypted=encrypted
            )

    def _claim(self, client_id: str, call: Call, caller: Caller) -> None:
        """Note whose client makes a call; raise ProxyError if it has the id of another user."""
        if self._owners is None:
            return
        try:
            self._owners.claim(client_id, caller)
        except RequestError as error:
            raise self._refused(error, call, caller) from None

    def _refused(self, error: RequestError, call: Call, caller: Caller) -> ProxyError:
        """Return the refusal of a call with the client id of another user."""
        if self._audit is not None:
            code, encrypted = Code.UNAUTHORIZED, call.is_encrypted
            self._audit.denied_call(
                "", error.remark, call.peer, caller, code=code, is_encrypted=encrypted
            )
        return ProxyError(Code.UNAUTHORIZED, error.remark)

    def _new(self, client_id: str, call: Call) -> ProxyClient:
        holder = holder_of(source_of(call.peer), call.caller)
        if (excess := self._shares.excess(holder)) is not None:
            raise ProxyError(Code.TOO_MANY_REQUESTS, excess)
        self._shares.take(holder)
        language = _LANGUAGES.get(call.metadata.get("x-mq-language", ""), Language.OTHER)
        client = ProxyClient(client_id, language=language, holder=holder)
        self._clients[client_id] = client
        return client

    def attach(self, client: ProxyClient, stream: Stream) -> None:
        """Use a new telemetry stream for the commands to a client."""
        client.streams = [each for each in client.streams if each.is_open]
        client.streams.append(stream)
        while len(client.streams) > STREAMS_MAX:
            oldest = client.streams.pop(0)
            oldest.finish(StatusCode.ABORTED, "the client has opened newer telemetry streams")

    def end(self, client: ProxyClient) -> None:
        """Forget a client that announced its end; another user may use its id from then on."""
        self.leave(client)
        if self._owners is not None and client.caller is not None:
            self._owners.release(client.client_id, client.caller)

    def leave(self, client: ProxyClient) -> None:
        """Forget a client."""
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
            self._shares.give_back(client.holder)
        if client.is_closed:
            return
        client.is_closed = True
        for left in self.on_left:
            left(client)

    def expire(self) -> None:
        """Forget the clients that have been silent for too long, and end their streams."""
        oldest = self._now() - SILENT_S
        for client in [each for each in self._clients.values() if each.last_seen < oldest]:
            self.leave(client)
            for stream in client.streams:
                stream.finish(StatusCode.ABORTED, f"the client was silent for {SILENT_S:g} s")


def _check_id(client_id: str) -> None:
    """Raise ProxyError if the id of a new client is missing or too long."""
    if not client_id.strip():
        raise ProxyError(Code.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing")
    if len(client_id) > CLIENT_ID_MAX:
        raise ProxyError(
            Code.CLIENT_ID_REQUIRED,
            f"x-mq-client-id has {len(client_id)} characters, the limit is {CLIENT_ID_MAX}",
        )
