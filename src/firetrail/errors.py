"""Every error Firetrail raises, in one tree.

::

    FiretrailError
    ├── FormatError (also ValueError)   bytes or text that are not what the format says
    ├── ConfigError (also ValueError)   a setting or an argument that is unknown or out of range
    │   └── WrongTypeError (also TypeError)  one of the wrong type
    ├── UnsupportedError                a broker was asked for what it does not do
    ├── ProtocolError (also ValueError) bytes on a connection that are no command
    ├── RequestError                    a request that was answered with an error code
    │   └── NoRouteYetError             no broker has registered at the name server yet  retry later
    ├── NotReachedError                 a name server or broker that does not answer  retry later
    ├── NoSuchError                     a topic, queue or group that does not exist
    ├── AddressInUseError               a port that another process listens on
    ├── ClientClosedError               a client used before open or after close
    ├── PipelineError                   bulk work that Spark cannot do as asked
    │   ├── MissingExtraError           PySpark or PyArrow is not installed
    │   ├── JavaMissingError            no Java anywhere
    │   ├── JavaTooOldError             no Java that Spark runs on
    │   ├── NotSharedError              a worker that does not see the driver's files
    │   └── LakeError                   an archive that cannot be written or read so
    └── StoreError                      a store that cannot do what was asked
        ├── NotAStoreError              the folder holds no message store
        ├── StoreLockedError            another process has the store open          retry later
        ├── StoreDamagedError           data that was durable does not read back
        │   └── QueueGapError           a queue lacks messages before those to append
        ├── DataLostError               messages asked for that retention has deleted
        ├── StoreReadOnlyError          opened for reading, or writing was given up
        ├── StoreClosedError            used before open or after close
        ├── DiskFullError               no room for the next file                   retry later
        ├── FlushFailedError            a sync failed: nothing more is acknowledged
        ├── SegmentSizeError            a file whose length does not fit its queue
        └── IllegalMessageError         a message the store must refuse
            └── PropertiesTooLongError  its properties do not fit into a record

"retry later" marks the errors whose ``retriable`` is True: they go away without a change to the
call. The others need another argument, another file or an operator. A RequestError is retriable
if its code is. The message of each error names the thing, the place and
what to do; errors with arguments also keep them as attributes, and survive pickling (they cross
process borders in bulk jobs).
"""

from __future__ import annotations

RETRIABLE_CODES = frozenset({1, 2, 14, 215})
"""Response codes that may be different a moment later: SYSTEM_ERROR, SYSTEM_BUSY,
SERVICE_NOT_AVAILABLE and FLOW_CONTROL. Clients and the pipeline retry on these."""


class FiretrailError(Exception):
    """Root of everything Firetrail raises on purpose."""

    retriable: bool = False
    """Whether the same call may succeed later, without a change to it."""


class FormatError(FiretrailError, ValueError):
    """Bytes (or text) that are not what their format says.

    ``offset`` counts from the start of the buffer that was given to the codec: a byte offset, or
    a character offset where the input was text.
    """

    def __init__(self, field: str, offset: int, detail: str) -> None:
        super().__init__(field, offset, detail)
        self.field = field
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field} at offset {self.offset}: {self.detail}"


class ProtocolError(FiretrailError, ValueError):
    """Bytes on a connection that are no command, or a command that cannot be made sense of."""


class RequestError(FiretrailError):
    """A request that is answered with an error code.

    A handler raises it to answer so, and the client that receives the response raises it again.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.retriable = code in RETRIABLE_CODES
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


class NoRouteYetError(RequestError):
    """No broker has registered at the name server, so it is unknown whether the topic exists.

    A name server that has just started knows no topics until the brokers register, within seconds.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.retriable = True


class NotReachedError(FiretrailError):
    """A name server or a broker does not exist at its address, or does not answer."""

    retriable = True


class NoSuchError(FiretrailError):
    """The store or the cluster has no such topic, queue or group."""


class AddressInUseError(FiretrailError):
    """Another process listens on the port."""


class ClientClosedError(FiretrailError):
    """A client was used before it was opened or after it was closed."""


SHOWN_MAX = 200
"""Characters of a value in the message of an error."""


class ConfigError(FiretrailError, ValueError):
    """A setting or an argument with a value it cannot have, or a key that does not exist."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key = key
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.key} = {_shown(self.value)}: {self.allowed}"


class WrongTypeError(ConfigError, TypeError):
    """A setting or an argument of the wrong type."""


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


class UnsupportedError(FiretrailError):
    """A setting, or a file of a Java broker, that asks for what Firetrail does not do."""


class PipelineError(FiretrailError):
    """Root of the errors of ``pipeline``, apart from those of the stores it works on."""


class MissingExtraError(PipelineError):
    """What the extra ``spark`` installs is not there."""


class JavaMissingError(PipelineError):
    """Spark needs Java, and there is none."""


class JavaTooOldError(PipelineError):
    """Every Java that was found is older than Spark needs."""


class NotSharedError(PipelineError):
    """A worker and the driver see different files under the same path, or one sees none."""


class LakeError(PipelineError):
    """The folder holds no archive, one of another store, one that is not whole, or other files."""


class StoreError(FiretrailError):
    """Root of the errors of ``storage`` and ``store``."""


class NotAStoreError(StoreError):
    """The folder is missing, is not a folder, or holds no message store."""


class StoreLockedError(StoreError):
    """The lock file is held by another process (or by another store object of this one)."""

    retriable = True


class StoreDamagedError(StoreError):
    """Data below the durable watermark does not read back: never truncated in silence.

    ``offset`` is the place in ``file``; ``physical_offset`` the log offset of the record it
    concerns, or None where there is none (a header, a file name, a length).
    """

    def __init__(
        self, file: str, offset: int, physical_offset: int | None, detail: str, remedy: str
    ) -> None:
        super().__init__(file, offset, physical_offset, detail, remedy)
        self.file = file
        self.offset = offset
        self.physical_offset = physical_offset
        self.detail = detail
        self.remedy = remedy

    def __str__(self) -> str:
        record = "" if self.physical_offset is None else f" (record {self.physical_offset})"
        return f"{self.file} at offset {self.offset}{record}: {self.detail}; {self.remedy}"


class QueueGapError(StoreDamagedError):
    """The log continues a queue after messages that the queue does not have."""


class DataLostError(StoreError):
    """Messages that were asked for are no longer in the store: retention has deleted them."""


class StoreReadOnlyError(StoreError):
    """The store takes no writes: opened read-only, or writing stopped after a failure."""


class StoreClosedError(StoreError):
    """The store is not open."""


class DiskFullError(StoreError):
    """The disk (or the quota) has no room for the file that is needed next."""

    retriable = True


class FlushFailedError(StoreError):
    """A sync failed. The kernel may have dropped the pages, so it is never tried again."""


class SegmentSizeError(StoreError):
    """A file of a segment queue is not as long as the files around it."""


class IllegalMessageError(StoreError):
    """A message that the format cannot hold or the store must not take.

    ``field`` is the part of the message at fault: ``"topic"``, ``"body"``, ``"property KEYS"``.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"


class PropertiesTooLongError(IllegalMessageError):
    """The properties of a message do not fit into a record."""
