"""TLS between Firetrail and RocketMQ, and with clients that do not follow the rules."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.servers import LINES, QUICK_FLAGS, Servers, jars
from interop.stock import BROKER_CONF, WAIT_S, firetrail_up, needs, output, registered
from tests.tls.authority import Authority

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
        throw last;
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


def serving(folder: Path, mode: str, more: str = "") -> Iterator[TlsPorts]:
    """Run ``firetrail up`` with TLS."""
    authority = Authority(folder)
    certificate, key = authority.issue()
    file = folder / "tls.properties"
    file.write_text(
        f"tls.server.mode={mode}\ntls.server.certPath={certificate}\ntls.server.keyPath={key}\n"
        f"{more.format(trust=authority.trust)}"
    )
    with firetrail_up(folder, f"{BROKER_CONF}tls.config.file={file}\n") as namesrv:
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


def send(line: str, namesrv: str, body: str, folder: Path, *, tls: bool = True) -> None:
    """Send a message with the Java client of a release line."""
    source = folder / "Sends.java"
    source.write_text(SENDS)
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", jars(line), str(source)]
    said = output([*command, namesrv, body, str(tls).lower()], folder)
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
