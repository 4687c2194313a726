"""Forged proofs and addresses in remoting requests of a user without permission."""

from typing import Any

import pytest
from tests.access.disjoint import REPLY_TOPIC, Attack, Attacks, Disjoint, disjoint
from tests.broker.halves import COMMIT, PROPERTIES, ROLLBACK
from tests.broker.pops import Popped, popped, request_fields
from tests.client.clusters import until

from firetrail.access.implied_permissions import NOT_YOURS
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.format.files.timer import TIMER_TOPIC
from firetrail.format.properties import encode_properties
from firetrail.format.recall_handle import decode_handle
from firetrail.format.system_topics import HALF_TOPIC
from firetrail.format.values.ids import decode_message_id
from firetrail.proxy.schema.messages import QueryRouteRequest, Resource
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import LockBody, LockedBody, MessageQueue
from firetrail.remoting.messages.pop.pop_bodies import BatchAck, BatchAckBody
from firetrail.remoting.wire.codes import RequestCode as Code
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

Fields = dict[str, Any]
ATTACKS = Attacks()
HALF = PROPERTIES.replace("PG\x02", "PA\x02").replace("U1", "half")
NAMES = [("A", "GA"), ("A", "GE"), ("E", "GA")]
"""Pairs of topic and group that eve has no permission for; for E and GE, she has."""


# -- receipts ---------------------------------------------------------------------------------


def about(message: Popped, topic: str, group: str) -> Fields:
    return dict(request_fields(message, topic, group))


async def taken(scene: Disjoint) -> Popped:
    """Return a message that alice has popped. Both topics have one."""
    for user, topic in (("alice", "A"), ("eve", "E")):
        assert (await scene.send(user, topic)).code == 0
    fields: Fields = {
        "queueId": -1,
        "maxMsgNums": 1,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
    }
    names: Fields = {"consumerGroup": "GA", "topic": "A"}
    (message,) = popped(await scene.ask("alice", Code.POP_MESSAGE, **fields, **names))
    return message


async def still_taken(scene: Disjoint, message: Popped) -> bool:
    """Whether the receipt still counts for alice."""
    fields: Fields = {**about(message, "A", "GA"), "invisibleTime": 60_000}
    return (await scene.ask("alice", Code.CHANGE_MESSAGE_INVISIBLETIME, **fields)).code == 0


@ATTACKS.on("receipt handle")
async def acknowledge(scene: Disjoint) -> None:
    message = await taken(scene)
    for topic, group in NAMES:
        await scene.denied(Code.ACK_MESSAGE, **about(message, topic, group))
    await scene.ask("eve", Code.ACK_MESSAGE, **about(message, "E", "GE"))
    assert await still_taken(scene, message)


@ATTACKS.on("receipt handle")
async def acknowledge_together(scene: Disjoint) -> None:
    message = await taken(scene)
    receipt = message.receipt
    bits = BatchAck.bits_of(receipt.start, [receipt.offset])
    where = (receipt.start, receipt.queue_id, receipt.revive_queue, receipt.pop_time)
    for topic, group in [*NAMES, ("E", "GE")]:
        forged = BatchAck(group, topic, *where, receipt.invisible_ms, bits)
        body = BatchAckBody("broker-a", [forged]).encode(standard=True)
        answer = await scene.ask("eve", Code.BATCH_ACK_MESSAGE, body)
        assert (answer.code == 16) is ((topic, group) != ("E", "GE"))
    assert await still_taken(scene, message)


@ATTACKS.on("receipt handle")
async def show_again(scene: Disjoint) -> None:
    message = await taken(scene)
    code = Code.CHANGE_MESSAGE_INVISIBLETIME
    for topic, group in NAMES:
        await scene.denied(code, **about(message, topic, group), invisibleTime=0)
    own = about(message, "E", "GE")
    assert (await scene.ask("eve", code, **own, invisibleTime=0)).code == ResponseCode.NO_MESSAGE
    assert await still_taken(scene, message)


# -- messages that wait -----------------------------------------------------------------------


@ATTACKS.on("recall handle")
async def recall(scene: Disjoint) -> None:
    later = "TIMER_DELAY_SEC\x0150\x02UNIQ_KEY\x01later\x02"
    sent = await scene.send("alice", "AD", i=later)
    handle = decode_handle(sent.fields["recallHandle"])
    end = scene.broker.store.log_range[1]
    await scene.denied(Code.RECALL_MESSAGE, topic="AD", recallHandle=handle.encode())
    for topic in ("AD", "ED"):
        forged = handle._replace(topic=topic).encode()
        answer = await scene.ask("eve", Code.RECALL_MESSAGE, topic="ED", recallHandle=forged)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert scene.broker.store.log_range[1] == end


@ATTACKS.on("unique key")
async def cancel_a_message_with_the_same_key(scene: Disjoint) -> None:
    at = "TIMER_DELAY_SEC\x012\x02UNIQ_KEY\x01same\x02"
    sent = await scene.send("alice", "AD", i=at)
    slot = decode_handle(sent.fields["recallHandle"]).time_ms
    for value in ("same", "AD+same"):
        mark = f"TIMER_DELIVER_MS\x01{slot}\x02UNIQ_KEY\x01same\x02TIMER_DEL_UNIQKEY\x01{value}\x02"
        assert (await scene.send("eve", "ED", i=mark)).code == 0
    own = await scene.send("eve", "ED", i=at)
    handle = own.fields["recallHandle"]
    assert (await scene.ask("eve", Code.RECALL_MESSAGE, topic="ED", recallHandle=handle)).code == 0
    await until(lambda: scene.bodies("AD") == [b"x"])


async def half(scene: Disjoint) -> Fields:
    """Return the fields with which alice ends a transaction, except for the decision."""
    sent = await scene.send("alice", "AX", i=HALF, f=4)
    assert sent.code == 0
    return {
        "producerGroup": "PA",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": decode_message_id(sent.fields["msgId"]).physical_offset,
    }


@ATTACKS.on("transaction id")
async def end_a_transaction(scene: Disjoint) -> None:
    place = await half(scene)
    for topic in (None, "AX", "EX"):
        for decision in (COMMIT, ROLLBACK):
            more: Fields = {"commitOrRollback": decision, "topic": topic}
            await scene.denied(Code.END_TRANSACTION, **place, **more)
    assert (await scene.ask("alice", Code.END_TRANSACTION, **place, commitOrRollback=8)).code == 0
    await scene.dispatched()
    assert scene.bodies("AX") == [b"x"]


@ATTACKS.on("producer group")
async def be_asked_about_a_transaction(scene: Disjoint) -> None:
    asked: list[RemotingCommand] = []

    def take(connection: Connection, request: RemotingCommand) -> None:
        asked.append(request)

    await half(scene)
    eve = scene.connect({Code.CHECK_TRANSACTION_STATE: take})
    assert (await scene.beat("eve", "e1", client=eve, producer="PA")).code == 0
    transactions = scene.broker._parts.transactions
    for each in transactions._halves():
        each.immunity_ms = 0
    await scene.broker.check_transactions()
    assert (await scene.beat("eve", "e1", client=eve, producer="PA")).code == 0
    assert not asked


# -- messages by their place ------------------------------------------------------------------


@ATTACKS.on("message id, offset in the log")
async def read_a_record(scene: Disjoint) -> None:
    sent = await scene.send("alice", "A")
    message_id = sent.fields["msgId"]
    offset = decode_message_id(message_id).physical_offset
    for topic in (None, "A", "E"):
        await scene.denied(Code.VIEW_MESSAGE_BY_ID, offset=offset, topic=topic)
    assert (await scene.beat("eve", "e1", group="GE", topics=("E",))).code == 0
    end = scene.broker.store.log_range[1]
    for group in ("GE", "GA"):
        for origin in ("A", "E"):
            fields: Fields = {"offset": offset, "group": group, "delayLevel": 1}
            await scene.denied(Code.CONSUMER_SEND_MSG_BACK, **fields, originTopic=origin)
        direct: Fields = {"consumerGroup": group, "clientId": "e1", "msgId": message_id}
        await scene.denied(Code.CONSUME_MESSAGE_DIRECTLY, **direct)
    await half(scene)
    await scene.denied(Code.QUERY_MESSAGE, topic="A", key="k1", maxNum=1, **RANGE)
    for topic in (HALF_TOPIC, TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC"):
        await scene.denied(Code.QUERY_MESSAGE, topic=topic, key="half", maxNum=1, **RANGE)
    own = await scene.ask("eve", Code.QUERY_MESSAGE, topic="E", key="k1", maxNum=9, **RANGE)
    assert own.code == ResponseCode.QUERY_NOT_FOUND
    assert scene.broker.store.log_range[1] > end  # the half message, and nothing of eve's
    assert scene.broker.topics.get("%RETRY%GE") is not None
    assert scene.broker.store.max_offset("%RETRY%GE", 0) == 0


RANGE: Fields = {"beginTimestamp": 0, "endTimestamp": 2**62}


@ATTACKS.on("message id, offset in the log")
async def learn_the_topic_of_a_record(scene: Disjoint) -> None:
    """A user who tries all offsets must not learn the names of topics from the refusals."""
    sent = await scene.send("alice", "A")
    place = decode_message_id(sent.fields["msgId"]).physical_offset
    assert (await scene.beat("eve", "e1", group="GE", topics=("E",))).code == 0
    back: Fields = {"offset": place, "group": "GE", "delayLevel": 1}
    end: Fields = {**await half(scene), "commitOrRollback": COMMIT}
    for code, fields in (
        (Code.VIEW_MESSAGE_BY_ID, {"offset": place}),
        (Code.CONSUMER_SEND_MSG_BACK, back),
        (Code.END_TRANSACTION, end),
    ):
        empty = fields | {("commitLogOffset" if "commitLogOffset" in fields else "offset"): 1 << 40}
        for asked in (fields, empty):  # nor where there are any
            answer = await scene.ask("eve", code, **asked)
            assert (answer.code, answer.remark) == (16, NOT_YOURS)
            missing = await scene.ask("root", code, **empty)
            assert (missing.code, missing.remark == NOT_YOURS) == (1, False)


@ATTACKS.on("message id, offset in the log")
async def check_a_transaction_again(scene: Disjoint) -> None:
    await half(scene)
    transactions = scene.broker._parts.transactions
    (open_half,) = transactions._halves()
    await transactions._give_up(open_half, "for the test")
    await scene.dispatched()
    (given_up,) = scene.broker.store.read("TRANS_CHECK_MAX_TIME_TOPIC")
    await scene.denied(Code.RESUME_CHECK_HALF_MESSAGE, msgId=given_up.message_id)
    assert not transactions._halves()


# -- clients ----------------------------------------------------------------------------------


@ATTACKS.on("client id")
async def take_over_a_client(scene: Disjoint) -> None:
    alice, eve = scene.connect(), scene.connect()
    assert (await scene.beat("alice", "c1", client=alice, group="GA", topics=("A",))).code == 0
    names: list[Fields] = [{"producer": "PE"}, {"group": "GE"}]
    for fields in names:
        answer = await scene.beat("eve", "c1", client=eve, **fields)
        assert (answer.code, "belongs to another user" in (answer.remark or "")) == (16, True)
    assert not scene.broker.clients.producers
    assert list(scene.broker.clients.consumers) == ["GA"]
    route = QueryRouteRequest(topic=Resource(name="E"))
    answer = await scene.call("eve", "QueryRoute", route, client_id="c1")
    assert answer.status.message.startswith("client c1 belongs to another user")
    again = scene.connect()  # the same user may use the id on another connection
    assert (await scene.beat("alice", "c1", client=again, group="GA", topics=("A",))).code == 0


@ATTACKS.on("reply address")
async def receive_a_reply(scene: Disjoint) -> None:
    """Alice loses her connection, eve registers with her id, and alice connects again."""
    pushed: list[str] = []

    def receiver(name: str) -> dict[int, Handler]:
        def take(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            pushed.append(name)
            return request.answer()

        return {Code.PUSH_REPLY_MESSAGE_TO_CLIENT: take}

    first = scene.connect()
    assert (await scene.beat("alice", "c1", client=first, producer="PA")).code == 0
    await first.close()
    await until(lambda: not scene.broker.clients.producers)
    eve = scene.connect(receiver("eve"))
    assert (await scene.beat("eve", "c1", client=eve, producer="PE")).code == 16
    properties = "CORRELATION_ID\x0142\x02REPLY_TO_CLIENT\x01c1\x02MSG_TYPE\x01reply\x02"
    refused = await reply(scene, properties)
    assert "no longer connected" in (refused.remark or "")
    alice = scene.connect(receiver("alice"))
    assert (await scene.beat("alice", "c1", client=alice, producer="PA")).code == 0
    assert (await reply(scene, properties)).code == 0
    assert pushed == ["alice"]


async def reply(scene: Disjoint, properties: str) -> RemotingCommand:
    code = Code.SEND_REPLY_MESSAGE_V2
    fields: Fields = {"a": "PR", "c": REPLY_TOPIC, "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    return await scene.ask("alice", code, b"re", **fields, b=REPLY_TOPIC, i=properties)


@ATTACKS.on("owner of a lock")
async def unlock_a_queue(scene: Disjoint) -> None:
    assert (await scene.beat("alice", "c1", group="GA", topics=("A",))).code == 0
    queue = MessageQueue("A", "broker-a", 0)
    held = LockBody("GA", "c1", [queue]).encode(standard=True)
    assert (await scene.ask("alice", Code.LOCK_BATCH_MQ, held)).code == 0
    for group, client_id, queues in (
        ("GA", "c1", [queue]),
        ("GA", "e1", [queue]),
        ("GE", "c1", []),
    ):
        for code in (Code.UNLOCK_BATCH_MQ, Code.LOCK_BATCH_MQ):
            await scene.denied(code, LockBody(group, client_id, queues).encode(standard=True))
    other = LockBody("GA", "a2", [queue]).encode(standard=True)
    answer = await scene.ask("alice", Code.LOCK_BATCH_MQ, other)
    assert LockedBody.decode(answer.content).locked == []


# -- groups and their offsets -----------------------------------------------------------------


@ATTACKS.on("membership of a group")
async def join_a_group(scene: Disjoint) -> None:
    assert (await scene.beat("alice", "a1", group="GA", topics=("A",))).code == 0
    for group, topics in (("GA", ("A",)), ("GA", ("E",)), ("GA", ()), ("GE", ("A",))):
        assert (await scene.beat("eve", "e1", group=group, topics=topics)).code == 16
    consumer: Fields = {"consumerGroup": "GA", "clientId": "a1"}
    for code in (
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.UNREGISTER_CLIENT,
    ):
        await scene.denied(code, **consumer, clientID="a1")
    assert list(scene.broker.clients.consumers) == ["GA"]


@ATTACKS.on("offset of a group")
async def change_offsets(scene: Disjoint) -> None:
    for user, topic in (("alice", "A"), ("eve", "E")):
        assert (await scene.send(user, topic)).code == 0
    queue: Fields = {"queueId": 0}
    own: Fields = {"consumerGroup": "GA", "topic": "A", "commitOffset": 1, **queue}
    assert (await scene.ask("alice", Code.UPDATE_CONSUMER_OFFSET, **own)).code == 0
    for topic, group in NAMES:
        names: Fields = {"consumerGroup": group, "topic": topic}
        await scene.denied(Code.UPDATE_CONSUMER_OFFSET, **names, **queue, commitOffset=0)
        await scene.denied(Code.QUERY_CONSUMER_OFFSET, **names, **queue)
        await scene.denied(Code.PULL_MESSAGE, **names, **queue, **PULL)
        reset: Fields = {"topic": topic, "group": group, "timestamp": 0}
        await scene.denied(Code.INVOKE_BROKER_TO_RESET_OFFSET, **reset, isForce="true")
    for source, target in (("GA", "GE"), ("GE", "GA"), ("GA", "GA")):
        for named in (None, "A", "E"):
            clone: Fields = {"srcGroup": source, "destGroup": target, "topic": named}
            await scene.denied(Code.CLONE_GROUP_OFFSET, **clone, offline="true")
    answer = await scene.ask("alice", Code.QUERY_CONSUMER_OFFSET, **own)
    assert answer.fields["offset"] == "1"


PULL: Fields = {
    "queueOffset": 0,
    "maxMsgNums": 1,
    "sysFlag": 5,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "subVersion": 0,
}


@ATTACKS.on("offset of a group")
async def commit_with_a_pull(scene: Disjoint) -> None:
    """A pull can store an offset as well: that of its own group and queue."""
    await scene.send("alice", "A")
    names: Fields = {"consumerGroup": "GA", "topic": "A", "queueId": 0}
    await scene.denied(Code.PULL_MESSAGE, **{**PULL, **names, "commitOffset": 1})
    assert scene.broker.offsets.get("GA", "A", 0) is None


# -- names ------------------------------------------------------------------------------------


@ATTACKS.on("light queue, internal topic")
async def put_into_a_light_queue(scene: Disjoint) -> None:
    named = {"INNER_MULTI_DISPATCH": "%LMQ%A", "INNER_MULTI_QUEUE_OFFSET": "0"}
    raw = encode_properties(named)
    batch = encode_batch([BatchItem(0, b"x", raw)])
    end = scene.broker.store.log_range[1]
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
        for body, more in (
            (b"x", {"i": raw.decode()}),
            (batch, {"i": raw.decode(), "m": "true"}),
            (batch, {"m": "true"}),
        ):
            fields: Fields = {**SENDING, "b": "E", **more}
            await scene.denied(code, body, **fields)
    assert scene.broker.store.log_range[1] == end


SENDING: Fields = {"a": "PE", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
FOREIGN = ["%LMQ%A", "%RETRY%GA", "%DLQ%GA", HALF_TOPIC, TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"]


@ATTACKS.on("light queue, internal topic")
async def use_a_topic_of_the_broker(scene: Disjoint) -> None:
    for topic in [*FOREIGN, "rmq_sys_REVIVE_LOG_DefaultCluster", "RMQ_SYS_TRANS_OP_HALF_TOPIC"]:
        await scene.denied(Code.SEND_MESSAGE_V2, b"x", **SENDING, b=topic)
        names: Fields = {"consumerGroup": "GE", "topic": topic, "queueId": 0}
        await scene.denied(Code.PULL_MESSAGE, **names, **PULL)
        await scene.denied(Code.GET_MAX_OFFSET, topic=topic, queueId=0)


@ATTACKS.on("attempt id")
async def repeat_an_attempt(scene: Disjoint) -> None:
    """An attempt id lets a client get messages again that it has popped in order."""
    await scene.send("alice", "A")
    fields: Fields = {
        "queueId": -1,
        "maxMsgNums": 1,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "order": "true",
        "attemptId": "attempt",
    }
    own: Fields = {"consumerGroup": "GA", "topic": "A"}
    assert (await scene.ask("alice", Code.POP_MESSAGE, **own, **fields)).code == 0
    for topic, group in NAMES:
        await scene.denied(Code.POP_MESSAGE, consumerGroup=group, topic=topic, **fields)
    answer = await scene.ask("eve", Code.POP_MESSAGE, consumerGroup="GE", topic="E", **fields)
    assert answer.code and not answer.content


@pytest.mark.parametrize(
    ("claim", "attack"), ATTACKS.rows, ids=[f"{c}: {a.__name__}" for c, a in ATTACKS.rows]
)
async def test_a_forged_claim_has_no_effect(claim: str, attack: Attack) -> None:
    async with disjoint() as scene:
        await attack(scene)
