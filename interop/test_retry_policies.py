"""The retry policies of groups, on a Java broker and on Firetrail's, and set by ``mqadmin``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from interop.servers import Servers, our_name_server
from interop.test_broker_features import LIMIT_S, talking_to

from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode

NAME = "broker-a"
EXPONENTIAL = '{"initial":1000,"max":60000,"multiplier":3}'
POLICIES = {
    "Plain": '{"type":"CUSTOMIZED"}',
    "Bare": '{"type":"EXPONENTIAL"}',
    "Growing": f'{{"type":"EXPONENTIAL","exponentialRetryPolicy":{EXPONENTIAL}}}',
    "Listed": '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,2000,3000]}}',
}


async def set_policies(address: str) -> None:
    async with talking_to(address) as talk:
        for group, policy in POLICIES.items():
            settings: dict[str, Any] = {
                "groupName": group,
                "retryMaxTimes": 5,
                "consumeMessageOrderly": True,
            }
            settings |= {"groupSysFlag": 0, "consumeTimeoutMinute": 15}
            settings["groupRetryPolicy"] = json.loads(policy)
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            assert (await talk.ask(code, body=json.dumps(settings).encode())).code == 0


async def groups(address: str) -> dict[str, bytes]:
    """Return the settings of the groups, as the broker sends them to a proxy."""
    found = {}
    async with talking_to(address) as talk:
        for group in POLICIES:
            answer = await talk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
            assert answer.code == 0, answer.remark
            found[group] = answer.content.replace(b'"attributes":{},', b"")
    return found


@pytest.mark.time_limit(LIMIT_S)
async def test_policies_are_the_same_on_both_brokers_and_after_takeovers(tmp_path: Path) -> None:
    java = Servers("v5", tmp_path)
    with our_name_server() as namesrv:
        with java.our_broker(namesrv, "broker-b") as address:
            await set_policies(address)
            by_us = await groups(address)
            arguments = ("-b", address, "-g", "Tool", "-p", POLICIES["Growing"])
            assert "success." in java.mqadmin("updateSubGroup", *arguments)
            shown = java.mqadmin("getConsumerConfig", "-g", "Tool", "-n", namesrv)
            assert "ExponentialRetryPolicy{initial=1000, max=60000, multiplier=3}" in shown
        with java.broker(namesrv, NAME) as address:
            await set_policies(address)
            by_java = await groups(address)
        assert by_us == by_java
        with java.our_broker(namesrv, NAME) as address:
            assert await groups(address) == by_java
            async with talking_to(address) as talk:  # the file is written again
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await talk.ask(code, body=SubscriptionGroupConfig("Another").encode())
        with java.broker(namesrv, NAME) as address:
            assert await groups(address) == by_java
