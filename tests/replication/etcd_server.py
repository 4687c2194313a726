"""A real etcd in a process of its own; without etcd, tests that need it are skipped."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from tests.helpers import PATIENCE_S
from tests.machine.etcd_program import MISSING, find_etcd
from tests.ports import free_ports


@contextmanager
def etcd_server(
    folder: Path,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    ports: Sequence[int] | None = None,
) -> Iterator[str]:
    """Run a server with its data in a folder; its ``host:port``.

    ``prefix`` is the beginning of a command that runs another one elsewhere, at ``host``. ``ports``
    are those for clients and for other servers, free ones by default.
    """
    program = find_etcd()
    if program is None:
        pytest.skip(MISSING)
    client, peer = ports or free_ports(2)
    url, peer_url = f"http://{host}:{client}", f"http://{host}:{peer}"
    command = [
        *(
            *prefix,
            program,
            "--data-dir",
            str(folder / "etcd"),
            "--name",
            "one",
            "--unsafe-no-fsync",
        ),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
        *("--initial-cluster", f"one={peer_url}", "--log-level", "error"),
    ]
    with (folder / "etcd.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_until_healthy(process, host, client, folder / "etcd.log")
        yield f"{host}:{client}"
    finally:
        process.kill()
        process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    over_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < over_at and process.poll() is None:
        connection = HTTPConnection(host, port, timeout=1)
        try:
            connection.request("GET", "/health")
            if b"true" in connection.getresponse().read():
                return
        except (OSError, HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError(f"etcd did not start: {log.read_text()[-2000:]}")
