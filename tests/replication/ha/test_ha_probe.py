"""Ports that are taken for HA ports, and others."""

import asyncio
from pathlib import Path

import pytest
from tests.replication.masters import master_in

from firetrail.replication.ha import ha_probe
from firetrail.replication.ha.ha_probe import is_ha_port


@pytest.mark.parametrize("count", [0, 3])
async def test_the_ha_port_of_a_master(count: int, tmp_path: Path) -> None:
    async with master_in(tmp_path) as master:
        master.fill(count)
        assert await is_ha_port(f"127.0.0.1:{master.port.port}")
        assert not await is_ha_port(master.address.broker)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x20\0\0\0\x1c{}", b"\xff" * 12]
)
async def test_other_servers(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(16)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert not await is_ha_port(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_port_that_is_silent_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ha_probe, "PROBE_S", 0.05)
    release = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert not await is_ha_port(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        release.set()
    assert not await is_ha_port("127.0.0.1:1")
