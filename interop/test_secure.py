"""``firetrail up --secure`` with stock clients, set up as the command says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import LINES, QUICK_FLAGS, Servers, jars
from interop.stock import WAIT_S, client_environment

CLIENTS = Path(__file__).parent / "java" / "clients"
GRPC = Path(__file__).parent / "grpc" / "secured.py"
SHOP = ("shop", "the-password-of-shop")
GRANTS = "Topic:orders,Topic:TBW102,Group:shop"


class SecureUp(NamedTuple):
    """A server that ``firetrail up --secure`` has set up, and the tools of RocketMQ 5.3.3."""

    folder: Path
    namesrv: str
    grpc: str
    tools: Servers

    @property
    def flags(self) -> list[str]:
        """The output of the command for Java."""
        return ["-Dtls.enable=true", f"-Dtls.config.file={self.folder / 'client.properties'}"]

    def mqadmin(self, command: str, *arguments: str) -> str:
        """Run a command on all brokers, with the credentials in ``tools.yml``."""
        return self.tools.mqadmin(command, "-n", self.namesrv, "-c", "DefaultCluster", *arguments)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureUp]:
    folder = tmp_path_factory.mktemp("secure")
    ports = ["--port", "0", "--namesrv-port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-m", "firetrail", "up", "--secure", str(folder), *ports, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            flags = (*QUICK_FLAGS, "-Dtls.enable=true")
            config = f"-Dtls.config.file={folder / 'client.properties'}"
            tools = Servers("v5", tmp_path_factory.mktemp("tools"), (*flags, config))
            shutil.copy(folder / "tools.yml", tools.folder / "conf" / "tools.yml")
            made = SecureUp(folder, found["name_server"], found["grpc"], tools)
            said = made.mqadmin("createUser", "-u", SHOP[0], "-p", SHOP[1], "-t", "Normal")
            assert "success" in said
            allow = ("-r", GRANTS, "-a", "Pub,Sub", "-d", "Allow")
            assert "success" in made.mqadmin("createAcl", "-s", f"User:{SHOP[0]}", *allow)
            assert "success" in made.mqadmin("updateTopic", "-t", "orders", "-r", "4", "-w", "4")
            yield made
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0


def test_mqadmin_administers_with_tls_and_credentials(secure: SecureUp) -> None:
    said = secure.mqadmin("listUser")
    assert all(name in said for name in ("admin", "shop", "Super", "Normal"))


@pytest.mark.parametrize("line", LINES)
def test_java_clients_are_checked(secure: SecureUp, line: str) -> None:
    command = ["java", "-XX:TieredStopAtLevel=1", *secure.flags, "-cp", jars(line)]
    done = subprocess.run(
        [
            *command,
            str(CLIENTS / "SecuredClient.java"),
            secure.namesrv,
            *SHOP,
            "orders",
            "shop",
            "x",
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert not done.returncode, done.stderr[-2000:]
    said = dict(line.split("\t")[:2] for line in done.stdout.splitlines() if "\t" in line)
    assert said["right"] == "SEND_OK"
    assert said["received"] == "for your eyes only"
    assert (said["wrong key"], said["no key"]) == ("code 10005", "code 10005")


def test_python_grpc_clients_are_checked(secure: SecureUp) -> None:
    python = client_environment("grpc") / "venv" / "bin" / "python"
    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(secure.folder / "ca.pem")}

    def run(user: str, password: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), str(GRPC), secure.grpc, user, password, "orders", "shop"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, **trust},
        )

    done = run(*SHOP)
    assert not done.returncode, done.stderr[-2000:]
    assert '"got": "simple", "body": "through gRPC"' in done.stdout
    refused = run(SHOP[0], "another-password")
    assert refused.returncode
    assert "failed to fetch topic:orders route" in refused.stderr
