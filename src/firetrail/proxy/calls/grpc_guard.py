"""The guard of the gRPC service: who calls, and whether the caller may.

A call is signed by the header ``authorization``, which covers only the header ``x-mq-date-time``.
A header that is older than :data:`AGE_MAX` is refused. The rest of the metadata is not trusted: the
user comes from the signature or from the client's certificate, and the address from the connection.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from firetrail.access.guard import Guard
from firetrail.access.implied_permissions import (
    GET,
    PUB,
    SUB,
    UPDATE,
    consumed,
    group_need,
    topic_need,
)
from firetrail.auth.caller import NO_PERMISSION, Caller
from firetrail.auth.policies import User
from firetrail.auth.resources import Action, Requirement
from firetrail.auth.signature import GRPC_DATE_TIME, GrpcAuthorization, parse_grpc_authorization
from firetrail.errors import ProxyError, RequestError
from firetrail.proxy.schema.messages import Code, Settings
from firetrail.proxy.transport.call import Call, ProtobufMessage
from firetrail.remoting.servers.addresses import source_of

AGE_MAX = timedelta(hours=15)
"""Maximum difference between the time of a header and the clock of the server. RocketMQ's Python
client sends its local time as if it were UTC, so no time zone must make a header invalid."""
MESSAGES = "apache.rocketmq.v2."
"""The prefix of the names of messages in white lists."""

CallNeeds = Callable[[Any], Iterable[Requirement]]


def _consume(request: Any) -> Iterable[Requirement]:
    return consumed(request.topic.name, request.group.name)


def _consume_queue(request: Any) -> Iterable[Requirement]:
    return consumed(request.message_queue.topic.name, request.group.name)


def _publish(request: Any) -> Iterator[Requirement]:
    yield topic_need(request.topic.name, PUB)


def _send(request: Any) -> Iterator[Requirement]:
    yield from (topic_need(topic, PUB) for topic in {m.topic.name for m in request.messages})


def _route(request: Any) -> Iterator[Requirement]:
    yield topic_need(request.topic.name, PUB, SUB, GET)


def _offset(*actions: Action) -> CallNeeds:
    """Return the needs of a call about the offset of a group in a queue."""

    def needs(request: Any) -> Iterator[Requirement]:
        yield topic_need(request.message_queue.topic.name, *actions)
        yield group_need(request.group.name, *actions)

    return needs


def _query_offset(request: Any) -> Iterator[Requirement]:
    yield topic_need(request.message_queue.topic.name, SUB, GET)


def _optional_group(request: Any) -> Iterator[Requirement]:
    if request.group.name:
        yield group_need(request.group.name, SUB)


def _settings(settings: Settings) -> Iterator[Requirement]:
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        yield from (topic_need(topic.name, PUB) for topic in settings.publishing.topics)
    elif kind == "subscription":
        group = settings.subscription.group.name
        yield group_need(group, SUB)
        for entry in settings.subscription.subscriptions:
            yield from consumed(entry.topic.name, group)
    else:
        raise RequestError(NO_PERMISSION, "the settings are neither a producer's nor a consumer's")


CALL_NEEDS: dict[str, CallNeeds] = {
    "QueryRoute": _route,
    "QueryAssignment": _consume,
    "SendMessage": _send,
    "ReceiveMessage": _consume_queue,
    "AckMessage": _consume,
    "ChangeInvisibleDuration": _consume,
    "ForwardMessageToDeadLetterQueue": _consume,
    "EndTransaction": _publish,
    "RecallMessage": _publish,
    "PullMessage": _consume_queue,
    "UpdateOffset": _offset(SUB, UPDATE),
    "GetOffset": _offset(SUB, GET),
    "QueryOffset": _query_offset,
    "Heartbeat": _optional_group,
    "NotifyClientTermination": _optional_group,
    "SyncLiteSubscription": _consume,
    "Telemetry": _settings,
}
"""The permissions that each call requires: those of the remoting requests with the same effect. A
call without an entry is refused."""


def check_rate(call: Call, message: ProtobufMessage) -> None:
    """Raise ProxyError if the address of a client sends more than it may.

    Args:
        call: The call.
        message: A message of it, which counts towards the rates of the address.
    """
    if call.is_too_fast(message):
        raise ProxyError(
            Code.TOO_MANY_REQUESTS,
            f"{source_of(call.peer)} sends more than request_rate_per_address or "
            "byte_rate_per_address allows; send less, or raise the limit",
        )


class GrpcGuard:
    """Decides about every call.

    Args:
        guard: The guard of the broker, which knows the users.
        now_ms: The clock.
    """

    def __init__(self, guard: Guard, now_ms: Callable[[], int]) -> None:
        self._guard = guard
        self.audit = guard.audit
        self.limits = guard.limits
        self.owners = guard.owners
        self._now_ms = now_ms

    def authenticated(self, name: str, call: Call, request: Any = None) -> Caller:
        """Return the caller; raise ProxyError if the call is not signed by a known user.

        A call on the white list need not be signed. If it is, its user counts nevertheless: the
        other calls of the client are those of this user.

        Args:
            name: The name of the call.
            call: The call.
            request: Its request, for the audit log. Default: None, if it is not known yet.
        """
        message = f"{MESSAGES}{'TelemetryCommand' if name == 'Telemetry' else f'{name}Request'}"
        policy = self._guard.policy
        user: User | None = None
        source = source_of(call.peer)
        given = parse_grpc_authorization(call.metadata.get("authorization", ""))
        claimed = given.access_key if given is not None else ""
        is_trusted = self._guard.trusts(source, claimed)
        is_checked = policy.authorization and message not in policy.unauthorized
        trusted_as = claimed if is_trusted and is_checked else None
        try:
            user = self._signer_of(given, call)
        except RequestError as error:
            if message not in policy.unauthenticated:
                if not is_trusted:
                    named = claimed or call.certificate_user
                    self._denied(name, error, call, request, claimed=named)
                    raise ProxyError(Code.UNAUTHORIZED, error.remark) from None
                trusted_as = claimed
        is_checked = is_checked and not is_trusted
        return Caller(user, source, is_checked=is_checked, trusted_as=trusted_as)

    def _signer_of(self, given: GrpcAuthorization | None, call: Call) -> User:
        if "authorization" not in call.metadata and call.certificate_user is not None:
            return self._guard.known(call.certificate_user)
        if given is None:
            raise RequestError(NO_PERMISSION, self._guard.policy.remarks.unnamed)
        user = self._guard.known(given.access_key)
        date_time = call.metadata.get(GRPC_DATE_TIME, "")
        if not user.verifier.accepts_grpc(date_time, given.signature):
            raise self._guard.forged(user.name)
        self._check_age(date_time)
        return user

    def authorize(self, name: str, call: Call, caller: Caller, request: Any) -> Caller:
        """Return the caller in its present state; raise ProxyError unless it has the permissions.

        A stream outlives changes of its user: it may be disabled, or have another password or
        other policies. The call counts towards the rates of the user.

        Args:
            name: The name of the call.
            call: The call.
            caller: Its caller.
            request: Its request.
        """
        if self.limits is not None and caller.user is not None:
            size = request.ByteSize() if self.limits.has_byte_rate else 0
            if (excess := self.limits.charge_call(caller.user, size)) is not None:
                raise ProxyError(Code.TOO_MANY_REQUESTS, excess)
        return self._permitted(name, call, caller, request)

    async def check_again(self, name: str, call: Call, request: Any) -> None:
        """Check a call that has waited; raise ProxyError if it is no longer allowed.

        A broker does the same for its own waiting requests, but does not know the users of a
        separate proxy. Their file is read every few seconds only, so it is read first if it has
        changed.

        Args:
            name: The name of the call.
            call: The call.
            request: Its request.
        """
        caller = call.caller
        if caller is None:
            return
        if self._guard.is_outdated:
            await asyncio.to_thread(self._guard.catch_up)
        if not self._guard.is_present(caller):
            call.caller = self._permitted(name, call, caller, request)

    def _permitted(self, name: str, call: Call, caller: Caller, request: Any) -> Caller:
        present: Caller | None = None
        try:
            present = self._guard.present(caller)
            if not present.is_checked or present.is_super:
                return present
            wanted = CALL_NEEDS.get(name)
            if wanted is None:
                raise RequestError(NO_PERMISSION, f"there is no rule for {name}")
            present.require(*wanted(request))
        except RequestError as error:
            self._denied(name, error, call, request, present, caller.user_name)
            raise ProxyError(Code.UNAUTHORIZED, error.remark) from None
        return present

    def _denied(
        self,
        name: str,
        error: RequestError,
        call: Call,
        request: Any,
        caller: Caller | None = None,
        claimed: str | None = None,
    ) -> None:
        if self.audit is not None:
            wanted = CALL_NEEDS.get(name)
            self.audit.denied_call(
                *(name, error.remark, call.peer, caller),
                code=Code.UNAUTHORIZED,
                is_encrypted=call.is_encrypted,
                claimed=claimed,
                needs=() if wanted is None or request is None else wanted(request),
            )

    def caller(self, name: str, call: Call, request: Any) -> Caller:
        """Return the caller, after all checks; raise ProxyError if it is refused."""
        return self.authorize(name, call, self.authenticated(name, call, request), request)

    def _check_age(self, date_time: str) -> None:
        try:
            signed = datetime.strptime(date_time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise RequestError(NO_PERMISSION, f"{GRPC_DATE_TIME} is not a time") from None
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        if abs(now - signed) > AGE_MAX:
            raise RequestError(
                NO_PERMISSION, f"{GRPC_DATE_TIME} is too far from the server's time; set the clock"
            )
