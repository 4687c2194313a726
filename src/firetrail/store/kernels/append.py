"""The append: a record gets its store time, queue offset and place, and is written.

:meth:`Appender.put` is the fast path of a put, from the message to the result, in one step. It
applies if the record fits into the allocated part of the active file and into the current write
buffer, and the message has no delay and names no light queue. Otherwise the caller makes room and
calls :meth:`Appender.append`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from firetrail.format.kernels import _shadow as cython

from firetrail.errors import IllegalMessageError, StoreError
from firetrail.format.values.hosts import Host
from firetrail.format.values.ids import encode_message_id
from firetrail.store.outcomes import OUTCOMES, PutStatus

if cython.compiled:
    import cython.cimports.firetrail.format.kernels._constants as k
    from cython.cimports.firetrail.format.kernels.draft import Draft, DraftRules, Message
    from cython.cimports.firetrail.format.kernels.encode import RecordFields, RecordWriter
else:
    from firetrail.format.kernels import _constants as k
    from firetrail.format.kernels.draft import Draft, DraftRules, Message
    from firetrail.format.kernels.encode import RecordFields, RecordWriter

COMPILED = cython.compiled


CLOCK_STEP_BACK_MS_MAX = 60_000
"""The largest step back of the clock after which store times stay at their last value.

After a larger step they follow the clock, because a clock that was once years ahead would otherwise
date all later messages.
"""
_STEP_BACK_MAX = cython.declare(cython.longlong, CLOCK_STEP_BACK_MS_MAX)


PUT_OK = PutStatus.PUT_OK


@cython.cclass
class PutResult:
    """The place at which a message, or the first message of a batch, was stored.

    Attributes:
        status: How the put ended.
        queue_id: The number of the queue.
        queue_offset: The number of the message in the queue; -1 if nothing was stored.
        physical_offset: Its position in the log; -1 if nothing was stored.
        size: The bytes that were written to the log.
        store_time: The time at which it was stored, in ms.
        store_host: The address of the store; None if nothing was stored.
        messages: The number of messages that were stored.
        detail: The reason of the failure; empty if nothing did.
        field: The field of the message that ``detail`` is about.
        is_temporary: Whether the store refused the message for a reason that ends by itself.
    """

    status: PutStatus = cython.declare(object, visibility="readonly")
    queue_id: int = cython.declare(cython.longlong, visibility="readonly")
    queue_offset: int = cython.declare(cython.longlong, visibility="readonly")
    physical_offset: int = cython.declare(cython.longlong, visibility="readonly")
    size: int = cython.declare(cython.longlong, visibility="readonly")
    store_time: int = cython.declare(cython.longlong, visibility="readonly")
    store_host: Host | None = cython.declare(object, visibility="readonly")
    messages: int = cython.declare(cython.longlong, visibility="readonly")
    detail: str = cython.declare(str, visibility="readonly")
    field: str = cython.declare(str, visibility="readonly")
    is_temporary: object = cython.declare(object, visibility="readonly")

    def __init__(
        self,
        status: PutStatus,
        queue_id: cython.longlong = 0,
        queue_offset: cython.longlong = -1,
        physical_offset: cython.longlong = -1,
        size: cython.longlong = 0,
        store_time: cython.longlong = 0,
        store_host: Host | None = None,
        messages: cython.longlong = 0,
        detail: str = "",
        field: str = "message",
        is_temporary: object = False,
    ) -> None:
        self.status = status
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.size = size
        self.store_time = store_time
        self.store_host = store_host
        self.messages = messages
        self.detail = detail
        self.field = field
        self.is_temporary = is_temporary

    def __repr__(self) -> str:
        if self.store_host is None:
            return f"PutResult({self.status.value}, {self.field}: {self.detail})"
        detail = f", {self.detail}" if self.detail else ""
        return (
            f"PutResult({self.status.value}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, physical_offset={self.physical_offset}, "
            f"size={self.size}, store_time={self.store_time}, messages={self.messages}{detail})"
        )

    @property
    def ok(self) -> bool:
        """Whether the message is stored as durably as configured."""
        return self.status is PUT_OK

    @property
    def end_offset(self) -> int:
        """Physical offset after the message, or after the last one of a batch."""
        return self.physical_offset + self.size

    @property
    def message_id(self) -> str | None:
        """The offset message id, of the first message of a batch; None if nothing was stored."""
        if self.store_host is None:
            return None
        return encode_message_id(self.store_host, self.physical_offset)

    def with_status(self, status: PutStatus, detail: str) -> PutResult:
        """Return a result with the same position and another status."""
        return PutResult(
            status,
            self.queue_id,
            self.queue_offset,
            self.physical_offset,
            self.size,
            self.store_time,
            self.store_host,
            self.messages,
            detail,
            self.field,
        )

    def require_ok(self) -> PutResult:
        """Return this result, or raise the error for its status."""
        if self.status is PUT_OK:
            return self
        kind: type[StoreError] = OUTCOMES[self.status].error or StoreError
        if issubclass(kind, IllegalMessageError):
            raise kind(self.field, self.detail)
        if self.status is PutStatus.UNKNOWN_ERROR and self.store_host is None:
            raise StoreError(self.detail)
        error: StoreError = kind(f"{self.status.value}: {self.detail}")
        if self.is_temporary:
            error.retriable = True
        raise error


@cython.cclass
class Appender:
    """Appends to the active file of the log.

    ``queues`` are the queues in use by topic and queue id; each has its topic as ``encoded_topic``
    and counts ``next_offset``. ``lock`` is that of the log, ``time_ns`` the clock.
    """

    last_store_time: int = cython.declare(cython.longlong, visibility="public")
    calls: int = cython.declare(cython.longlong, visibility="public")
    messages: int = cython.declare(cython.longlong, visibility="public")
    bytes: int = cython.declare(cython.longlong, visibility="public")
    _rules: DraftRules
    _store_host: Host
    _queues: dict[tuple[str, int], Any]
    _locked: Any
    _acquire: Any
    _release: Any
    _time_ns: Any
    _segment: Any
    _writer: RecordWriter
    _base: cython.longlong
    _end: cython.Py_ssize_t
    _buffered: cython.bint
    _writer_start: cython.Py_ssize_t

    def __init__(
        self,
        rules: DraftRules,
        store_host: Host,
        queues: dict[tuple[str, int], Any],
        lock: Any,
        time_ns: Callable[[], int],
    ) -> None:
        self._rules = rules
        self._store_host = store_host
        self._queues = queues
        self._locked = lock.locked
        self._acquire = lock.acquire
        self._release = lock.release
        self._time_ns = time_ns
        self.detach()
        self.last_store_time = 0
        self.calls = self.messages = self.bytes = 0

    def attach(
        self,
        segment: Any,
        writer: RecordWriter,
        base: cython.longlong,
        end: cython.Py_ssize_t,
        buffer_start: cython.Py_ssize_t = -1,
    ) -> None:
        """Write with ``writer`` to ``segment`` (starting at ``base``) up to position ``end``.

        If ``buffer_start`` is given, the writer has a buffer from that position on, in which the
        bytes wait for their commit; otherwise it writes to the file itself.
        """
        self._segment = segment
        self._writer = writer
        self._base = base
        self._end = end
        self._buffered = buffer_start >= 0
        self._writer_start = max(buffer_start, 0)

    def pause(self) -> None:
        """Leave every put to the caller until the next :meth:`attach`."""
        self._end = -1

    def detach(self) -> None:
        """Release the file; every put is left to the caller."""
        self.attach(None, RecordWriter(bytearray(1)), 0, -1)

    def put(self, message: Message) -> PutResult | None:
        """Write the message to the file, or return None, and change nothing, for the slow path.

        Raises IllegalMessageError.
        """
        queue = self._queues.get((message.topic, message.queue_id))
        if queue is None:
            return None
        draft: Draft = Draft(message, queue.encoded_topic, self._rules)
        if draft.may_delay or draft.names_light_queues or self._locked():
            return None
        self._acquire()
        try:
            return self._append(draft, queue)
        finally:
            self._release()

    def append(self, draft: Draft, queue: Any) -> PutResult:
        """Write the record of ``draft``. The caller holds the lock and has attached room for it."""
        return self._append(draft, queue) or self._no_room(draft.size)

    def append_batch(self, draft: Any, queue: Any) -> PutResult:
        """Write the records of a ``BatchDraft`` in one piece; the caller prepares as above."""
        if self._end < draft.size or self._segment.wrote > self._end - draft.size:
            return self._no_room(draft.size)
        at: cython.Py_ssize_t = self._segment.wrote
        common: RecordFields = draft.common
        queue_offset: cython.longlong = queue.next_offset
        self._place(common, at, queue_offset)
        self._writer.write_batch(
            at - self._writer_start, draft.items, common, self._rules.property_crc
        )
        return self._finish(
            common, queue, queue_offset + draft.messages, draft.size, draft.messages
        )

    @cython.cfunc
    def _append(self, draft: Draft, queue: Any) -> PutResult | None:
        if self._end < 0:
            return None
        at: cython.Py_ssize_t = self._segment.wrote
        if at + draft.size > self._end:
            return None
        queue_end: cython.longlong = queue.next_offset
        queue_offset: cython.longlong = 0
        if not draft.sys_flag & k.NO_QUEUE_OFFSET:
            queue_offset = queue_end
            queue_end += 1
        self._place(draft, at, queue_offset)
        self._writer.write(at - self._writer_start, draft)
        if self._rules.property_crc:
            self._writer.seal(at - self._writer_start, draft.size)
        return self._finish(draft, queue, queue_end, draft.size, 1)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _place(
        self, fields: RecordFields, at: cython.Py_ssize_t, queue_offset: cython.longlong
    ) -> cython.int:
        """Set the fields that a record gets at its place in the log."""
        fields.queue_offset = queue_offset
        fields.physical_offset = self._base + at
        fields.store_time = self._next_store_time()
        if fields.born_time == 0:
            fields.born_time = fields.store_time
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _next_store_time(self) -> cython.longlong:
        """The current time, or that of the last message if the clock has stepped back a little."""
        now: cython.longlong = self._time_ns()
        now //= 1_000_000
        if now < self.last_store_time <= now + _STEP_BACK_MAX:
            return self.last_store_time
        return now

    @cython.cfunc
    def _finish(
        self,
        first: RecordFields,
        queue: Any,
        queue_end: cython.longlong,
        size: cython.longlong,
        messages: cython.longlong,
    ) -> PutResult:
        """Count what was written from ``first`` on. Compiled, no interrupt (Ctrl-C) divides it."""
        end = first.physical_offset - self._base + size
        self._segment.wrote = end
        if not self._buffered:
            self._segment.committed = end
        queue.next_offset = queue_end
        self.last_store_time = first.store_time
        self.calls += 1
        self.messages += messages
        self.bytes += size
        return PutResult(
            PUT_OK,
            first.queue_id,
            first.queue_offset,
            first.physical_offset,
            size,
            first.store_time,
            self._store_host,
            messages,
        )

    @cython.cfunc
    def _no_room(self, size: cython.longlong) -> PutResult:
        raise ValueError(f"no room for {size} bytes was attached")
