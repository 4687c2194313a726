"""TLS between a connection and its transport: bytes of TLS on one side, plain bytes on the other.

The connection passes received bytes to :meth:`TlsChannel.receive` and its own to
:meth:`TlsChannel.send`, and writes :meth:`TlsChannel.take_output` to the transport.
"""

from collections.abc import Callable

from firetrail.tls.server_tls import FIRST_BYTE_S, HANDSHAKE_S, ServerTls
from firetrail.tls.tls_session import TlsSession


class TlsChannel:
    """The TLS of one connection.

    Attributes:
        deadline: The time of the event loop by which the handshake has to end; None if it has
            ended.
        is_plain: Whether the peer speaks plaintext, so that the channel is not needed.
        user: The user that the certificate of the peer names; None if there is none.
    """

    __slots__ = ("_session", "_was_open", "deadline", "is_plain", "user")

    def __init__(self, session: TlsSession | None = None) -> None:
        self._session = session
        self._was_open = False  # when the connection was closed
        self.deadline: float | None = None
        self.is_plain = False
        self.user: str | None = None

    def receive(self, data: bytes, now: float) -> bytes:
        """Return the plain bytes of the peer; none while the handshake is in progress.

        Args:
            data: The received bytes. A client begins the handshake with none.
            now: The time of the event loop.

        Raises:
            ssl.SSLError: The peer violates the protocol, or its certificate is not accepted.
            ProtocolError: The port does not allow the protocol of the peer.
        """
        session = self._session
        assert session is not None
        was_open = session.is_open
        plain = session.decrypt(data)
        if session.is_open and not was_open:
            self._opened(session)
        return plain

    def _opened(self, session: TlsSession) -> None:
        self.deadline = None

    def send(self, data: bytes) -> None:
        """Encrypt plain bytes for the peer; the handshake must be done."""
        assert self._session is not None
        self._session.encrypt(data)

    def end(self) -> None:
        """Tell the peer that no more data follows."""
        if self._session is not None:
            self._session.end()

    def take_output(self) -> bytes:
        """Return the bytes to write."""
        return self._session.take_output() if self._session is not None else b""

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done."""
        return self._was_open if self._session is None else self._session.is_open

    @property
    def is_ended(self) -> bool:
        """Whether the peer has ended its data; the connection is to be closed then."""
        return self._session is not None and self._session.is_ended

    def lost(self) -> None:
        """Note that the connection is closed, and free the memory of TLS.

        The connection may be part of a cycle, which would keep some 40 KiB until garbage is
        collected.
        """
        self._was_open, self._session = self.is_open, None


class ServerChannel(TlsChannel):
    """The TLS of a client: the first byte decides whether there is any.

    Args:
        tls: The TLS of the port.
        drop: Closes the connection at once.
        now: The time of the event loop.
    """

    __slots__ = ("_drop", "_tls")

    def __init__(self, tls: ServerTls, drop: Callable[[], None], now: float) -> None:
        super().__init__()
        self._tls = tls
        self._drop = drop
        self.deadline = now + FIRST_BYTE_S

    def receive(self, data: bytes, now: float) -> bytes:
        """Return the plain bytes of the client: see :meth:`TlsChannel.receive`."""
        if self._session is None:
            self._session = self._tls.begin(data[0], self._drop)
            if self._session is None:
                self.is_plain = True
                self.deadline = None
                return data
            self.deadline = now + HANDSHAKE_S
        return super().receive(data, now)

    def _opened(self, session: TlsSession) -> None:
        super()._opened(session)
        self._tls.finished(self._drop)
        self.user = self._tls.user_of(session)

    def lost(self) -> None:
        """Note that the connection is closed: see :meth:`TlsChannel.lost`."""
        super().lost()
        self._tls.finished(self._drop)
