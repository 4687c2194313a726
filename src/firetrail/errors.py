"""The errors of Firetrail, in one tree.

::

    FiretrailError
    ├── FormatError (also ValueError)   bytes or text violate their format
    ├── ConfigError (also ValueError)   a setting or an argument is unknown or out of range
    │   ├── WrongTypeError (also TypeError)  a setting or an argument has the wrong type
    │   └── MisspeltKeyError            a key in a file is almost that of a setting
    ├── UnsupportedError                a broker is configured for a feature it does not have
    ├── ProtocolError (also ValueError) bytes on a connection are not a valid command
    │   └── NotRocketMQError (also ConnectionError)  a peer answers in another protocol
    ├── RequestError                    a request was answered with an error code
    │   └── NoRouteYetError             no broker has registered at the name server yet  retry later
    │       └── NoMasterYetError        only replicas of a broker are registered    retry later
    ├── GrpcError                       a gRPC call ends with another status than OK
    ├── ProxyError                      a call of a gRPC client is answered with an error code
    ├── NotReachedError (also ConnectionError)  no server answers at the address    retry later
    │   ├── NoAnswerError (also TimeoutError)   a server did not answer in time     retry later
    │   └── TlsError                    the TLS handshake with a server failed
    ├── NoSuchError                     a topic, queue or group does not exist
    ├── AddressInUseError (also OSError)  another process listens on the port
    ├── ClientClosedError               a client was used before open, after close, or in
    │                                   another event loop
    ├── PipelineError                   Spark cannot do the requested work
    │   ├── MissingExtraError           PySpark or PyArrow is not installed
    │   ├── JavaMissingError            Java is not installed
    │   ├── JavaTooOldError             Java is too old for Spark
    │   ├── NotSharedError              a worker does not see the driver's files
    │   ├── CheckpointError             a stream would lose rows: wrong checkpoint or writeId
    │   ├── OutageError                 a name server or broker is away         retry later
    │   └── LakeError                   an archive or table cannot be written or read as requested
    │       └── LakeConflictError       another job has changed the lake meanwhile
    ├── ReplicationError                a replica cannot follow its master
    │   ├── DivergedError               the logs of two brokers are not the same
    │   │   └── OlderMasterError        an elected master lacks confirmed messages
    │   ├── StuckError                  the master does not send what the replica lacks
    │   └── ElectionError               the engine that elects masters refuses a request
    └── StoreError                      a store cannot do what was requested
        ├── NotAStoreError              the folder contains no message store
        ├── StoreLockedError            another process has the store open          retry later
        ├── StoreDamagedError           durable data does not read back
        │   └── QueueGapError           a queue lacks messages before those to append
        ├── DataLostError               retention has deleted the requested messages
        ├── StoreReadOnlyError          opened for reading, or writing stopped after a failure
        ├── StoreBusyError              the store cannot keep up at the moment      retry later
        ├── StoreClosedError            the store was used before open or after close
        ├── DiskFullError               no space for the next file                  retry later
        ├── FlushFailedError            a message is not known to be on disk
        ├── NotReplicatedError          stored, but too few replicas have confirmed it
        ├── SegmentSizeError            the length of a file does not match its queue
        └── IllegalMessageError         the store must reject the message
            └── PropertiesTooLongError  its properties do not fit into a record

"retry later" marks the errors whose ``retriable`` is True: the same call may succeed later. The
others need another argument, another file or an operator. Whether a RequestError is retriable
depends on its code. The message of each error names the thing, the place and the remedy. Errors
with arguments also keep them as attributes, and can be pickled, because they cross process
boundaries in bulk jobs.

Exceptions that modules raise and catch among themselves are not in the tree.
"""

RETRIABLE_CODES = frozenset({1, 2, 14, 215})
"""Response codes of temporary failures: SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE and
FLOW_CONTROL. Clients and the pipeline retry after these."""


class FiretrailError(Exception):
    """The base class of Firetrail's errors."""

    retriable: bool = False
    """Whether the same call may succeed later, unchanged."""


class FormatError(FiretrailError, ValueError):
    """Bytes or text violate their format.

    Args:
        field: The part of the input that is wrong.
        offset: Its position in the input of the decoder, in bytes, or in characters for text.
        detail: The fault, and the remedy.
    """

    def __init__(self, field: str, offset: int, detail: str) -> None:
        super().__init__(field, offset, detail)
        self.field = field
        self.offset = offset
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field} at offset {self.offset}: {self.detail}"


class ProtocolError(FiretrailError, ValueError):
    """Bytes on a connection are not a valid command."""


class NotRocketMQError(ProtocolError, ConnectionError):
    """A peer answered with bytes that are not a RocketMQ command, and the connection was closed.

    ``retriable`` is False: another program listens at the address.
    """


class RequestError(FiretrailError):
    """A request was answered with an error code.

    A handler raises it to send an error response, and the client that receives it raises it again.

    Args:
        code: The response code (:class:`ResponseCode`).
        remark: The reason, in the words of the peer.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.retriable = code in RETRIABLE_CODES
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


class NoRouteYetError(RequestError):
    """The brokers that are needed are not registered at the name server at the moment.

    A name server that has just started knows no topics until the brokers register, which takes
    seconds, so it is unknown whether a topic exists. A broker that restarts is not registered for a
    moment, either.

    Args:
        code: The response code, TOPIC_NOT_EXIST.
        remark: The reason.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.retriable = True


class NoMasterYetError(NoRouteYetError):
    """No master of a broker is registered at the moment, only replicas: none can be sent to.

    Args:
        code: The response code, TOPIC_NOT_EXIST.
        remark: The reason.
    """


class GrpcError(FiretrailError):
    """A gRPC call ends with another status than OK.

    Args:
        code: The status (:class:`firetrail.proxy.transport.call.StatusCode`).
        text: The reason, for the person who reads the client's log.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"gRPC status {int(self.code)}: {self.text}"


class ProxyError(FiretrailError):
    """A call of a gRPC client is answered with an error code.

    Args:
        code: The code (``Code`` of the gRPC schema).
        text: The reason.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"code {self.code}: {self.text}"


class NotReachedError(FiretrailError, ConnectionError):
    """No name server or broker runs at the address, or it does not answer."""

    retriable = True
    may_have_arrived: bool = True
    """Whether the request may have arrived; False if no connection could be opened for it."""


class NoAnswerError(NotReachedError, TimeoutError):
    """A name server or broker did not answer in time; it may have executed the request."""


class TlsError(NotReachedError):
    """The TLS handshake failed: a certificate is not accepted, or a side does not use TLS."""

    retriable = False


class NoSuchError(FiretrailError):
    """The topic, queue or group does not exist in the store or cluster."""


class AddressInUseError(FiretrailError, OSError):
    """Another process listens on the port."""


class ClientClosedError(FiretrailError):
    """A client was used before it was opened, after it was closed, or in another event loop."""


SHOWN_MAX = 200
"""Maximum length of a value in an error message."""


class ConfigError(FiretrailError, ValueError):
    """A setting or an argument has a value that is not allowed, or its key does not exist.

    Args:
        key: The name of the setting or argument.
        value: The value that was given.
        allowed: The allowed values.
        place: The file and line of the value with a colon and a space; empty if it is in no file.
    """

    def __init__(self, key: str, value: object, allowed: str, place: str = "") -> None:
        super().__init__(key, value, allowed, place)
        self.key = key
        self.value = value
        self.allowed = allowed
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}{self.key} = {_shown(self.value)}: {self.allowed}"


class WrongTypeError(ConfigError, TypeError):
    """A setting or an argument has the wrong type."""


class MisspeltKeyError(ConfigError):
    """A key in a file of settings is not known, but almost equal to one that is.

    Its value would have no effect. It is not shown, because the key may be that of a secret.
    """

    def __str__(self) -> str:
        return f"{self.place}{self.key} {self.allowed}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers with thousands of digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


class UnsupportedError(FiretrailError):
    """A setting, or a file of a Java broker, requires a feature that Firetrail does not have."""


class PipelineError(FiretrailError):
    """The base class of the errors of ``pipeline``, except those of the stores it works on."""


class MissingExtraError(PipelineError):
    """The packages of the extra ``spark`` are not installed."""


class JavaMissingError(PipelineError):
    """Spark needs Java, but Java is not installed."""


class JavaTooOldError(PipelineError):
    """All installed versions of Java are too old for Spark."""


class NotSharedError(PipelineError):
    """A worker and the driver see different files under the same path, or one of them sees none."""


class CheckpointError(PipelineError):
    """A write was refused because the store has other rows under the same id and number.

    The rows would be lost if the write were skipped as a repetition. The checkpoint of the stream
    is older than the store, was emptied or copied, or its ``writeId`` is used by another query.
    """


class OutageError(PipelineError):
    """A name server or broker that is needed did not become available within a limit."""

    retriable = True


class LakeError(PipelineError):
    """The folder contains no archive, an incomplete one, one of another store, or other files.

    Or the object store of the lake refused a request, or could not be reached.
    """


class LakeConflictError(LakeError):
    """Another job has changed the lake since this one read what it holds. Nothing was changed."""


class ReplicationError(FiretrailError):
    """A replica cannot follow its master."""


class DivergedError(ReplicationError):
    """The logs of master and replica are not the same; following would join two histories."""


class OlderMasterError(DivergedError):
    """The elected master of a group lacks messages that all members of the group had confirmed."""


class StuckError(ReplicationError):
    """The master no longer has, or does not send, the messages that the replica needs next."""


class ElectionError(ReplicationError):
    """The consensus engine that decides which broker is the master refuses a request."""


class StoreError(FiretrailError):
    """The base class of the errors of ``storage`` and ``store``.

    A put raises the class itself if nothing was stored because a file operation failed.
    """

    code: int = 1
    """The response code of a broker to a request that fails with this error and stores nothing:
    RocketMQ's SYSTEM_ERROR, unless a class has a better one."""


class NotAStoreError(StoreError):
    """The folder does not exist, is not a folder, or contains no message store."""


class StoreLockedError(StoreError):
    """Another process, or another store object of this process, has the store open."""

    retriable = True


class StoreDamagedError(StoreError):
    """Data below the durable watermark does not read back; it is never truncated silently.

    Args:
        file: The damaged file.
        offset: The position in the file.
        physical_offset: The position in the commit log of the record concerned; None if the damage
            does not concern a record (a header, a file name, a length).
        detail: The fault.
        remedy: The remedy.
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
    """The next message of the log does not directly follow the last one of its queue."""


class DataLostError(StoreError):
    """The requested messages are no longer in the store, because retention has deleted them."""


class StoreReadOnlyError(StoreError):
    """The store accepts no writes: read-only, closed, nearly full disk, or an earlier failure.

    ``retriable`` is False for reasons that need an operator. It is True if the store accepts
    messages again by itself: after a nearly full disk, a shortage of memory or descriptors, or a
    lease that was over.
    """

    code = 14  # SERVICE_NOT_AVAILABLE


class StoreBusyError(StoreError):
    """Nothing was stored, because the disk or dispatch cannot keep up at the moment.

    A broker's own reads also raise it for a record that is being repaired.
    """

    retriable = True
    code = 2  # SYSTEM_BUSY


class StoreClosedError(StoreError):
    """The store is not open."""


class DiskFullError(StoreError):
    """The disk, or the quota, has no space for the next file."""

    retriable = True
    code = 14  # SERVICE_NOT_AVAILABLE, RocketMQ's code for a full disk


class FlushFailedError(StoreError):
    """Stored messages are not known to be on disk: a sync failed, or did not end in time.

    A failed sync is never retried, because the kernel may have dropped the pages; the store then
    accepts no more messages. A sync that is only slow (FLUSH_DISK_TIMEOUT) continues.
    """


class NotReplicatedError(StoreError):
    """A message was stored, but too few replicas have confirmed it."""


class SegmentSizeError(StoreError):
    """A file of a segment queue has another length than its neighbours."""


class IllegalMessageError(StoreError):
    """The format cannot represent the message, or the store must not accept it.

    Args:
        field: The part of the message at fault: ``"topic"``, ``"body"``, ``"property KEYS"``.
        detail: The fault, and the allowed values.
    """

    code = 13  # MESSAGE_ILLEGAL

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"


class PropertiesTooLongError(IllegalMessageError):
    """The properties of a message do not fit into a record."""
