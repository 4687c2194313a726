"""Retries of requests to a cluster that is unavailable for a while, with a diagnosis at the end.

A broker that is restarted is unavailable for seconds, and the name server drops its topics in that
time. So a request is retried if it got no answer, if the name server does not list a topic that is
known to exist, or if a broker does not return a message yet because it repairs it. The option
``retryTimeoutMs`` limits this. Permanent errors are raised immediately: refusals of a broker,
addresses of other programs, and certificates that do not fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from firetrail.client.administration.admin import Admin
from firetrail.client.cluster.backoff import pauses
from firetrail.errors import FiretrailError, OutageError, PipelineError, RequestError
from firetrail.pipeline.options import RETRY_MS
from firetrail.remoting.connections.access import Access
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import Permission, ResponseCode

R = TypeVar("R")

UNKNOWN_TOPIC_S = 30.0
"""The time to wait for a topic that was not seen before while brokers are registered: within this
time, brokers register with a name server that was restarted."""
PAUSE_S = 0.2
"""The longest pause before the second attempt; it doubles with each one, up to PAUSE_MAX_S."""
PAUSE_MAX_S = 2.0
PROBED_MAX = 16
"""Maximum number of brokers that the diagnosis connects to."""

_log = logging.getLogger(__name__)


class RequestRetry:
    """Retries each request to a cluster for at most ``limit_ms``."""

    def __init__(
        self,
        namesrv: str,
        limit_ms: int = RETRY_MS,
        need: Permission = Permission.READ,
        *,
        access: Access | None = None,
        limited_by: str = "option retryTimeoutMs",
    ) -> None:
        self._namesrv = namesrv
        self._limited_by = limited_by
        self._access = access
        self._limit_s = limit_ms / 1000
        self._need = need

    async def ask(
        self,
        ask: Callable[[], Awaitable[R]],
        what: str,
        topic: str = "",
        *,
        broker: str = "",
        is_known: bool = True,
    ) -> R:
        """Send a request, with retries, and return the answer.

        ``what`` describes the request in errors. ``is_known`` says that the topic existed before,
        so that a missing route means that its broker is unavailable. Raise OutageError with the
        cause when the limit is reached, and PipelineError if a retry cannot help; a broker's
        refusal is raised itself.
        """
        clock = asyncio.get_running_loop().time
        begun, attempts = clock(), 0
        backoff = pauses(PAUSE_S, PAUSE_MAX_S)
        while True:
            attempts += 1
            try:
                return await ask()
            except (OSError, TimeoutError, RequestError) as error:
                last = error
            if _is_permanent(last):
                if isinstance(last, RequestError):
                    raise last
                raise PipelineError(f"namesrv={self._namesrv}: {what} failed: {last}") from last
            elapsed = clock() - begun
            if not await self._is_worth_waiting(last, elapsed, is_known):
                break
            if attempts == 1:
                where = f"namesrv={self._namesrv}: {what}: {_text(last)}"
                _log.warning("%s; retrying for up to %g s", where, self._limit_s)
            await asyncio.sleep(min(next(backoff), max(self._limit_s - elapsed, 0)))
        cause = await self._cause(topic, broker)
        kind = PipelineError if _is_unknown_topic(last) and not is_known else OutageError
        raise kind(
            f"namesrv={self._namesrv}: {what} failed: {cause or 'see the last error'}; gave up "
            f"after {attempts} attempts in {elapsed:.1f} s ({self._limited_by}); last error: "
            f"{_text(last)}"
        ) from last

    async def _is_worth_waiting(self, error: Exception, elapsed: float, is_known: bool) -> bool:
        if elapsed >= self._limit_s:
            return False
        if not _is_unknown_topic(error) or is_known:
            return True
        return elapsed < UNKNOWN_TOPIC_S or not await self._any_broker()

    async def reach(self) -> None:
        """Wait until a name server answers; raise OutageError when the limit is reached."""

        async def ask() -> None:
            async with Admin(self._namesrv, access=self._access) as admin:
                await admin.masters()

        await self.ask(ask, "asking the name server")

    # -- diagnosis ----------------------------------------------------------------------------

    async def _any_broker(self) -> bool:
        """Whether a name server can be reached and has a registered broker."""
        try:
            async with Admin(self._namesrv, access=self._access) as admin:
                return bool(await admin.masters())
        except (OSError, TimeoutError, RequestError):
            return False

    async def _cause(self, topic: str, broker: str) -> str:
        """Return why requests fail, from the current state of the cluster; empty if it is fine."""
        admin = Admin(self._namesrv, access=self._access)
        try:
            async with admin:
                masters = await admin.masters()
                if not masters:
                    return (
                        "no broker is registered with the name server; start one, or check its "
                        "namesrvAddr"
                    )
                if broker and broker not in masters:
                    return f"broker {broker} is not registered with the name server; start it"
                asked = {broker: masters[broker]} if broker else masters
                for name, address in list(asked.items())[:PROBED_MAX]:
                    if refusal := await _refusal(address, self._access):
                        return (
                            f"broker {name} at {address} cannot be reached ({refusal}); check that "
                            "it is running, and that its brokerIP1 can be reached from here"
                        )
                return (
                    await _topic_cause(admin, topic, sorted(masters), self._need) if topic else ""
                )
        except (OSError, TimeoutError, RequestError) as error:
            return (
                f"the name server cannot be reached ({_text(error)}); check its address and that "
                "it is running"
            )


def no_broker() -> RequestError:
    """Return the retriable error for a name server without brokers."""
    remark = "no broker is registered with the name server"
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def no_progress(queue: str, offset: int) -> RequestError:
    """Return the retriable error for a broker that has a message, but does not return it yet."""
    remark = (
        f"queue {queue}: the broker returns no message from offset {offset} on at the moment, for "
        "example because it repairs a damaged one; its log says more"
    )
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)


def _is_permanent(error: Exception) -> bool:
    may_pass = not isinstance(error, FiretrailError) or error.retriable
    return not may_pass and not _is_unknown_topic(error)


def _is_unknown_topic(error: Exception) -> bool:
    """Whether the name server does not list a topic, although brokers are registered."""
    if not isinstance(error, RequestError) or error.retriable:
        return False
    return error.code == ResponseCode.TOPIC_NOT_EXIST


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


async def _refusal(address: str, access: Access | None) -> str:
    """Return why a broker cannot be connected to; empty if it can."""
    client = RemotingClient(access=access)
    try:
        await client.connect(address)
        return ""
    except (OSError, TimeoutError) as error:
        return _text(error)
    finally:
        await client.close()


async def _topic_cause(admin: Admin, topic: str, brokers: list[str], need: Permission) -> str:
    try:
        route = await admin.route(topic)
    except RequestError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return (
            f"none of the registered brokers ({', '.join(brokers)}) has the topic {topic}; create "
            "it, let the brokers create it with autoCreateTopicEnable, or start the broker that "
            "has it"
        )
    if route.open_queues(need):
        return ""
    kind = "written" if need is Permission.WRITE else "read"
    if any(data.open_queues(need) for data in route.queue_datas):
        return f"no broker with queues of the topic {topic} can be {kind}; start their masters"
    return f"no queue of the topic {topic} may be {kind}; change its permission or queues"
