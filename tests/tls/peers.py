"""A TLS client in memory, for tests of sessions."""

import ssl

from firetrail.tls.tls_session import TlsSession


class Client:
    """The other side of a session."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)

    def greet(self, session: TlsSession) -> None:
        for _ in range(5):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                session.decrypt(self.outgoing.read())
                return
            session.decrypt(self.outgoing.read())
            self.incoming.write(session.take_output())
        raise AssertionError("the handshake did not end")
