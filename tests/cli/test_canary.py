"""A search for secrets in everything that broker, name server, gRPC service and commands show.

Every secret contains :data:`CANARY`. After use and failures of all kinds, it must be in the files
that hold secrets, which only their owner can read, and nowhere else.

What Spark shows is searched in ``tests/pipeline/wire/test_access.py`` and
``interop/test_spark_secrets.py``. Servers in processes of their own, passwords of keys and the
password of etcd are in ``test_canary_processes.py``.
"""

import json
import logging
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.access.actors import acl
from tests.cli.servers.test_up import FIRETRAIL, started
from tests.extras import require
from tests.helpers import PATIENCE_S

from firetrail.access.user_bodies import UserInfo
from firetrail.auth.credentials import Credentials
from firetrail.auth.signature import Signer
from firetrail.client import Access, Admin, Message, Producer
from firetrail.errors import FiretrailError
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

CANARY = "canary-of-all-secrets"
ADMIN = Credentials("admin", f"{CANARY}-admin", f"{CANARY}-token")
INNER = Credentials("inner", f"{CANARY}-inner")
CONF = f"""\
listenPort=0
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=6000
maxHashSlotNum=1000
maxIndexNum=4000
mappedFileSizeTimerLog=1048576
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={json.dumps({"username": "admin", "password": ADMIN.secret_key})}
innerClientAuthenticationCredentials={
    json.dumps({"accessKey": "inner", "secretKey": INNER.secret_key})
}
"""
METRICS = {
    RequestCode.GET_BROKER_RUNTIME_INFO: {},
    RequestCode.GET_BROKER_CONSUME_STATS: {"isOrder": "false"},
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": "T"},
    RequestCode.GET_TIMER_METRICS: {},
    RequestCode.GET_BROKER_HA_STATUS: {},
    RequestCode.VIEW_BROKER_STATS_DATA: {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"},
}
"""Requests for the figures of a broker that has stored a message in topic ``T``."""
WAITING = {11, 361, 200050, 200052, 200054}
"""Requests that wait for messages."""


def requests() -> list[RemotingCommand]:
    """Return requests with secrets in them, right and wrong."""
    user = UserInfo("shop", f"{CANARY}-shop").encode(standard=True)
    named = {"username": "shop", "subject": "User:shop", "accessKey": "shop-account"}
    found = [
        RemotingCommand(3001, named, user),
        RemotingCommand(3001, named, user),  # it exists
        RemotingCommand(3001, named, json.dumps({"password": [CANARY]}).encode()),
        RemotingCommand(3002, named, json.dumps({"password": f"{CANARY}\n"}).encode()),
        RemotingCommand(3002, named, f'{{"password":"{CANARY}'.encode()),
        RemotingCommand(3006, {"subject": "User:shop"}, acl("shop", "Topic:T Pub").encode()),
        RemotingCommand(25, {}, f"initAuthenticationUser={CANARY}".encode()),
        RemotingCommand(50, {**named, "secretKey": CANARY}),
    ]
    everything = [int(code) for code in RequestCode if code not in WAITING]
    return found + [RemotingCommand(code, named) for code in everything if code < 30_000]


async def answers_to(address: str, asked: list[RemotingCommand]) -> list[RemotingCommand]:
    client, signer = RemotingClient(), Signer(ADMIN)
    try:
        signed = [
            RemotingCommand(each.code, signer.fields(each.fields, each.body), each.body)
            for each in asked
        ]
        return [await client.request(address, command, PATIENCE_S) for command in signed]
    finally:
        await client.close()


def shown_by(answers: list[RemotingCommand]) -> list[str]:
    return [f"{answer.remark} {answer.fields} {answer.content!r}" for answer in answers]


async def texts_of_requests(address: str) -> list[str]:
    return shown_by(await answers_to(address, requests()))


async def texts_of_metrics(address: str) -> list[str]:
    asked = [RemotingCommand(code, fields) for code, fields in METRICS.items()]
    answers = await answers_to(address, asked)
    assert [answer.remark for answer in answers if answer.code] == []
    return shown_by(answers)


async def texts_of_clients(namesrv: str) -> list[str]:
    """Use clients with right and wrong credentials; return their texts and errors."""
    texts = []
    for credentials in (ADMIN, Credentials("admin", f"{CANARY}-wrong"), Credentials("eve", CANARY)):
        access = Access(credentials)
        texts.append(f"{access} {credentials!r}")
        try:
            async with (
                Producer(namesrv, access=access) as producer,
                Admin(namesrv, access=access) as admin,
            ):
                texts.append(f"{producer!r} {admin!r}")
                texts.append(str(await producer.send(Message("T", b"x"))))
                address = next(iter((await admin.masters()).values()))
                texts.append(str(await admin.broker_config(address)))
                texts.append(str(await admin.runtime_info(address)))
        except FiretrailError as error:
            texts.append(f"{error!r} {error} {error.__cause__!r} {error.__context__!r}")
    return texts


def texts_of_commands(namesrv: str) -> list[str]:
    """Run a command with wrong credentials; return its output."""
    keys = {"FIRETRAIL_ACCESS_KEY": "admin", "FIRETRAIL_SECRET_KEY": f"{CANARY}-wrong"}
    done = subprocess.run(
        [*FIRETRAIL, "topic", "list"],
        env={**os.environ, **keys, "NAMESRV_ADDR": namesrv},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode
    return [done.stdout, done.stderr]


def texts_of_calls(address: str) -> list[str]:
    """Make gRPC calls with right and wrong signatures; return the answers."""
    import grpc

    from firetrail.proxy.schema.messages import QueryRouteRequest, QueryRouteResponse, Resource

    texts = []
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=QueryRouteResponse.FromString,
        )
        for credentials in (ADMIN, Credentials("admin", f"{CANARY}-wrong")):
            date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            metadata = [
                ("authorization", Signer(credentials).grpc_authorization(date)),
                ("x-mq-date-time", date),
                ("x-mq-client-id", "c1"),
                ("x-mq-session-token", f"{CANARY}-token"),
            ]
            request = QueryRouteRequest(topic=Resource(name="T"))
            texts.append(str(call(request, metadata=metadata, timeout=PATIENCE_S)))
    assert ["code: UNAUTHORIZED" in text for text in texts] == [False, True]
    return texts


@pytest.mark.slow
async def test_no_secret_is_shown_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require("grpc", "google")
    caplog.set_level(logging.DEBUG)
    conf = tmp_path / "broker.conf"
    conf.touch(0o600)
    conf.touch(0o600)
    conf.write_text(CONF)
    store, log = tmp_path / "store", tmp_path / "broker.log"
    options = ("-c", str(conf), "--namesrv-port", "0", "--grpc-port", "0", "--json")
    logged = ("--log-level", "debug", "--log-file", str(log))
    with started("up", str(store), *options, *logged) as process:
        assert process.stdout is not None
        served = json.loads(process.stdout.readline())
        texts = [json.dumps(served), Path(f"/proc/{process.pid}/cmdline").read_text()]
        texts += await texts_of_requests(served["broker"])
        texts += await texts_of_requests(served["name_server"])
        texts += await texts_of_clients(served["name_server"])
        texts += await texts_of_metrics(served["broker"])
        texts += texts_of_commands(served["name_server"])
        texts += texts_of_calls(served["grpc"])
        process.terminate()
        texts += process.communicate(timeout=PATIENCE_S)
    assert [text for text in texts if CANARY in text] == []
    assert CANARY not in caplog.text
    assert log.read_text().count("\n") > 50, "everything is logged"
    holders = {
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    }
    private = {"store/config/firetrailUsers.json", "store/config/firetrailUsers.json.bak"}
    assert holders == {"broker.conf", *private}
    assert all(not (tmp_path / each).stat().st_mode & 0o077 for each in holders)
