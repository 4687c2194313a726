"""A user without permissions cannot tell topics and groups that exist from those that do not."""

from tests.broker.secured import secured

from firetrail.access.rules import RULES
from firetrail.remoting.messages.bodies import ConsumerData, HeartbeatData, ProducerData
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

NAMES = ("topic", "b", "consumerGroup", "group", "groupName", "srcGroup", "destGroup", "a")
"""The fields that name topics and groups, whatever the request."""
OTHERS = {
    "queueId": "0",
    "offset": "0",
    "commitLogOffset": "0",
    "clientId": "c1",
    "filterGroups": "",
}
THERE, MISSING = "THERE", "OTHER"


def beat_of(name: str) -> HeartbeatData:
    return HeartbeatData("c1", [ProducerData(name)], [ConsumerData(name)])


async def test_answers_do_not_depend_on_whether_a_name_exists() -> None:
    async with secured() as secure:
        assert (await secure.send(THERE)).code == 0
        beat = beat_of(THERE).encode(standard=True)
        assert (await secure.ask(RequestCode.HEART_BEAT, body=beat)).code == 0
        await secure.allow("eve", "Topic:E All", "Group:E All")

        async def asked(code: int, name: str) -> tuple[int, str, bytes]:
            fields = OTHERS | dict.fromkeys(NAMES, name)
            body = beat_of(name).encode(standard=True)
            answer: RemotingCommand = await secure.ask(code, fields, body, by="eve")
            return answer.code, (answer.remark or "").replace(name, "NAME"), bytes(answer.content)

        for code in RULES:
            assert await asked(code, THERE) == await asked(code, MISSING), code
