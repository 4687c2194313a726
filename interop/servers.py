"""RocketMQ's own name server, broker, proxy and ``mqadmin``, as processes of the tests."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

LINES = ("v4", "v5")
POM = Path(__file__).parent / "java" / "servers" / "pom.xml"
TARGET = Path(__file__).parent / "java" / "target" / "servers"
START_S = 120

NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
CONTROLLER = "org.apache.rocketmq.controller.ControllerStartup"
PROXY = "org.apache.rocketmq.proxy.ProxyStartup"
PROXY_LINE = "proxy"
STARTED = {PROXY: "startup successfully"}
"""The text that servers print when they are ready, if it is not ``boot success``."""

BROKER_CONF = """\
brokerClusterName=DefaultCluster
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=60000
maxIndexNum=10000
maxHashSlotNum=1000
diskMaxUsedSpaceRatio=99
enablePropertyFilter=true
messageDelayLevel=1s 1s 1s 5s
"""
QUICK_FLAGS = (
    *("-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=1g"),
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
)
_OPENED = [
    *(f"java.base/{name}" for name in ("java.nio", "sun.nio.ch", "java.lang")),
    "java.base/jdk.internal.ref",
]


@dataclass(frozen=True, slots=True)
class Role:
    """The part that a broker plays among those of one name."""

    name: str = "ASYNC_MASTER"
    broker_id: int = 0

    def folder(self, broker: str) -> str:
        """Return the name of the broker's store; that of a master is its own name."""
        return f"{broker}-{self.broker_id}" if self.broker_id else broker


MASTER = Role()
SYNC_MASTER = Role("SYNC_MASTER")
SLAVE = Role("SLAVE", 1)


def ha_address(broker: str) -> str:
    """Return the address of the HA port of a broker that :class:`Servers` has started."""
    host, _, port = broker.rpartition(":")
    return f"{host}:{int(port) + 1}"


def jars(line: str) -> str:
    """Return the class path of a release line; the files are fetched on first use."""
    lib = TARGET / line / "lib"
    stamp = TARGET / line / "fetched"
    TARGET.mkdir(parents=True, exist_ok=True)
    with (TARGET / f"{line}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.stat().st_mtime < POM.stat().st_mtime:
            command = ["mvn", "-B", "-q", "-f", str(POM), "-P", line, "process-resources"]
            if subprocess.run([*command, "-o"], capture_output=True).returncode:
                done = subprocess.run(command, capture_output=True, text=True)
                assert not done.returncode, f"mvn could not fetch {line}: {done.stdout[-2000:]}"
            stamp.touch()
    return f"{lib}/*"


class Servers:
    """The Java side of one release line, with its files in a folder.

    ``flags`` are those of the JVM, and ``settings`` are the first lines of every broker.conf. With
    the defaults, servers start fast and need little memory.
    """

    def __init__(
        self,
        line: str,
        folder: Path,
        flags: Sequence[str] = QUICK_FLAGS,
        settings: str = BROKER_CONF,
    ) -> None:
        self.line = line
        self.folder = folder
        self.pids: dict[str, int] = {}
        """Processes by their main classes; brokers also by their addresses."""
        self._flags = flags
        self._settings = settings
        conf = folder / "conf"
        conf.mkdir()
        for name in ("broker", "namesrv", "tools"):
            text = '<configuration><root level="warn"/></configuration>'
            (conf / f"logback_{name}.xml").write_text(text)

    @contextmanager
    def name_server(self) -> Iterator[str]:
        """Run a name server; yield its address."""
        port = free_port()
        conf = self.folder / "namesrv.conf"
        conf.write_text(f"listenPort={port}\nkvConfigPath={self.folder / 'kv.json'}\n")
        with self._running(NAME_SERVER, "-c", str(conf)):
            yield f"127.0.0.1:{port}"

    @contextmanager
    def controller(self) -> Iterator[str]:
        """Run a controller (5.x), which elects masters; yield its address."""
        port = free_port()
        conf = self.folder / "controller.conf"
        conf.write_text(
            f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\n"
            f"controllerDLegerSelfId=n0\ncontrollerStorePath={self.folder / 'controller'}\n"
            "mappedFileSize=1048576\n"
        )
        with self._running(CONTROLLER, "-c", str(conf), stop=signal.SIGKILL):
            yield f"127.0.0.1:{port}"

    @contextmanager
    def broker(
        self,
        namesrv: str,
        name: str,
        stop: signal.Signals = signal.SIGTERM,
        *,
        role: Role = MASTER,
        settings: str = "",
    ) -> Iterator[str]:
        """Run a broker with its store in the folder of its role; yield its address.

        ``settings`` are further lines of its configuration.
        """
        port, conf = self._configured(name, role, settings)
        arguments = ("-n", namesrv, "-c", str(conf))
        address = f"127.0.0.1:{port}"
        with self._running(BROKER, *arguments, stop=stop, output=f"{conf.stem}.out"):
            self.pids[address] = self.pids[BROKER]
            yield address

    @contextmanager
    def proxy(self, namesrv: str) -> Iterator[str]:
        """Run the gRPC proxy in cluster mode, of the line ``proxy``; yield its address."""
        port, conf = self._configured_proxy(namesrv)
        with self._running(PROXY, "-pm", "cluster", "-n", namesrv, "-pc", str(conf)):
            yield f"127.0.0.1:{port}"

    @contextmanager
    def local_proxy(
        self, namesrv: str, name: str, *, settings: str = ""
    ) -> Iterator[tuple[str, str]]:
        """Run the gRPC proxy in local mode, with a broker in its process; yield both addresses.

        ``settings`` are further lines of the broker's configuration.
        """
        port, conf = self._configured_proxy(namesrv)
        broker_port, broker_conf = self._configured(name, MASTER, settings)
        files = ("-bc", str(broker_conf), "-pc", str(conf))
        with self._running(PROXY, "-pm", "local", "-n", namesrv, *files):
            yield f"127.0.0.1:{port}", f"127.0.0.1:{broker_port}"

    def _configured_proxy(self, namesrv: str) -> tuple[int, Path]:
        """Port and configuration file of a proxy."""
        port = free_port()
        conf = self.folder / "rmq-proxy.json"
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": port,
            "remotingListenPort": port + 1,
            "namesrvAddr": namesrv,
            "transactionHeartbeatPeriodSecond": 1,
            "grpcClientConsumerMaxLongPollingTimeoutMillis": 5000,
        }
        conf.write_text(json.dumps(settings))
        return port, conf

    @contextmanager
    def our_broker(
        self,
        namesrv: str,
        name: str,
        *options: str,
        stop: signal.Signals = signal.SIGTERM,
        role: Role = MASTER,
        settings: str = "",
    ) -> Iterator[str]:
        """``firetrail broker`` with the same configuration and the same store; its address."""
        port, conf = self._configured(name, role, settings)
        store = self.folder / role.folder(name)
        arguments = ["broker", str(store), "-c", str(conf), "--namesrv", namesrv]
        address = f"127.0.0.1:{port}"
        with _firetrail(*arguments, *options, stop=stop) as (_, pid):
            self.pids[address] = pid
            yield address

    def _configured(self, name: str, role: Role, settings: str) -> tuple[int, Path]:
        """Port and configuration file of a broker."""
        port = free_port()
        folder = self.folder / role.folder(name)
        conf = self.folder / f"{folder.name}.conf"
        conf.write_text(
            f"{self._settings}brokerName={name}\nlistenPort={port}\nhaListenPort={port + 1}\n"
            f"storePathRootDir={folder}\nbrokerRole={role.name}\nbrokerId={role.broker_id}\n"
            f"{settings}"
        )
        return port, conf

    def mqadmin(self, *arguments: str) -> str:
        """Run a command of ``mqadmin`` and return its output."""
        done = subprocess.run(
            self.command(ADMIN, *arguments),
            cwd=self.folder,  # it writes files where it runs
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=START_S,
        )
        lines = [line for line in done.stdout.splitlines() if "|-" not in line]
        assert not done.returncode, (lines, done.stderr[-2000:])
        return "\n".join(lines)

    @contextmanager
    def _running(
        self,
        main: str,
        *arguments: str,
        stop: signal.Signals = signal.SIGTERM,
        output: str = "",
    ) -> Iterator[None]:
        said = self.folder / (output or f"{main.rpartition('.')[2]}.out")
        with (
            said.open("w") as out,
            subprocess.Popen(
                self.command(main, *arguments),
                env=self.environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            self.pids[main] = process.pid
            try:
                deadline = time.monotonic() + START_S
                started = STARTED.get(main, "boot success")
                while started not in said.read_text(errors="replace"):
                    alive = process.poll() is None and time.monotonic() < deadline
                    assert alive, f"{main} did not start: {said.read_text()[-3000:]}"
                    time.sleep(0.05)
                yield
            finally:
                process.send_signal(stop)

    def command(self, main: str, *arguments: str) -> list[str]:
        """That runs a main class."""
        java = shutil.which("java") or str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        opened.append("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED")
        home = f"-Duser.home={self.folder}"
        return [java, *self._flags, *opened, home, "-cp", jars(self.line), main, *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment of every process."""
        return {**os.environ, "ROCKETMQ_HOME": str(self.folder), "LC_ALL": "C.UTF-8"}


@contextmanager
def our_name_server(*options: str) -> Iterator[str]:
    """``firetrail namesrv`` on a free port; its address."""
    with _firetrail("namesrv", "--port", "0", *options) as (said, _):
        yield said.split()[2]


@contextmanager
def _firetrail(*arguments: str, stop: signal.Signals = signal.SIGTERM) -> Iterator[tuple[str, int]]:
    """Run a server of Firetrail; yield its first line when it is ready, and its process id."""
    command = [sys.executable, "-m", "firetrail", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline(), process.pid
        finally:
            process.send_signal(stop)
