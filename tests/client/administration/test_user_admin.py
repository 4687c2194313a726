"""Users of several brokers, with answers of RocketMQ's brokers."""

import json

import pytest
from tests.access.actors import SECRET

from firetrail.client import AclInfo, Admin, ProtocolError, RequestError, UserInfo
from firetrail.client.cluster.session import Session
from firetrail.remoting.messages.bodies import BrokerData, ClusterInfo
from firetrail.remoting.wire.command import RemotingCommand

BROKERS = {"a": BrokerData("a", "C", {0: "h:1", 1: "h:2"}), "b": BrokerData("b", "D", {0: "h:3"})}
USERS = [
    {"username": "shop", "password": SECRET, "userType": "Normal", "userStatus": "enable"},
    {"username": "admin", "password": SECRET, "userType": "Super", "userStatus": "enable"},
]


class Answers:
    """Answers every request with the same body, and notes the addresses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, body: bytes, code: int = 0) -> None:
        self.asked: list[str] = []

        async def cluster(admin: Admin) -> ClusterInfo:
            return ClusterInfo(BROKERS, {"C": ["a"], "D": ["b"]})

        async def request(session: Session, address: str, *_: object) -> RemotingCommand:
            self.asked.append(address)
            return RemotingCommand(code, body=body, remark="no")

        monkeypatch.setattr(Admin, "cluster", cluster)
        monkeypatch.setattr(Session, "request", request)


async def test_slaves_are_asked_and_passwords_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, json.dumps(USERS).encode())
    found = await Admin("h:9").users()
    assert answers.asked == ["h:1", "h:2", "h:3"]
    assert list(found) == ["a", "a/1", "b"]
    admin = UserInfo("admin", None, "Super", "enable")
    assert found["a/1"] == [admin, UserInfo("shop", None, "Normal", "enable")]
    assert SECRET not in str(found)
    assert list(await Admin("h:9").users(cluster="D")) == ["b"]
    assert list(await Admin("h:9").users(address="h:7")) == ["h:7"]


async def test_an_empty_answer_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, b"")
    assert await Admin("h:9").acls(cluster="D") == {"b": list[AclInfo]()}
    Answers(monkeypatch, b"{}")
    with pytest.raises(ProtocolError, match="the answer is not a list"):
        await Admin("h:9").acls()


async def test_a_refusal_names_the_broker_and_the_others_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(monkeypatch, b"", 16)
    with pytest.raises(RequestError, match="code 16: a: no"):
        await Admin("h:9").delete_user("shop")
    assert answers.asked == ["h:1"]
