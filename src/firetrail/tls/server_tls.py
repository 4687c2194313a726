"""TLS on the ports of a process: one certificate for all of them, which may be replaced."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Self

from firetrail.errors import ConfigError, ProtocolError
from firetrail.system import SYSTEM, System
from firetrail.tls.certificates import (
    CERTIFICATE,
    KEY,
    check_private,
    content,
    load_certificate,
    load_trust,
    server_context,
)
from firetrail.tls.tls_config import ClientAuth, TlsConfig, TlsMode
from firetrail.tls.tls_session import HANDSHAKE, TlsSession
from firetrail.tls.user_names import UserNames
from firetrail.tls.validity import RENEWED_DAYS, Validity, validity_of

RELOAD_S = 2.0
"""Interval at which the files are compared with those in use."""
EXPIRY_S = 86_400.0
"""Interval of the warnings about a certificate that expires."""
HANDSHAKES_MAX = 1_000
"""Maximum number of handshakes in progress. If there are more, the oldest is dropped, so that
clients that never finish theirs do not keep others out. Each takes about 30 KiB."""
FIRST_BYTE_S = 5.0
"""The time within which a client has to send its first byte."""
HANDSHAKE_S = 10.0
"""Maximum duration of a handshake."""

_log = logging.getLogger(__name__)


class ServerTls:
    """The TLS of the ports of a process.

    Attributes:
        mode: How the ports treat TLS and plaintext.
        context: The certificate in use; None if the mode is ``disabled``.
    """

    def __init__(self, config: TlsConfig, system: System = SYSTEM) -> None:
        """Load the files.

        Args:
            config: The settings.
            system: Files and clock to use; tests replace them. Default: those of the machine.

        Raises:
            ConfigError: A file is missing or cannot be used.
        """
        self._config = config
        self._system = system
        self._names = UserNames.parse(config.user_names)
        self.mode = config.server_mode
        self.context: ssl.SSLContext | None = None
        self._validity: Validity | None = None
        self._seen = self._digests()
        if self.mode is not TlsMode.DISABLED:
            self.context, self._validity = self._load()
        self._polled_at = self._warned_at = system.clock.monotonic()
        if self.context is not None:
            self._warn_of_validity()
        self._refreshing = threading.Lock()
        self._polling: asyncio.Future[bool] | None = None
        self._handshakes: dict[Callable[[], None], None] = {}  # by what ends them, oldest first

    @classmethod
    def of_config(cls, config: TlsConfig, system: System = SYSTEM) -> Self | None:
        """Return the TLS of some settings; None if they do not mention any.

        Args:
            config: The settings.
            system: Files and clock to use; tests replace them. Default: those of the machine.

        Raises:
            ConfigError: A file is missing or cannot be used.
        """
        is_set = config.mode or config.server_mode is not TlsMode.DISABLED
        return cls(config, system) if is_set else None

    @classmethod
    def of_context(cls, context: ssl.SSLContext, mode: TlsMode = TlsMode.PERMISSIVE) -> Self:
        """Return TLS with a certificate that is not in files.

        Args:
            context: The certificate.
            mode: How the ports treat TLS and plaintext. Default: PERMISSIVE, which accepts both.
        """
        tls = cls(TlsConfig(mode=TlsMode.DISABLED.value))
        tls.mode, tls.context = mode, context
        return tls

    @property
    def requires_certificates(self) -> bool:
        """Whether only clients with a certificate of a trusted issuer can connect."""
        is_required = self._config.client_auth == ClientAuth.REQUIRE.value
        return is_required and self.mode is TlsMode.ENFORCING

    # -- connections --------------------------------------------------------------------------

    def begin(self, first: int, drop: Callable[[], None]) -> TlsSession | None:
        """Return a session for a client if its first byte is TLS; None if it is plaintext.

        Args:
            first: The first byte.
            drop: Closes the connection, if too many handshakes are in progress.

        Raises:
            ProtocolError: The mode does not allow the protocol of the client.
        """
        if first != HANDSHAKE:
            if self.mode is TlsMode.ENFORCING:
                raise ProtocolError("the client does not use TLS, which this port requires")
            return None
        if self.context is None:
            raise ProtocolError("the client uses TLS, which is disabled on this port")
        self._handshakes[drop] = None
        if len(self._handshakes) > HANDSHAKES_MAX:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest()
        return TlsSession(self.context)

    def finished(self, drop: Callable[[], None]) -> None:
        """Note that a handshake has ended, or that its connection is closed."""
        self._handshakes.pop(drop, None)

    def user_of(self, session: TlsSession) -> str | None:
        """Return the user that the certificate of a client names; None if it names none."""
        return self._names.user_of(session.peer_certificate)

    # -- files --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Look for changed files in a thread, if it is time to; called about once per second."""
        now = self._system.clock.monotonic()
        if self.context is None or not self._seen or now - self._polled_at < RELOAD_S:
            return
        self._polled_at = now
        self._polling = asyncio.get_running_loop().run_in_executor(None, self.refresh)
        self._polling.add_done_callback(_report)

    def refresh(self) -> bool:
        """Use the files if they have changed; return whether there is a new certificate.

        Connections that are open keep the old one. If the new files cannot be used, so does the
        server, until they change again.
        """
        with self._refreshing:
            digests = self._digests()
            if digests == self._seen:
                if self._system.clock.monotonic() - self._warned_at >= EXPIRY_S:
                    self._warn_of_validity()
                return False
            self._seen = digests
            try:
                self.context, self._validity = self._load()
            except ConfigError as error:
                _log.error("the previous TLS certificate remains in use: %s", error)
                return False
            _log.info("the TLS certificate in %s is in use now", self._config.certificate)
            self._warn_of_validity()
            return True

    def _warn_of_validity(self) -> None:
        """Warn if the certificate is not valid, or not for long: at the start, on change, daily."""
        self._warned_at = self._system.clock.monotonic()
        if self._validity is None:
            return
        path = self._config.certificate
        begin, end = self._validity
        now = datetime.fromtimestamp(self._system.clock.now_ms() / 1000, UTC)
        if begin > now:
            _log.warning(
                "the TLS certificate in %s is not valid before %s, and clients refuse it until "
                "then; set the clock of this machine, or replace the certificate and its key, "
                "which needs no restart",
                path,
                f"{begin:%Y-%m-%d %H:%M:%S} UTC",
            )
        if end - now > timedelta(days=RENEWED_DAYS):
            return
        _log.warning(
            "the TLS certificate in %s %s on %s, and clients refuse an expired one; replace it and "
            "its key, which needs no restart ('firetrail up --secure' does so when it starts)",
            path,
            "expires" if end > now else "has expired",
            f"{end:%Y-%m-%d %H:%M:%S} UTC",
        )

    def _digests(self) -> list[bytes]:
        config = self._config
        return [
            self._digest(path) for path in (config.certificate, config.key, config.trust) if path
        ]

    def _digest(self, path: str) -> bytes:
        try:
            files, file = self._system.files, Path(path)
            return sha256(files.read(file)).digest() + bytes([files.is_private(file)])
        except OSError:
            return b""

    def _load(self) -> tuple[ssl.SSLContext, Validity | None]:
        """Return a context with the files as they are now, and the validity of its certificate."""
        config = self._config
        context = server_context()
        load_certificate(context, config.certificate, config.key, config.key_password)
        check_private(KEY, config.key)
        validity = validity_of(content(CERTIFICATE, config.certificate))
        auth = ClientAuth(config.client_auth)
        if auth is not ClientAuth.NONE:
            load_trust(context, config.trust)
            required = auth is ClientAuth.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            context.num_tickets = 0  # a resumed session would not check the certificate again
            context.options |= ssl.OP_NO_TICKET
        return context, validity


def _report(polling: asyncio.Future[bool]) -> None:
    """Log why the files could not be checked."""
    if not polling.cancelled() and (error := polling.exception()) is not None:
        _log.error("the files of TLS could not be checked; will retry", exc_info=error)
