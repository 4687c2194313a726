"""The audit log of a broker."""

import asyncio
from pathlib import Path

from tests.access.actors import SECURE
from tests.access.audit.test_audit_log import events
from tests.broker.brokers import talking
from tests.broker.secured import Secured, secured

from firetrail.access.implied_permissions import NOT_YOURS
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.inspect.foreign_files import foreign_names
from firetrail.system import SYSTEM


async def test_the_audit_log_has_logins_administration_and_denied_requests(tmp_path: Path) -> None:
    async with secured(tmp_path) as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        for topic in ("T1", "T1", "T2"):
            await secure.send(topic, by="alice")
        await secure.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"}, by="eve")
        names = secure.broker.namesrv
        await secure.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}, address=names)
        assert not await asyncio.to_thread(foreign, tmp_path)
    found = [
        (event["event"], event.get("user"), event.get("request"), event.get("topic"))
        for event in events(tmp_path / "audit" / "audit.log")
    ]
    assert found == [
        ("start", None, None, None),
        ("administration", None, "AUTH_CREATE_USER", None),  # the user of the settings
        ("login", "root", None, None),
        ("administration", "root", "AUTH_CREATE_USER", None),
        ("administration", "root", "AUTH_CREATE_ACL", None),
        ("login", "alice", None, None),
        ("denied", "alice", "SEND_MESSAGE_V2", "T2"),
        ("login", "root", None, None),
        ("administration", "root", "WIPE_WRITE_PERM_OF_BROKER", None),
        ("stop", None, None, None),
    ]
    strangers = [
        (event["event"], event["claimed_user"], event["request"], event["topic"])
        for event in events(tmp_path / "audit" / "strangers.log")
    ]
    assert strangers == [("denied", "eve", "GET_ROUTEINFO_BY_TOPIC", "x")]


def foreign(folder: Path) -> list[str]:
    return list(foreign_names(SYSTEM.files, folder, []))


async def test_a_denied_record_is_in_the_audit_log(tmp_path: Path) -> None:
    """The guard lets the request pass; its handler finds a record of another topic."""
    async with secured(tmp_path) as secure:
        await secure.allow("alice", "Topic:T1 Get")
        sent = await secure.send("T2")
        fields = {"offset": str(int(sent.fields["msgId"][16:32], 16)), "topic": "T1"}
        answer = await secure.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields, by="alice")
        assert answer.code == 16
    denied = [e for e in events(tmp_path / "audit" / "audit.log") if e["event"] == "denied"]
    assert [event["request"] for event in denied] == ["VIEW_MESSAGE_BY_ID"]
    assert denied[0]["reason"] == NOT_YOURS


async def test_the_audit_log_can_be_switched_off(tmp_path: Path) -> None:
    async with talking(tmp_path, SECURE.replace(audit_log=False)) as talk:
        assert (await Secured(talk).send("T1")).code == 0
    assert not (tmp_path / "audit").exists()
