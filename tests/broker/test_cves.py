"""Published attacks on RocketMQ and other brokers, replayed. Each test names its CVE."""

import json
import zlib
from pathlib import Path

import pytest
from tests.access.actors import SECRET, SECURE
from tests.broker.access.test_plain_access import ACCOUNTS, plain
from tests.broker.brokers import talking
from tests.broker.secured import SEND, Secured, secured
from tests.extras import require

from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ProtocolError
from firetrail.remoting.messages import registration_body
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    TopicConfig,
    TopicConfigList,
)
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.remoting.wire.frames import FrameReader

ESCAPES = ["../../../../topic2020", "..", "/tmp/topic2020", "%RETRY%../../x", "a/b", "a\0b"]
"""Names that would be paths."""


def files_of(folder: Path) -> set[Path]:
    """Return all files in the folder that contains the store, and not in the store."""
    return {path for path in folder.rglob("*") if "store" not in path.relative_to(folder).parts}


def beat(topic: str, group: str) -> bytes:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic)])
    return HeartbeatData("c1", [], [consumer]).encode(standard=True)


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("config", [BrokerConfig(), SECURE], ids=["open", "secured"])
async def test_cve_2019_17572_names_are_no_paths(
    tmp_path: Path, config: BrokerConfig, name: str
) -> None:
    """Even a super user cannot create a file outside of the store with the name of a topic."""
    async with talking(tmp_path / "a" / "store", config) as talk:
        secure = Secured(talk)
        topics = TopicConfigList([TopicConfig(name)]).encode(standard=True)
        dispatch = f"INNER_MULTI_DISPATCH\x01{name}\x02"
        answers = [
            await secure.ask(RequestCode.SEND_MESSAGE_V2, SEND | {"b": name}, b"x"),
            await secure.ask(RequestCode.SEND_BATCH_MESSAGE, SEND | {"b": name}, b"x"),
            await secure.ask(RequestCode.SEND_MESSAGE_V2, SEND | {"b": f"%RETRY%{name}"}, b"x"),
            await secure.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name}),
            await secure.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, topics),
            await secure.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {"offset": "0", "group": name, "delayLevel": "1", "originTopic": name},
            ),
        ]
        assert all(answer.code for answer in answers)
        # These may be accepted, and must not create anything.
        await secure.ask(RequestCode.HEART_BEAT, {}, beat(name, "CG"))
        await secure.ask(RequestCode.HEART_BEAT, {}, beat("T1", name))
        await secure.ask(RequestCode.SEND_MESSAGE_V2, SEND | {"i": dispatch}, b"x")
        assert name not in talk.broker.topics.content().topic_config_table
    assert files_of(tmp_path) == {tmp_path / "a"}
    assert not Path("/tmp/topic2020").exists()


SHELL = b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/firetrail-33246;\n"


async def test_cve_2023_33246_settings_do_not_reach_a_shell() -> None:
    async with secured() as secure:
        await secure.allow("alice", "* All", "Cluster:DefaultCluster Get")
        change = RequestCode.UPDATE_BROKER_CONFIG
        unsigned = RemotingCommand(change, {}, SHELL)
        assert (await secure.request(unsigned)).code == 16
        assert (await secure.ask(change, {}, SHELL, by="alice")).code == 16
        assert (await secure.ask(change, {}, SHELL)).code != 0, "nor by a super user"
    async with talking() as talk:
        assert (await talk.ask(change, body=SHELL)).code != 0, "nor without access control"
    assert not Path("/tmp/firetrail-33246").exists()


@pytest.mark.parametrize(
    "key", ["configStorePath", "kvConfigPath", "configStorePathName", "CONFIGSTOREPATH", "kvconfig"]
)
async def test_cve_2023_37582_a_name_server_writes_no_file_that_a_request_names(
    tmp_path: Path, key: str
) -> None:
    target = tmp_path / "written"
    body = f"{key}={target}\nproductEnvName=x\\n* * * * * root id\\n".encode()
    change = RequestCode.UPDATE_NAMESRV_CONFIG
    async with secured() as secure:
        names = secure.broker.namesrv
        await secure.allow("alice", "Topic:* All", "Group:* All")
        assert (await secure.request(RemotingCommand(change, {}, body), names)).code == 16
        assert (await secure.ask(change, {}, body, by="alice", address=names)).code == 16
        assert (await secure.ask(change, {}, body, address=names)).code != 0
    assert not target.exists()


async def test_cve_2024_23321_no_answer_has_a_secret() -> None:
    async with secured() as secure:
        await secure.allow("alice", "* All")
        for by in ("alice", "root"):
            for code in (26, 54, 3004, 3005, 3009, 3010):
                fields = {"username": "root", "subject": "User:alice"}
                answer = await secure.ask(code, fields, by=by)
                shown = f"{answer.remark}{answer.fields}{answer.content!r}"
                assert SECRET not in shown
            assert (await secure.ask(3005, by=by)).code == (0 if by == "root" else 16)


@pytest.mark.parametrize("white", ["", "globalWhiteRemoteAddresses: [127.0.0.1]\n"])
async def test_cve_2024_23321_no_answer_of_acl_1_has_a_secret(tmp_path: Path, white: str) -> None:
    require("yaml")
    async with plain(tmp_path, white + ACCOUNTS) as broker:
        for by in ("", "customer", "operator"):
            for code in (26, 54):
                answer = await broker.ask(code, by=by)
                assert SECRET not in f"{answer.remark}{answer.fields}{answer.content!r}"
            assert (await broker.ask(54, by=by)).code == (0 if by == "operator" else 16)


async def test_acl_1_before_5_3_0_an_account_cannot_make_itself_an_administrator(
    tmp_path: Path,
) -> None:
    require("yaml")
    async with plain(tmp_path) as broker:
        for code, fields in (
            (50, {"accessKey": "customer", "admin": "true"}),
            (50, {"accessKey": "intruder", "secretKey": "a-secret-key", "admin": "true"}),
            (51, {"accessKey": "operator"}),
            (53, {"globalWhiteAddrs": "127.0.0.1"}),
        ):
            for by in ("", "customer"):
                assert (await broker.ask(code, fields, by=by)).code == 16
        assert broker.path.read_text() == ACCOUNTS


async def test_an_open_name_server_of_rocketmq_takes_orders_from_everybody() -> None:
    """No number: 205 stops all sends, 103 redirects clients to another broker."""
    async with secured() as secure:
        names = secure.broker.namesrv
        await secure.allow("alice", "Topic:* All", "Group:* All")
        assert (await secure.send("T1")).code == 0
        fields = {
            "brokerName": "broker-a",
            "clusterName": "DefaultCluster",
            "brokerAddr": "6.6.6.6:10911",
            "brokerId": "0",
            "topic": "T1",
            "namespace": "n",
            "key": "k",
            "value": "v",
        }
        route = {"topic": "T1"}
        before = await secure.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, address=names)
        for code in (100, 102, 103, 104, 205, 216, 217, 318, 327, 904):
            body = b"enableAllTopicList=false" if code == 318 else b""
            unsigned = RemotingCommand(code, fields, body)
            assert (await secure.request(unsigned, names)).code == 16
            assert (await secure.ask(code, fields, body, by="alice", address=names)).code == 16
        after = await secure.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route, address=names)
        assert json.loads(after.content) == json.loads(before.content)


async def test_rocketmq_5_3_a_longer_prefix_and_a_deny_decide() -> None:
    """No number: 5.3.0 to 5.3.3 use the shorter prefix, and Allow before Deny."""
    from tests.access.actors import acl

    async with secured() as secure:
        await secure.allow("alice", "Topic:a* Pub")
        await secure.grant(acl("alice", "Topic:ab* Pub", decision="Deny"))
        assert (await secure.send("ac", by="alice")).code == 0
        assert (await secure.send("abc", by="alice")).code == 16


async def test_nats_cve_2026_27571_nothing_is_decompressed_before_authentication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inflated: list[bytes] = []
    real = registration_body.decode_registration

    def decode(data: bytes, *, compressed: bool) -> object:
        inflated.append(data)
        return real(data, compressed=compressed)

    monkeypatch.setattr("firetrail.namesrv.route_requests.decode_registration", decode)
    bomb = zlib.compress(bytes(32 << 20))
    fields = {
        "brokerName": "b",
        "clusterName": "DefaultCluster",
        "brokerAddr": "1.2.3.4:1",
        "haServerAddr": "1.2.3.4:2",
        "brokerId": "0",
        "compressed": "true",
    }
    async with secured() as secure:
        request = RemotingCommand(RequestCode.REGISTER_BROKER, fields, bomb)
        assert (await secure.request(request, secure.broker.namesrv)).code == 16
        assert not inflated
        signed = await secure.ask(
            RequestCode.REGISTER_BROKER, fields, bomb, address=secure.broker.namesrv
        )
        assert signed.code != 0
        assert len(inflated) == 1


@pytest.mark.parametrize(
    "start",
    [
        (0x7FFFFFFF).to_bytes(4, "big") + bytes(4),
        b"\xff\xff\xff\xff" + bytes(4),
        (100).to_bytes(4, "big") + (0x00FFFFFF).to_bytes(4, "big"),
        (100).to_bytes(4, "big") + b"\x00\xff\xff\xff",
    ],
)
def test_activemq_cve_2025_27533_lengths_are_checked_before_memory_is_allocated(
    start: bytes,
) -> None:
    """Also CVE-2026-50734, CVE-2026-53917 and Kafka's CVE-2022-34917."""
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(start))


def test_orjson_cve_2025_67221_the_minimum_version_is_not_affected() -> None:
    import tomllib

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "orjson>=3.11.6" in project["optional-dependencies"]["broker"]


def test_kafka_cve_2021_38153_signatures_are_compared_in_constant_time() -> None:
    """Also Pulsar's CVE-2023-51437."""
    from firetrail.auth import signature

    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signature, "compare_digest", compare)
        verifier = signature.Verifier("a secret")
        assert not verifier.accepts({"AccessKey": "a", "Signature": "x"})
        assert not verifier.accepts_grpc("now", b"x")
    assert all(type(each) is bytes for pair in compared for each in pair)
    assert len(compared) >= 2
