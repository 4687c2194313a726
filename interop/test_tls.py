"""TLS between Firetrail and RocketMQ, and with clients that do not follow the rules."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop import grpc_servers
from interop.servers import LINES, QUICK_FLAGS, Servers, jars
from interop.stock import (
    BROKER_CONF,
    HERE,
    WAIT_S,
    client_environment,
    firetrail_up,
    needs,
    output,
    registered,
    shown,
)
from tests.tls.authority import Authority, Issued

from firetrail.client import Access, Admin, ClientTls, Message, Producer, PullConsumer, TlsError

SENDS = """\
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

public class Sends {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(arguments[0]);
        producer.setUseTLS(Boolean.parseBoolean(arguments[2]));
        producer.setSendMsgTimeout(60_000);
        producer.start();
        Exception last = null;
        for (int attempt = 0; attempt < 10; attempt++) {  // the first handshake is slow
            try {
                byte[] body = arguments[1].getBytes();
                System.out.println(producer.send(new Message("T", body)).getSendStatus());
                System.exit(0);
            } catch (Exception error) {
                last = error;
            }
        }
        last.printStackTrace();
        System.exit(1); // the threads of the producer would keep running
    }
}
"""


class TlsPorts(NamedTuple):
    """The address of a name server of Firetrail, and the authority of its certificate."""

    namesrv: str
    authority: Authority

    def greet(self, *options: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Connect with ``openssl s_client``."""
        needs("openssl")
        return subprocess.run(
            ["openssl", "s_client", "-connect", self.namesrv, *options],
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


def settings(folder: Path, mode: str, issued: Issued, more: str = "") -> str:
    """Return a line of broker.conf that names a file with settings of TLS."""
    file = folder / "tls.properties"
    certificate, key = issued
    file.write_text(
        f"tls.server.mode={mode}\ntls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        f"{more}"
    )
    return f"tls.config.file={file}\n"


def serving(folder: Path, mode: str, more: str = "") -> Iterator[TlsPorts]:
    """Run ``firetrail up`` with TLS."""
    authority = Authority(folder)
    line = settings(folder, mode, authority.issue(), more.format(trust=authority.trust))
    with firetrail_up(folder, BROKER_CONF + line) as namesrv:
        yield TlsPorts(namesrv, authority)


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPorts]:
    yield from serving(tmp_path_factory.mktemp("enforcing"), "enforcing")


@pytest.fixture(scope="module")
def permissive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPorts]:
    yield from serving(tmp_path_factory.mktemp("permissive"), "permissive")


@pytest.fixture(scope="module")
def requiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPorts]:
    more = "tls.server.need.client.auth=require\ntls.server.trustCertPath={trust}\n"
    yield from serving(tmp_path_factory.mktemp("requiring"), "enforcing", more)


def sending(line: str, folder: Path, *flags: str) -> list[str]:
    """Return the command of a Java client of a release line, without its arguments."""
    source = folder / "Sends.java"
    source.write_text(SENDS)
    return ["java", "-XX:TieredStopAtLevel=1", *flags, "-cp", jars(line), str(source)]


def send(line: str, namesrv: str, body: str, folder: Path, *, tls: bool = True) -> None:
    """Send a message with the Java client of a release line."""
    said = output([*sending(line, folder), namesrv, body, str(tls).lower()], folder)
    assert "SEND_OK" in said


async def bodies(ports: TlsPorts) -> set[bytes]:
    """Return the bodies of all messages."""
    access = Access(tls=ClientTls(ca=ports.authority.trust))
    async with PullConsumer(ports.namesrv, access=access) as consumer:
        queues = await consumer.queues("T")
        return {message.body for queue in queues async for message in consumer.read(queue)}


def test_java_clients_where_tls_is_enforced(enforcing: TlsPorts, tmp_path: Path) -> None:
    for line in LINES:
        send(line, enforcing.namesrv, line, tmp_path)
    assert asyncio.run(bodies(enforcing)) >= {b"v4", b"v5"}


def test_java_clients_where_tls_is_permitted(permissive: TlsPorts, tmp_path: Path) -> None:
    send("v5", permissive.namesrv, "plaintext", tmp_path, tls=False)
    send("v5", permissive.namesrv, "tls", tmp_path)
    assert asyncio.run(bodies(permissive)) == {b"plaintext", b"tls"}


def test_our_client_at_java_servers(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    flags = (
        *QUICK_FLAGS,
        *("-Dtls.server.mode=enforcing", "-Dtls.test.mode.enable=false"),
        *(f"-Dtls.server.certPath={certificate}", f"-Dtls.server.keyPath={key}"),
    )
    java = Servers("v5", tmp_path, flags)

    async def talk(namesrv: str) -> list[bytes]:
        access = Access(tls=ClientTls(ca=authority.trust))
        await registered(namesrv, access)
        async with Admin(namesrv, access=access) as admin:
            await admin.create_topic("T", 1)
        async with (
            Producer(namesrv, access=access) as producer,
            PullConsumer(namesrv, access=access) as consumer,
        ):
            await producer.send(Message("T", b"hello"))
            (queue,) = await consumer.queues("T")
            return [message.body async for message in consumer.read(queue)]

    settings = "useTLS=true\n"
    with java.name_server() as namesrv, java.broker(namesrv, "broker-a", settings=settings):
        assert asyncio.run(talk(namesrv)) == [b"hello"]
        with pytest.raises(TlsError, match="certificate verify failed"):
            asyncio.run(Admin(namesrv, access=Access(tls=ClientTls())).open())


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_versions_that_are_served(enforcing: TlsPorts, version: str) -> None:
    trust = ("-CAfile", enforcing.authority.trust, "-verify_return_error")
    done = enforcing.greet(version, *trust)
    assert "Verify return code: 0 (ok)" in done.stdout, done.stderr


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_versions_are_refused(enforcing: TlsPorts, version: str) -> None:
    done = enforcing.greet(version, "-cipher", "ALL:@SECLEVEL=0")
    assert done.returncode
    assert "alert protocol version" in done.stderr


def test_client_certificates(requiring: TlsPorts) -> None:
    authority = requiring.authority
    for name, is_expired, alert in (
        ("alice", False, ""),
        ("late", True, "certificate expired"),
        ("", False, "certificate required"),
    ):
        options: tuple[str, ...] = ()
        if name:
            certificate, key = authority.issue(name, is_expired=is_expired)
            options = ("-cert", certificate, "-key", key)
        # The refusal arrives after the handshake; a line that is not a command ends the rest.
        done = requiring.greet("-tls1_3", *options, "-ign_eof", text="hello, hello, hello\n")
        assert (alert in done.stderr) if alert else ("alert" not in done.stderr), done.stderr


class Expired(NamedTuple):
    """Addresses of servers whose certificate has expired, and the file with its authority."""

    namesrv: str
    grpc: str
    trust: str


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Expired]:
    folder = tmp_path_factory.mktemp("expired")
    authority = Authority(folder)
    line = settings(folder, "enforcing", authority.issue(is_expired=True))
    with grpc_servers.serving(folder, settings=line) as found:
        yield Expired(found["name_server"], found["grpc"], authority.trust)


@pytest.mark.parametrize("line", LINES)
def test_java_clients_refuse_an_expired_certificate(
    expired: Expired, tmp_path: Path, line: str
) -> None:
    flags = ["-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true"]
    flags += [f"-Dtls.client.trustCertPath={expired.trust}", f"-Duser.home={tmp_path}"]
    refused = shown([*sending(line, tmp_path, *flags), expired.namesrv, "x", "true"], tmp_path)
    assert refused.status == 1
    assert "RemotingSendRequestException: send request to" in refused.errors
    assert "CertificateExpiredException: NotAfter: " in refused.errors


def test_the_grpc_client_for_node_refuses_an_expired_certificate(
    expired: Expired, tmp_path: Path
) -> None:
    needs("npm")
    program = client_environment("node-grpc") / "client.js"
    variables = (f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={expired.trust}", "CLIENT_TOPIC=T")
    refused = shown(["env", *variables, "node", program, expired.grpc, "tls"], tmp_path)
    assert refused.status == 1
    assert "14 UNAVAILABLE: No connection established" in refused.errors
    assert "certificate has expired" in refused.errors


def test_the_grpc_client_for_python_refuses_an_expired_certificate(
    expired: Expired, tmp_path: Path
) -> None:
    python = client_environment("grpc") / "venv" / "bin" / "python"
    trusted = f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={expired.trust}"
    arguments = (HERE / "grpc" / "secured.py", expired.grpc, "user", "password", "T", "group")
    refused = shown(["env", trusted, python, *arguments], tmp_path)
    assert refused.status == 1
    assert "CERTIFICATE_VERIFY_FAILED: certificate has expired" in refused.errors


def test_our_client_refuses_an_expired_certificate(expired: Expired) -> None:
    access = Access(tls=ClientTls(ca=expired.trust))
    with pytest.raises(TlsError, match="certificate verify failed: certificate has expired"):
        asyncio.run(Admin(expired.namesrv, access=access).open())


def closed(namesrv: str, data: bytes) -> bool:
    """Whether the server closes a connection after these bytes, without any others."""
    host, _, port = namesrv.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(data)
        connection.settimeout(WAIT_S)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    return True


FRAME = bytes.fromhex("00000008 00000004") + b"{}{}"


def test_plaintext_is_closed_where_tls_is_enforced(enforcing: TlsPorts) -> None:
    assert closed(enforcing.namesrv, FRAME)


def test_half_a_hello_and_silence_are_dropped(enforcing: TlsPorts) -> None:
    assert closed(enforcing.namesrv, bytes.fromhex("160301020001"))


def test_tls_is_closed_where_it_is_disabled(tmp_path: Path) -> None:
    with firetrail_up(tmp_path) as namesrv:
        done = TlsPorts(namesrv, Authority(tmp_path)).greet()
        assert done.returncode
        assert "no peer certificate available" in done.stdout
