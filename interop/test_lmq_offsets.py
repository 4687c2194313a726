"""Offsets of groups through a hand-over with ``enableLmq=true``: Java, Firetrail, Java.

Java then keeps those of all groups in ``lmqConsumerOffset.json``, and does not look at
``consumerOffset.json``, whatever is in there.
"""

from __future__ import annotations

import signal
from pathlib import Path

from interop.servers import BROKER_CONF, Servers, our_name_server
from interop.test_broker_features import new_topic, talking
from tests.broker.brokers import Talk

from firetrail.remoting.bodies import SubscriptionGroupConfig
from firetrail.remoting.codes import RequestCode

NAME = "broker-a"
LMQ = f"{BROKER_CONF}enableLmq=true\nenableMultiDispatch=true\n"
LIGHT = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
PLACES = (("Plain", "G"), ("%LMQ%a", "G"), ("%LMQ%a", "%LMQ%g"))
STALE = '{"offsetTable":{"Plain@G":{0:1}}}'


async def commit(talk: Talk, offset: int) -> None:
    for topic, group in PLACES:
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
        answer = await talk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        assert answer.code == 0, (topic, group, answer.remark)


async def committed(talk: Talk) -> list[int]:
    found = []
    for topic, group in PLACES:
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0}
        answer = await talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        assert answer.code == 0, (topic, group, answer.remark)
        found.append(int(answer.fields["offset"]))
    return found


async def left_by_java(talk: Talk) -> None:
    await new_topic(talk, "Plain")
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert (await talk.ask(code, SubscriptionGroupConfig("G").encode())).code == 0
    for number in range(5):
        assert (await talk.send("Plain", b"%d" % number, i=LIGHT)).code == 0
    await commit(talk, 3)


async def in_between(talk: Talk) -> None:
    assert await committed(talk) == [3, 3, 3]
    await commit(talk, 4)


async def back_in_java(talk: Talk) -> None:
    assert await committed(talk) == [4, 4, 4]


def test_groups_go_on_where_they_stood(tmp_path: Path) -> None:
    java = Servers("v5", tmp_path, settings=LMQ)
    config = tmp_path / NAME / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_text(STALE)  # of the time before enableLmq
    with our_name_server() as namesrv:
        with java.broker(namesrv, NAME) as address:
            talking(address, left_by_java)
        with java.our_broker(namesrv, NAME) as address:
            talking(address, in_between)
        with java.broker(namesrv, NAME, signal.SIGKILL) as address:
            talking(address, back_in_java)
