"""A trail of events: one set of files of an audit log, and the events that wait for it.

Servers only put events into a queue; a thread writes them. The rate is limited: further events are
only counted, so that a flood of events neither fills the disk nor displaces earlier events.
"""

import json
import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from firetrail.access.audit.audit_file import AuditFile
from firetrail.format.names import AUDIT
from firetrail.pace.limited_log import LimitedLog
from firetrail.pace.token_bucket import TokenBucket
from firetrail.settings.audit_settings import AuditSettings
from firetrail.system import System, Thread
from firetrail.text import counted, human_time

QUEUED_MAX = 10_000
"""Maximum number of events that wait for the disk; further ones are counted as lost."""
BATCH = 16
"""Number of events that are written together: less than the smallest file."""
COUNTS_S = 10.0
"""Interval at which the numbers of events without a line of their own are written."""
BURST_S = 10.0
"""The burst that a rate allows, in seconds of that rate."""
ADDRESS_BURST, ADDRESS_PER_S = 20.0, 1.0
"""The rate of lines about denied requests of one address without a proven user."""
USER_BURST, USER_PER_S = 20.0, 0.1
"""The rate of lines about denied requests of one user, from all addresses. Otherwise a user with
few permissions could displace older events within days; at this rate, that takes more than a
month."""
FIRSTS_MAX, FIRSTS_S = 100, 3600.0
"""Different denials of one user that are written even beyond this rate, and the seconds after which
they count again. Requests that are repeated all the time must not hide the first one for another
resource; but a user can invent names, so their number is bounded."""
SENDERS_MAX = 1_000
"""Maximum number of addresses and users whose events are limited and counted separately; the others
share one count."""
ADMINISTRATION_FACTOR = 10
"""The factor by which events of administrators may come faster than others."""
STOP_S = 5.0
"""The time that the end of a server waits for the last events to be written."""

EventSender = tuple[str, str]
"""``user`` or ``peer``, and the name of the user or the address."""
OTHERS: EventSender = ("peer", "others")

_log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """The kind of an event, by its subject."""

    START = "start"
    STOP = "stop"
    LOGIN = "login"
    """The first request of a user on a connection, or of a gRPC client, that was authenticated."""
    ADMINISTRATION = "administration"
    DENIED = "denied"
    LOST = "lost"
    """Events that could not be written."""


class _DeniedSender:
    """A sender whose requests were denied, and the denials that were recorded.

    Args:
        bucket: Limits the rate of lines.
        now: The current time in seconds.
    """

    __slots__ = ("_firsts", "_firsts_at", "bucket")

    def __init__(self, bucket: TokenBucket, now: float) -> None:
        self.bucket = bucket
        self._firsts: set[int] = set()  # hashes, because clients choose names and their length
        self._firsts_at = now

    def is_first(self, about: str, now: float) -> bool:
        """Return whether the interval has no line about this denial yet."""
        if now - self._firsts_at >= FIRSTS_S:
            self._firsts_at = now
            self._firsts.clear()
        return hash(about) not in self._firsts

    @property
    def has_room(self) -> bool:
        """Whether one more denial can be remembered as written."""
        return len(self._firsts) < FIRSTS_MAX

    def listed(self, about: str) -> None:
        """Note that this denial was written."""
        if self.has_room:
            self._firsts.add(hash(about))


@dataclass(slots=True)
class _Unlisted:
    """The number of events without a line of their own, and of those that no line mentions at
    all."""

    count: int = 0
    firsts: int = 0


class AuditTrail:
    """Writes events to files of their own.

    Args:
        folder: The folder that contains the folder of the log.
        name: The name of the newest file.
        settings: How much may be written.
        system: Files, clock and threads to use.
    """

    def __init__(self, folder: Path, name: str, settings: AuditSettings, system: System) -> None:
        self._clock = system.clock
        self._threads = system.threads
        self._file = AuditFile(
            system.files, folder / AUDIT / name, settings.audit_file_bytes, settings.audit_files
        )
        now = self._clock.monotonic()
        factors = {EventKind.ADMINISTRATION: ADMINISTRATION_FACTOR}
        self._rates = {
            kind: TokenBucket(rate * BURST_S, rate, now)
            for kind in (EventKind.LOGIN, EventKind.DENIED, EventKind.ADMINISTRATION)
            for rate in (settings.audit_rate * factors.get(kind, 1),)
        }
        self._limited_log = LimitedLog(_log, self._clock.monotonic)
        self._news = system.threads.condition()  # over what follows
        self._senders: dict[EventSender, _DeniedSender] = {}
        self._forgot_at = now
        self._queue: deque[tuple[dict[str, Any], Future[None]]] = deque()
        self._counts: dict[tuple[EventKind, EventSender], _Unlisted] = {}
        self._lost = 0
        self._is_stopping = False
        self._thread: Thread | None = None

    @property
    def path(self) -> Path:
        """The file with the newest events."""
        return self._file.path

    def start(self) -> None:
        """Begin to write."""
        self._is_stopping = False
        name = f"firetrail-{self.path.stem}"
        self._thread = self._threads.thread(name, self._write_all)
        self._thread.start()

    def stop(self) -> None:
        """Write the remaining events, and close the file. It is called in a thread."""
        if self._thread is None:
            return
        with self._news:
            self._is_stopping = True
            self._news.notify_all()
        self._thread.join(STOP_S)
        self._thread = None

    # -- events -------------------------------------------------------------------------------

    def admits(self, kind: EventKind, peer: str, user: str = "", about: str = "") -> bool:
        """Return whether an event gets a line of its own; otherwise it is counted.

        Args:
            kind: The kind of the event.
            peer: ``ip:port`` of the client.
            user: The authenticated user. Default: none.
            about: The permission that was denied; the first denial of each gets a line. Default:
                empty, for unknown.
        """
        now = self._clock.monotonic()
        is_denied = kind is EventKind.DENIED
        by_user = bool(user) and is_denied
        name = ("user", user) if by_user else ("peer", peer.rpartition(":")[0] or peer)
        with self._news:
            is_first, is_within_rate = False, True
            if is_denied:
                sender = self._sender(name, now)
                is_first = by_user and sender.is_first(about, now)
                is_within_rate = sender.bucket.take(1, now) or (is_first and sender.has_room)
            if is_within_rate and self._rates[kind].take(1, now):
                if is_first:
                    sender.listed(about)
                return True
            if (kind, name) not in self._counts and len(self._counts) >= SENDERS_MAX:
                name = OTHERS
            unlisted = self._counts.setdefault((kind, name), _Unlisted())
            unlisted.count += 1
            unlisted.firsts += is_first
        return False

    def _sender(self, name: EventSender, now: float) -> _DeniedSender:
        sender = self._senders.get(name)
        if sender is None:
            if len(self._senders) >= SENDERS_MAX:
                self._forget_senders(now)
            if len(self._senders) >= SENDERS_MAX:
                name = OTHERS
            is_user = name[0] == "user"
            fresh = (
                TokenBucket(USER_BURST, USER_PER_S, now)
                if is_user
                else TokenBucket(ADDRESS_BURST, ADDRESS_PER_S, now)
            )
            sender = self._senders.setdefault(name, _DeniedSender(fresh, now))
        return sender

    def _forget_senders(self, now: float) -> None:
        """Forget senders without recent events from time to time."""
        if now - self._forgot_at >= COUNTS_S:
            self._forgot_at = now
            self._senders = {
                name: sender
                for name, sender in self._senders.items()
                if not sender.bucket.is_full(now)
            }

    def put(self, kind: EventKind, event: Mapping[str, Any]) -> Future[None]:
        """Write an event soon; return a future that completes when it is written or lost.

        Args:
            kind: The subject.
            event: The other members of its line.
        """
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # a waiter cannot cancel it
        with self._news:
            if len(self._queue) < QUEUED_MAX:
                self._queue.append((self._stamped(kind, event), written))
                self._news.notify_all()
            else:
                self._lost += 1
                written.set_result(None)
        return written

    def _stamped(self, kind: EventKind, event: Mapping[str, Any]) -> dict[str, Any]:
        time = human_time(self._clock.now_ms()).replace(" ", "T")
        return {"time": time, "event": kind.value, **event}

    # -- the thread ---------------------------------------------------------------------------

    def _write_all(self) -> None:
        counted_at = self._clock.monotonic()
        while True:
            with self._news:
                if not self._queue and not self._is_stopping:
                    self._news.wait(COUNTS_S)
                taken = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                is_last = self._is_stopping and not self._queue
            events = [event for event, _ in taken]
            now = self._clock.monotonic()
            if is_last or now - counted_at >= COUNTS_S:
                counted_at = now
                events = [*self._taken_counts(), *events]
            self._write(events)
            for _, written in taken:
                written.set_result(None)
            if is_last:
                self._file.close()
                return

    def _taken_counts(self) -> list[dict[str, Any]]:
        """Return events with the numbers of those that had no line, and begin to count again."""
        with self._news:
            counts, self._counts = self._counts, {}
        events = []
        for (kind, (what, name)), unlisted in counts.items():
            event: dict[str, Any] = {what: name, "unlisted": unlisted.count}
            if unlisted.firsts:
                event["unlisted_new"] = unlisted.firsts
            events.append(self._stamped(kind, event))
        return events

    def _write(self, events: list[dict[str, Any]]) -> None:
        """Write events; log a failure, and write the number of events that it cost later."""
        with self._news:
            lost, self._lost = self._lost, 0
        if lost:
            events = [self._stamped(EventKind.LOST, {"unlisted": lost}), *events]
        if not events:
            return
        try:
            self._file.append([_line(event) for event in events])
        except Exception as error:  # the thread and the server continue after any error
            missed = lost + len(events) - (1 if lost else 0)
            with self._news:
                self._lost += missed
            self._limited_log.log(
                logging.ERROR,
                "audit",
                f"the audit log {self._file.path} cannot be written, and "
                f"{counted(missed, 'event')} of it wait to be counted as lost: {error}; "
                "requests are answered nevertheless",
            )


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
