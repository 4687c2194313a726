"""The gRPC service of ``firetrail up`` and ``firetrail broker``: its port, and what it needs."""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import user_store
from tests.access.audit.test_audit_log import events
from tests.broker.brokers import SMALL
from tests.helpers import PATIENCE_S

from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.broker_config_groups import NO_PORT
from firetrail.cli.main import build_parser, main
from firetrail.cli.servers import grpc_service, server_command
from firetrail.cli.servers.grpc_service import GrpcPort
from firetrail.errors import AddressInUseError

WITHOUT_EXTRA = "import sys; sys.modules['hpack'] = None\n"
RUN = "from firetrail.cli.main import main; sys.exit(main(sys.argv[1:]))"


def printed(
    script: str, *arguments: str, use: Callable[[str], None] | None = None
) -> tuple[dict[str, str], str]:
    """Return the addresses that a command prints as JSON, and what it says, until it is stopped.

    ``use`` is called with the address for gRPC clients while the command runs.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", f"import sys\n{script}{RUN}", *arguments, "--json"]
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            host, _, port = (ready.get("grpc") or ready["broker"]).rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE_S).close()
            if use is not None:
                use(ready["grpc"])
            process.terminate()
            _, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
        finally:
            process.kill()
    return ready, said


UP = "up", "--port", "0", "--namesrv-port", "0"


def test_up_serves_grpc() -> None:
    pytest.importorskip("hpack")
    ready, said = printed("", *UP)
    assert list(ready) == ["name_server", "broker", "store", "grpc"]
    assert not said


def test_up_without_the_extra_says_how_to_install_it() -> None:
    ready, said = printed(WITHOUT_EXTRA, *UP)
    assert list(ready) == ["name_server", "broker", "store"]
    (line,) = said.splitlines()
    assert line.endswith(
        "clients of RocketMQ 5, which use gRPC, cannot connect; all others can: "
        "run pip install 'firetrail[grpc]'"
    )


def test_a_broker_serves_grpc_on_request(tmp_path: Path) -> None:
    pytest.importorskip("hpack")
    where = "broker", str(tmp_path), "--port", "0", "--namesrv", "127.0.0.1:1"
    ready, _ = printed("", *where, "--grpc-port", "0")
    assert list(ready) == ["broker", "store", "grpc"]


@pytest.mark.parametrize(
    ("argument", "setting", "expected"),
    [
        (None, NO_PORT, GrpcPort(8081, is_required=False)),
        (None, 9000, GrpcPort(9000, is_required=True)),
        (None, 0, GrpcPort(0, is_required=True)),
        (7000, 9000, GrpcPort(7000, is_required=True)),
        (0, NO_PORT, GrpcPort(0, is_required=True)),
    ],
)
def test_the_port_comes_from_the_argument_the_file_or_the_default(
    argument: int | None, setting: int, expected: GrpcPort
) -> None:
    config = BrokerConfig(grpc_port=setting)
    args = argparse.Namespace(grpc_port=argument, no_grpc=False)
    assert grpc_service.port_of(args, config, 8081) == expected


@pytest.mark.parametrize("command", [("up",), ("broker", "data")])
def test_the_service_can_be_switched_off(command: tuple[str, ...]) -> None:
    args = build_parser().parse_args([*command, "--no-grpc"])
    found = grpc_service.port_of(args, BrokerConfig(grpc_port=9000), 8081)
    assert found == GrpcPort(NO_PORT, is_required=False)
    with pytest.raises(SystemExit):
        build_parser().parse_args([*command, "--no-grpc", "--grpc-port", "8081"])


def test_a_proxy_names_the_port_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hpack")
    with BackgroundBroker(store=SMALL) as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["proxy", "--namesrv", broker.namesrv, "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"firetrail: error: 127.0.0.1:{port}: the port is in use; stop the program that listens "
        "there, or choose another port with --port\n"
    )


def test_a_proxy_serves_the_brokers_of_a_cluster() -> None:
    pytest.importorskip("hpack")
    with BackgroundBroker(store=SMALL) as broker:
        arguments = "proxy", "--namesrv", broker.namesrv, "--port", "0"
        ready, said = printed("", *arguments)
    assert list(ready) == ["grpc", "name_server"]
    assert ready["name_server"] == broker.namesrv
    assert not said


async def test_a_proxy_has_users_limits_and_an_audit_log(tmp_path: Path) -> None:
    pytest.importorskip("hpack")
    await user_store(tmp_path, alice=["Topic:T Pub"])
    conf = tmp_path / "proxy.conf"
    conf.write_text("request_rate_per_user=1\nlistenPort=1\n")
    with BackgroundBroker(store=SMALL) as broker:
        options = "--port", "0", "--users", str(tmp_path), "-c", str(conf)
        arguments = "proxy", "--namesrv", broker.namesrv, *options
        _, said = await asyncio.to_thread(printed, "", *arguments, use=call_until_refused)
    assert said == f"firetrail: {conf} line 2: listenPort is not a setting of the proxy\n"
    found = [event["event"] for event in events(tmp_path / "audit/audit.log")]
    assert found == ["start", "login", "stop"]


def call_until_refused(address: str) -> None:
    """Make calls as alice until there are too many."""
    import grpc
    from tests.proxy.calls.test_grpc_guard import signed_by
    from tests.proxy.test_proxy import route_call

    from firetrail.proxy.schema.messages import Code, QueryRouteRequest, Resource

    with grpc.insecure_channel(address) as channel:
        for _ in range(1000):
            status = route_call(channel)(
                QueryRouteRequest(topic=Resource(name="T")),
                metadata=tuple(signed_by("alice").items()),
                timeout=PATIENCE_S,
            ).status
            if status.code == Code.TOO_MANY_REQUESTS:
                assert status.message.startswith("user alice sends more than request_rate_per_user")
                return
    raise AssertionError("no call was refused")


def test_a_proxy_needs_the_file_of_its_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hpack")
    with BackgroundBroker(store=SMALL) as broker:
        arguments = ["proxy", "--namesrv", broker.namesrv, "--port", "0", "--users", str(tmp_path)]
        assert main(arguments) == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_proxy_without_the_extra_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(serving: Coroutine[Any, Any, None]) -> None:
        serving.close()
        raise ModuleNotFoundError("No module named 'hpack'", name="hpack")

    monkeypatch.setattr(server_command, "run", missing)
    assert main(["proxy"]) == 2
    assert "the proxy needs more packages: run pip install 'firetrail[grpc]'" in (
        capsys.readouterr().err
    )


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    pytest.importorskip("hpack")
    async with Broker.running(None, None, SMALL) as broker:
        yield broker


async def test_a_default_port_in_use_is_no_error(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        proxy = grpc_service.prepared(broker, GrpcPort(port, is_required=False))
        assert proxy is not None
        assert not await grpc_service.start(proxy, broker, GrpcPort(port, is_required=False))
        said = capsys.readouterr().err
        assert f"cannot connect; all others can: 127.0.0.1:{port}: the port is in use" in said
        remedy = "choose another port with --grpc-port, or open none with --no-grpc"
        assert said.endswith(f"stop the program that listens there, {remedy}\n")
        with pytest.raises(AddressInUseError, match=f":{port}: the port is in use; .*{remedy}$"):
            await grpc_service.start(proxy, broker, GrpcPort(port, is_required=True))


async def test_no_port_opens_nothing(broker: Broker) -> None:
    assert grpc_service.prepared(broker, GrpcPort(NO_PORT, is_required=False)) is None


@pytest.mark.parametrize(
    "command",
    [
        ("up", "--grpc-port", "0"),
        ("up", "--no-grpc"),
        ("broker", "data", "--grpc-port", "0"),
        ("broker", "data", "--no-grpc"),
        ("proxy",),
        ("namesrv",),
    ],
)
def test_a_certificate_that_cannot_be_used_is_reported_before_anything_is_opened(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("hpack")
    monkeypatch.chdir(tmp_path)
    files = "--tls-cert", "none.pem", "--tls-key", "none.key"
    assert main([*command, "--port", "0", *files]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "firetrail: error: TLS certificate = 'none.pem': the file does not exist; check the path"
    )
    assert not list(tmp_path.iterdir())
