"""Requests that name a record: the topic of the record decides, not the one they claim."""

from tests.access.actors import acl
from tests.broker.halves import PROPERTIES
from tests.broker.secured import SEND, secured

from firetrail.access.implied_permissions import NOT_YOURS
from firetrail.remoting.messages.bodies import ConsumerData, HeartbeatData
from firetrail.remoting.wire.codes import RequestCode


async def test_a_record_is_not_read_through_another_topic() -> None:
    async with secured() as secure:
        await secure.send("T1")
        await secure.allow("alice", "Topic:T2 All", "Group:CG All")
        view = RequestCode.VIEW_MESSAGE_BY_ID
        for claim in ({}, {"topic": "T2"}):
            answer = await secure.ask(view, {"offset": "0", **claim}, by="alice")
            assert (answer.code, answer.remark) == (16, NOT_YOURS)
            assert not answer.content
        await secure.grant(acl("alice", "Topic:T1 Get"))
        assert (await secure.ask(view, {"offset": "0"}, by="alice")).code == 0


async def test_a_record_of_another_topic_is_not_sent_back() -> None:
    async with secured() as secure:
        await secure.send("T1")
        await secure.allow("alice", "Topic:T2 All", "Group:CG All")
        beat = HeartbeatData("c1", [], [ConsumerData("CG")]).encode(standard=True)
        assert (await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")).code == 0
        fields = {"offset": "0", "group": "CG", "delayLevel": "1", "originTopic": "T2"}
        back = RequestCode.CONSUMER_SEND_MSG_BACK
        end = secure.broker.store.log_range[1]
        assert (await secure.ask(back, fields, by="alice")).code == 16
        assert secure.broker.store.log_range[1] == end
        await secure.grant(acl("alice", "Topic:T1 Sub"))
        assert (await secure.ask(back, fields, by="alice")).code == 0


async def test_a_transaction_of_another_topic_is_not_ended() -> None:
    async with secured() as secure:
        assert (await secure.send("T1", i=PROPERTIES, f="4")).code == 0
        await secure.allow("alice", "Topic:T2 All")
        fields = {
            "producerGroup": "PG",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "topic": "T2",
        }
        end = RequestCode.END_TRANSACTION
        refused = await secure.ask(end, fields, by="alice")
        assert (refused.code, refused.remark) == (16, NOT_YOURS)
        assert secure.broker.store.max_offset("T1", 0) == 0
        await secure.grant(acl("alice", "Topic:T1 Pub"))
        assert (await secure.ask(end, fields, by="alice")).code == 0


async def test_a_reply_needs_the_reply_topic_whatever_topic_it_names() -> None:
    """It is pushed to a client, so the right to send to any topic is not enough."""
    async with secured() as secure:
        await secure.allow("alice", "Topic:T1 Pub")
        properties = "CORRELATION_ID\x0142\x02REPLY_TO_CLIENT\x01p1\x02"
        v1 = {"topic": "T1", "producerGroup": "PG", "properties": properties}
        v2 = SEND | {"i": properties}
        for code, fields in (
            (RequestCode.SEND_REPLY_MESSAGE, v1),
            (RequestCode.SEND_REPLY_MESSAGE_V2, v2),
        ):
            refused = await secure.ask(code, fields, by="alice")
            assert refused.code == 16
            assert "Topic:DefaultCluster_REPLY_TOPIC" in (refused.remark or "")
        await secure.grant(acl("alice", "Topic:DefaultCluster_REPLY_TOPIC Pub"))
        answer = await secure.ask(RequestCode.SEND_REPLY_MESSAGE_V2, v2, by="alice")
        assert answer.remark == "the producer p1 that sent the request is no longer connected"


async def test_messages_are_not_consumed_directly_from_another_topic() -> None:
    async with secured() as secure:
        sent = await secure.send("T1")
        await secure.allow("alice", "Group:CG All")
        beat = HeartbeatData("c1", [], [ConsumerData("CG")]).encode(standard=True)
        assert (await secure.ask(RequestCode.HEART_BEAT, {}, beat, by="alice")).code == 0
        found = sent.fields["msgId"]
        for message_id in (found, found[:16] + "0" * 4 + "F" * 12):  # nor can missing ones be told
            fields = {"consumerGroup": "CG", "clientId": "c1", "msgId": message_id}
            answer = await secure.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, by="alice")
            assert (answer.code, answer.remark) == (16, NOT_YOURS)
