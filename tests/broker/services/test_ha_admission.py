"""TLS and authentication between a master and its replicas."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import ROOT, SECURE, credentials, guard_of
from tests.access.audit.test_audit_log import events
from tests.broker.brokers import SMALL
from tests.broker.pairs import QUICK, SLAVE
from tests.client.clusters import until
from tests.helpers import PATIENCE_S, ManualClock, eventually
from tests.tls.authority import Authority

from firetrail import Message
from firetrail.access.audit.audit_log import AuditLog
from firetrail.access.guard import Guard
from firetrail.auth.policies import User, UserType
from firetrail.auth.signature import Signer
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services import ha_admission
from firetrail.broker.services.ha_admission import AGE_MAX_MS, HAAdmission
from firetrail.errors import FiretrailError
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.remoting.connections.access import Access
from firetrail.replication.ha.ha_client import PURPOSE
from firetrail.replication.ha.ha_frames import encode_authentication, encode_report
from firetrail.replication.ha.ha_source import AdmittedConnection
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.settings_table import Live
from firetrail.system import SYSTEM, System
from firetrail.tls.client_tls import ClientTls
from firetrail.tls.server_tls import ServerTls
from firetrail.tls.tls_config import TlsConfig

MASTER = User("root", credentials("root").secret_key, UserType.SUPER)
ALICE = User("alice", credentials("alice").secret_key)
REPORT = encode_report(0)


def admitted(
    guard: Guard | None, *sent: bytes, tls: ServerTls | None = None, **settings: Any
) -> AdmittedConnection:
    """Return what becomes of a connection on which a peer sends something."""
    admission = HAAdmission(Live(BrokerConfig(**settings)), guard, tls, System(clock=ManualClock()))
    here, there = socket.socketpair()
    with there:
        here.settimeout(PATIENCE_S)
        there.sendall(b"".join(sent))
        there.shutdown(socket.SHUT_WR)
        try:
            result = admission(here, "10.0.0.5:4711")
            return AdmittedConnection(result.socket, result.first + result.socket.recv(100))
        finally:
            here.close()


def signature(by: str = "root", age_ms: int = 0, purpose: str = PURPOSE) -> bytes:
    fields = {"purpose": purpose, "time": str(ManualClock().now_ms() - age_ms)}
    return encode_authentication(Signer(credentials(by)).fields(fields))


def test_without_access_control_everybody_is_served_signed_or_not() -> None:
    assert admitted(None, REPORT).first == REPORT
    assert admitted(None, signature(), REPORT).first == REPORT


def test_with_access_control_a_replica_needs_a_signature_and_a_permission() -> None:
    guard = guard_of(MASTER, ALICE)
    assert admitted(guard, signature(), REPORT).first == REPORT
    for sent, reason in (
        (REPORT, "username cannot be null"),
        (signature("eve"), "User:eve is not found"),
        (signature("alice"), "User:alice has no permission to access Cluster:DefaultCluster"),
        (signature(age_ms=AGE_MAX_MS + 1), "its time is too far"),
        (signature(age_ms=-AGE_MAX_MS - 1), "its time is too far"),
        (signature(purpose="x"), "not one of a replica"),
        (signature().replace(b"root", b"rood"), "User:rood is not found"),
        (encode_authentication({"AccessKey": "root"}), "check signature failed"),
        (encode_authentication({}), "username cannot be null"),
        (b"\x80FTA\0\0\0\1x", "something else than signed fields"),
        (b"\x80FTA\0\0\0\2[]", "something else than signed fields"),
        (b"\x80FTA\x7f\0\0\0", "bytes to authenticate"),
    ):
        with pytest.raises(FiretrailError, match=reason):
            admitted(guard, sent, REPORT)
    with pytest.raises(ConnectionError):
        admitted(guard, signature()[:-1])


def test_a_denied_replica_is_in_the_audit_log(tmp_path: Path) -> None:
    guard = guard_of(MASTER, ALICE)
    guard.audit = audit = AuditLog(tmp_path, AuditSettings(), SYSTEM)
    audit.start()
    for name in ("alice", "eve"):
        with pytest.raises(FiretrailError):
            admitted(guard, signature(name), REPORT)
    audit.stop()
    (user,), (stranger,) = events(audit.path)[1:-1], events(audit.strangers_path)
    assert (user["user"], stranger["claimed_user"]) == ("alice", "eve")
    for event in (user, stranger):
        found = tuple(event[key] for key in ("request", "peer", "tls", "code"))
        assert found == ("HA connection", "10.0.0.5:4711", False, 16)


def test_java_brokers_need_an_explicit_setting() -> None:
    guard = guard_of(MASTER)
    assert admitted(guard, REPORT, ha_java_peers=True).first == REPORT
    with pytest.raises(FiretrailError, match="check signature failed"):  # a wrong one never counts
        admitted(guard, encode_authentication({"AccessKey": "root"}), REPORT, ha_java_peers=True)


def test_an_enforcing_master_refuses_plaintext_except_of_java_brokers(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue()
    config = TlsConfig(mode="enforcing", certificate=issued.certificate, key=issued.key)
    tls = ServerTls(config)
    with pytest.raises(FiretrailError, match="does not use TLS"):
        admitted(None, REPORT, tls=tls)
    assert admitted(None, REPORT, tls=tls, ha_java_peers=True).first == REPORT


async def test_a_pair_of_brokers_uses_tls_and_signatures(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue()
    tls = TlsConfig(mode="enforcing", certificate=issued.certificate, key=issued.key)
    access = Access(ROOT, ClientTls(ca=authority.trust))
    config = SECURE.replace(**QUICK)

    def broker(folder: str, store: Any = SMALL, **more: Any) -> Broker:
        return Broker(
            tmp_path / folder,
            config.replace(**more.pop("settings", {})),
            store.replace(store_host=store.store_host._replace(port=0)),
            tls=ServerTls(tls),
            client_access=access,
            **more,
        )

    master = broker("master", name_server=NameServerConfig(listen_port=0))
    await master.start()
    try:
        master.store.put(Message("T1", b"first"))
        slave = broker("slave", SLAVE, settings={"broker_id": 1, "namesrv": master.namesrv})
        await slave.start()
        try:
            master.store.put(Message("T1", b"second"))
            await until(lambda: slave.store.log_range == master.store.log_range)
        finally:
            await slave.stop()
    finally:
        await master.stop()
    logins = [e for e in events(tmp_path / "master/audit/audit.log") if e["event"] == "login"]
    assert {event["user"] for event in logins} == {"root"}
    assert {event.get("tls") for event in logins} == {True}  # that of the HA port, too


@pytest.mark.parametrize("sent", [b"", REPORT[:1], signature()[:-1]])
def test_a_peer_that_takes_too_long_is_not_admitted(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The socket itself would wait longer, and a byte would make it wait again."""
    monkeypatch.setattr(ha_admission, "ADMISSION_S", 0.01)
    admission = HAAdmission(Live(BrokerConfig()), guard_of(MASTER), None, SYSTEM)
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(PATIENCE_S)
        there.sendall(sent)
        with pytest.raises(TimeoutError, match=r"^it was not admitted within 0\.01 s$"):
            admission(here, "10.0.0.5:4711")


def test_an_admitted_connection_has_no_time_limit() -> None:
    assert admitted(None, REPORT).first == REPORT
    eventually(lambda: "firetrail-admission" not in {t.name for t in threading.enumerate()})
