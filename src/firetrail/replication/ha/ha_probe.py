"""A probe that detects whether an address is the HA port of a master.

Users confuse the HA port with the port of the broker. A request to it gets no answer, so the
replica sends the first report of an empty one and looks for the header of a transfer.
"""

import asyncio
import secrets
from contextlib import suppress

from firetrail.remoting.connections.remoting_client import split_address
from firetrail.replication.ha.ha_frames import BODY_MAX, HEADER, encode_introduction, encode_report
from firetrail.store.log.replica_acks import NO_MEMBER

IDENTITY_BITS = 63
PROBE_S = 2.0
"""The time that a port may take to answer. A master without messages may only send heartbeats, by
default every 5 s; this probe does not wait for them."""


async def is_ha_port(address: str) -> bool:
    """Return whether a master sends its log from an address.

    A port that refuses this peer, or belongs to a master in controller mode, is not recognised.

    Args:
        address: ``host:port`` to connect to.
    """
    host, port = split_address(address)
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                # Java ignores the introduction, by which a Firetrail master answers at once. With
                # an identity of its own the question is not taken for a replica on this machine.
                identity = secrets.randbits(IDENTITY_BITS)
                writer.write(encode_introduction(NO_MEMBER, identity) + encode_report(0))
                header = await reader.readexactly(HEADER.size)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, EOFError):  # TimeoutError and IncompleteReadError are such errors
        return False
    offset, size = map(int, HEADER.unpack(header))
    return (offset >= 0 or size == 0) and 0 <= size <= BODY_MAX
