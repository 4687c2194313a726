"""The requests that a slave refuses, and the response codes."""

from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.errors import ConfigError
from firetrail.remoting.messages.requests import REFUSED_BY_SLAVES
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.store.settings.store_config import BrokerRole

CODES = {
    RequestCode.SEND_MESSAGE: ResponseCode.SYSTEM_BUSY,
    RequestCode.SEND_MESSAGE_V2: ResponseCode.SYSTEM_BUSY,
    RequestCode.SEND_BATCH_MESSAGE: ResponseCode.SYSTEM_BUSY,
    RequestCode.CONSUMER_SEND_MSG_BACK: ResponseCode.SYSTEM_BUSY,
    RequestCode.POP_MESSAGE: ResponseCode.SYSTEM_BUSY,
    RequestCode.END_TRANSACTION: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.UPDATE_AND_CREATE_TOPIC: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_TOPIC_IN_BROKER: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SYSTEM_ERROR,
}


async def test_a_slave_refuses_what_changes_messages_or_tables(talk: Talk) -> None:
    await talk.broker.become(BrokerRole.SLAVE, 1)
    answers = {code: await talk.ask(code) for code in REFUSED_BY_SLAVES}
    for code, expected in CODES.items():
        assert answers[code].code == expected, code.name
    assert "slave" in (answers[RequestCode.SEND_MESSAGE].remark or "")
    assert "master" in (answers[RequestCode.UPDATE_AND_CREATE_TOPIC].remark or "")
    assert not talk.broker.store.topics()


async def test_a_slave_answers_everything_that_a_master_answers(talk: Talk) -> None:
    master = talk.broker.answered_codes[0]
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert talk.broker.answered_codes[0] == master
    assert set(REFUSED_BY_SLAVES) <= master


async def test_offsets_can_be_committed_to_a_slave(talk: Talk) -> None:
    await talk.send("T1")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert (await talk.commit(1)).code == ResponseCode.SUCCESS
    assert await talk.committed() == 1


async def test_offsets_of_groups_that_are_not_copied_yet(talk: Talk) -> None:
    """As on a Java slave, where heartbeats create groups: only if groups are created at all."""
    await talk.send("T1")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert (await talk.commit(1, "NEW")).code == ResponseCode.SUCCESS
    assert await talk.committed("NEW") == 1
    assert "NEW" not in talk.broker.groups.names()
    talk.broker._live.current = talk.broker.config.replace(auto_create_groups=False)
    answer = await talk.commit(1, "LATER")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_heartbeat_creates_nothing_on_a_slave(talk: Talk) -> None:
    await talk.broker.become(BrokerRole.SLAVE, 1)
    topics, groups = talk.broker.topics.names(), talk.broker.groups.names()
    assert (await talk.beat("NEW", subscriptions={"T1": "*"})).code == ResponseCode.SUCCESS
    assert "NEW" in talk.broker.clients.consumers
    assert talk.broker.topics.names() == topics
    assert talk.broker.groups.names() == groups


def test_a_slave_needs_an_id_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 is the id of the master; give each slave"):
        Broker(tmp_path, BrokerConfig(), SMALL.replace(role=BrokerRole.SLAVE))
