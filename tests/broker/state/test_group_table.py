"""The table of consumer groups keeps what RocketMQ 5.x writes."""

import json
from pathlib import Path

import pytest
from tests.broker.brokers import Talk, talking

from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode, ResponseCode

JAVA = {
    "attributes": {"priority.factor": "50", "lite.bind.topic": "T"},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": True,
    "consumeTimeoutMinute": 15,
    "groupName": "G",
    "groupRetryPolicy": {
        "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
        "type": "EXPONENTIAL",
    },
    "groupSysFlag": 4,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 3,
    "retryQueueNums": 2,
    "subscriptionDataSet": [{"topic": "T", "expressionType": "TAG", "expression": "*"}],
    "whichBrokerWhenConsumeSlowly": 1,
}
FORBIDDEN = {"G": {"T": 4, "U": 2}, "H": {"T": 4}}


def write(folder: Path) -> Path:
    """Write the file as a Java broker does."""
    path = folder / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    table = {
        "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1},
        "forbiddenTable": FORBIDDEN,
        "subscriptionGroupTable": {"G": JAVA},
    }
    path.write_text(json.dumps(table))
    return path


async def change(talk: Talk, **fields: object) -> None:
    group = SubscriptionGroupConfig("G", retry_max_times=5, **fields)  # type: ignore[arg-type]
    answer = await talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    assert answer.code == 0, answer.remark


async def test_what_java_has_written_is_written_back(tmp_path: Path) -> None:
    path = write(tmp_path)
    async with talking(tmp_path) as talk:
        talk.broker.groups.require("new")  # the file is written
    kept = json.loads(path.read_text())
    assert kept["subscriptionGroupTable"]["G"] == JAVA
    assert kept["forbiddenTable"] == FORBIDDEN


async def test_attributes_in_a_request_are_changes(tmp_path: Path) -> None:
    """They were stored with their signs, and an update without attributes removed them."""
    write(tmp_path)
    async with talking(tmp_path) as talk:
        await change(talk)
        group = talk.broker.groups.get("G")
        assert group is not None and group.attributes == JAVA["attributes"]
        assert group.retry_max_times == 5
        await change(talk, attributes={"+priority.factor": "70", "-lite.bind.topic": ""})
        group = talk.broker.groups.get("G")
        assert group is not None and group.attributes == {"priority.factor": "70"}
        await change(talk, attributes=group.attributes)  # sent back as it was read
        assert talk.broker.groups.get("G") == group
        await change(talk, attributes={"-priority.factor": ""})
        group = talk.broker.groups.get("G")
        assert group is not None and group.attributes is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"groupRetryPolicy": {"type": "ODD"}}, "groupRetryPolicy: type is 'ODD'"),
        ({"retryMaxTimes": 1 << 31}, "retryMaxTimes is 2147483648, which does not fit in 32 bits"),
    ],
)
async def test_impossible_settings_are_refused(
    talk: Talk, fields: dict[str, object], said: str
) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    answer = await talk.ask(code, body=json.dumps({"groupName": "G", **fields}).encode())
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert (answer.remark or "").startswith(f"group G: {said}")
    assert talk.broker.groups.get("G") is None


async def test_a_retry_policy_is_returned_as_it_was_sent(talk: Talk) -> None:
    policy = {"customizedRetryPolicy": {"next": [1, 2]}, "type": "CUSTOMIZED"}
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await talk.ask(code, body=json.dumps({"groupName": "G", "groupRetryPolicy": policy}).encode())
    answer = await talk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
    assert json.loads(answer.content)["groupRetryPolicy"] == policy


async def test_a_deleted_group_is_not_forbidden_anything(tmp_path: Path) -> None:
    write(tmp_path)
    async with talking(tmp_path) as talk:
        answer = await talk.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G")
        assert answer.code == 0
        assert talk.broker.groups.content().forbidden_table == {"H": {"T": 4}}
