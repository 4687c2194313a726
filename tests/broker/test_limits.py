"""Tables that clients can make a broker keep: each has a limit, and a refusal names it."""

import asyncio

import pytest
from tests.broker.brokers import SUBSCRIPTION, SUSPEND, Fields, Talk, talking
from tests.broker.pops import ask_pop, fill, popped
from tests.broker.test_every_request import ALL_GOOD, CHANGE_ROLES, GOOD_BODIES
from tests.client.clusters import until

from firetrail.broker.admin import assignment_processor, inspection_processor
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter.message_selector import TAGS_MAX
from firetrail.broker.pop import pop_checkpoints
from firetrail.broker.pop.pop_checkpoints import INVISIBLE_MAX_MS
from firetrail.broker.pop.pop_processor import ATTEMPT_ID_MAX
from firetrail.broker.services import clients, long_polling, memberships, rebalance_locks, traffic
from firetrail.broker.services.rebalance_locks import CLIENT_ID_MAX
from firetrail.broker.state import auto_creation, group_table
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    LockedBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from firetrail.remoting.messages.requests import REQUESTS, RequestTarget
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand

HELD = SUSPEND | SUBSCRIPTION


async def beat(talk: Talk, data: HeartbeatData) -> RemotingCommand:
    return await talk.ask(RequestCode.HEART_BEAT, body=data.encode(standard=True))


async def pop(talk: Talk, **changes: str | int | bool) -> RemotingCommand:
    fields: dict[str, str | int | bool | None] = {
        "consumerGroup": "CG",
        "topic": "T1",
        "queueId": -1,
        "maxMsgNums": 1,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }
    return await talk.ask(RequestCode.POP_MESSAGE, fields | changes)


def refused(answer: RemotingCommand, code: ResponseCode, *words: str) -> None:
    assert answer.code == code, answer.remark
    for word in words:
        assert word in (answer.remark or "")


class TestCreation:
    async def test_no_more_topics_are_created_than_allowed(self) -> None:
        async with talking(config=BrokerConfig(auto_topics_max=1)) as talk:
            answer = await talk.send("T1")
            refused(answer, ResponseCode.TOPIC_NOT_EXIST, "topic T1", "auto_topics_max is 1")
            answer = await talk.send("%RETRY%made-up")
            refused(answer, ResponseCode.TOPIC_NOT_EXIST, "auto_topics_max")
            created = await talk.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic="T1",
                defaultTopic="TBW102",
                readQueueNums=1,
                writeQueueNums=1,
                perm=6,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=False,
            )
            assert created.code == 0  # an administrator may
            assert (await talk.send("T1")).code == 0

    async def test_no_more_groups_are_created_than_allowed(self) -> None:
        async with talking(config=BrokerConfig(auto_groups_max=7)) as talk:
            assert (await talk.beat("G1")).code == 0
            answer = await talk.beat("G2")
            refused(
                answer,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                "group G2 is not created automatically: there are 7 already",
                "auto_groups_max is 7",
            )
            await talk.send("T1")
            answer = await talk.commit(1, group="G3")
            refused(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "auto_groups_max")
            assert (await talk.beat("G1")).code == 0

    async def test_topics_are_created_at_a_limited_rate(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(auto_creation, "BURST", 2)
        async with talking(config=BrokerConfig(auto_create_rate=1)) as talk:
            answers = [await talk.send(f"T{number}") for number in range(8)]
            codes = {answer.code for answer in answers[2:]}
            assert ResponseCode.TOPIC_NOT_EXIST in codes
            assert any("auto_create_rate=1 per second" in (a.remark or "") for a in answers)

    async def test_a_heartbeat_with_too_many_groups_creates_none(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memberships, "CONNECTION_MAX", 3)
        assert (await talk.beat("G1")).code == 0
        crowd = HeartbeatData(
            "c1", [ProducerData("P1")], [ConsumerData(f"X{number}") for number in range(2)]
        )
        answer = await beat(talk, crowd)
        text = "the clients of one connection would be in 4 groups; at most 3 are allowed"
        refused(answer, ResponseCode.INVALID_PARAMETER, text)
        listed = await talk.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert b"X0" not in listed.content

    async def test_producer_groups_of_an_address_are_limited(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name of a producer group needs no permission, and each connection could use more."""
        monkeypatch.setattr(memberships, "TOTAL_MAX", 10)
        others = [RemotingClient() for _ in range(2)]
        try:
            for number, client in enumerate(others):
                talker = Talk(talk.broker, client)
                crowd = [ProducerData(f"P{number}{each}") for each in range(3)]
                answer = await beat(talker, HeartbeatData(f"c{number}", crowd, []))
                if number == 0:
                    assert answer.code == 0
                    continue
                text = (
                    "address 127.0.0.1 has 3 groups of clients, and all callers have 3 of at most"
                )
                refused(answer, ResponseCode.SYSTEM_BUSY, text)
            listed = await talk.ask(RequestCode.GET_ALL_PRODUCER_INFO)
            assert b"P02" in listed.content
            assert b"P10" not in listed.content
        finally:
            for client in others:
                await client.close()
        state = talk.broker._term.parts.state
        await until(lambda: state.clients._memberships.total == 0)


class TestOffsets:
    async def test_there_is_a_limited_number_of_offsets(self, talk: Talk) -> None:
        await talk.send("T1")
        assert (await talk.commit(1)).code == 0
        count = talk.broker._term.parts.state.offsets._count
        config = talk.broker._live.current.replace(offsets_max=count)
        talk.broker._live.current = config
        answer = await talk.commit(1, queue_id=1)
        refused(answer, ResponseCode.SYSTEM_BUSY, f"offsets_max is {count}", "queue 1 of T1")
        assert (await talk.commit(0)).code == 0

    async def test_no_request_adds_an_offset_beyond_the_limit(self, talk: Talk) -> None:
        """Whatever clients and administrators send for a new group."""
        for topic in ("T1", "T2"):
            await fill(talk, topic, b"1")
        assert (await talk.commit(1)).code == 0
        await talk.beat("NEW")
        offsets = talk.broker.offsets
        count = offsets._count
        talk.broker._live.current = talk.broker._live.current.replace(offsets_max=count)
        fields = ALL_GOOD | {"consumerGroup": "NEW", "group": "NEW", "destGroup": "NEW"}
        fields |= {"srcGroup": "CG", "commitOffset": "1", "offset": "-1", "pollTime": "0"}
        left_out = CHANGE_ROLES | {
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        }
        asked = []
        for code, row in REQUESTS.items():
            known = GOOD_BODIES.get(RequestCode(code))
            body = known.encode(standard=True).replace(b'"CG"', b'"NEW"') if known else b""
            changes = row.target is RequestTarget.BROKER and code not in left_out
            for order in ("true", "false") if changes else ():
                for queue_id in ("0", "-1"):
                    more = {"order": order, "queueId": queue_id, "sysFlag": "5"}
                    asked.append(asyncio.ensure_future(talk.ask(code, fields | more, body=body)))
        await asyncio.wait(asked, timeout=1)
        talk.broker.release_polls()
        await asyncio.gather(*asked)
        assert (offsets.of_group("NEW"), offsets._count) == ({}, count)

    @pytest.mark.parametrize("order", [False, True])
    async def test_a_pop_of_a_new_group_is_refused_before_it_takes_anything(
        self, talk: Talk, order: bool
    ) -> None:
        for queue_id in range(4):
            await fill(talk, "T1", b"1", e=queue_id)
        offsets = talk.broker.offsets
        most = offsets._count + 3
        talk.broker._live.current = talk.broker._live.current.replace(offsets_max=most)
        answer = await ask_pop(talk, order=order)
        refused(answer, ResponseCode.SYSTEM_BUSY, f"offsets_max is {most}")
        talk.broker._live.current = talk.broker._live.current.replace(offsets_max=most + 10)
        assert len(popped(await ask_pop(talk, order=order))) == 4

    async def test_resets_and_clones_of_all_queues_are_refused_as_a_whole(self, talk: Talk) -> None:
        await fill(talk, "T1", b"1")
        for queue_id in range(2):
            assert (await talk.commit(1, queue_id=queue_id)).code == 0
        await talk.beat("NEW")
        offsets = talk.broker.offsets
        config = talk.broker._live.current
        talk.broker._live.current = config.replace(offsets_max=offsets._count + 1)
        reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await talk.ask(reset, topic="T1", group="NEW", timestamp=0, isForce=True)
        refused(answer, ResponseCode.SYSTEM_BUSY, "offsets_max is")
        clone: Fields = {"srcGroup": "CG", "destGroup": "NEW", "offline": False}
        answer = await talk.ask(RequestCode.CLONE_GROUP_OFFSET, clone)
        refused(answer, ResponseCode.SYSTEM_BUSY, "offsets_max is")
        assert offsets.of_group("NEW") == {}

    async def test_a_pull_is_answered_although_its_commit_is_refused(
        self, caplog: pytest.LogCaptureFixture, talk: Talk
    ) -> None:
        await talk.send("T1")
        assert (await talk.commit(1, queue_id=1)).code == 0
        count = talk.broker._term.parts.state.offsets._count
        config = talk.broker._live.current.replace(offsets_max=count)
        talk.broker._live.current = config
        answer = await talk.pull("T1", sysFlag=HELD | 1)
        assert (answer.code, bool(answer.content)) == (0, True)
        assert talk.broker.offsets.get("CG", "T1", 0) is None
        (record,) = [each for each in caplog.records if "is answered, but" in each.getMessage()]
        assert f"offsets_max is {count}" in record.getMessage()

    async def test_offsets_of_queues_that_a_topic_never_had_are_refused(self, talk: Talk) -> None:
        await talk.send("T1")
        answer = await talk.commit(1, queue_id=4)
        refused(answer, ResponseCode.SYSTEM_ERROR, "queueId[4] is illegal: no such queue")

    async def test_deleted_offsets_make_room(self, talk: Talk) -> None:
        await talk.send("T1")
        offsets = talk.broker._term.parts.state.offsets
        before = offsets._count
        await talk.commit(1)
        await talk.commit(1, queue_id=1)
        assert offsets._count == before + 2
        offsets.forget(group="CG")
        assert offsets._count == before


class TestSubscriptions:
    async def test_a_long_list_of_tags_is_refused(self, talk: Talk) -> None:
        await talk.send("T1")
        long = "x" * (TAGS_MAX + 1)
        failed = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        refused(await talk.pull("T1", subscription=long), failed, f"at most {TAGS_MAX}")
        refused(await talk.beat("CG", subscriptions={"T1": long}), failed, f"at most {TAGS_MAX}")
        many = "||".join(f"tag{number}" for number in range(2000))
        assert (await talk.pull("T1", subscription=many)).code != failed

    async def test_a_group_subscribes_to_a_limited_number_of_topics(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "SUBSCRIPTIONS_MAX", 2)
        answer = await talk.beat("CG", subscriptions={"T1": "*", "T2": "*", "T3": "*"})
        refused(answer, ResponseCode.INVALID_PARAMETER, "CG subscribes to 3 topics; at most 2")

    async def test_the_subscriptions_of_all_groups_have_a_limited_size(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "SUBSCRIPTION_BYTES", 3_000)

        def data(group: str) -> HeartbeatData:
            wanted = SubscriptionData("T1", "a" * 1000, tags_set=["a" * 1000])
            return HeartbeatData("c1", [], [ConsumerData(group, subscription_data_set=[wanted])])

        for _ in range(3):  # the same group again and again
            assert (await beat(talk, data("G1"))).code == 0
        answer = await beat(talk, data("G2"))
        refused(answer, ResponseCode.SYSTEM_BUSY, "more than 3000 bytes", "G2")
        await talk.ask(
            RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="", consumerGroup="G1"
        )
        assert (await beat(talk, data("G2"))).code == 0

    async def test_a_client_id_has_a_limited_length(self, talk: Talk) -> None:
        answer = await talk.beat("CG", client_id="c" * (CLIENT_ID_MAX + 1))
        refused(answer, ResponseCode.INVALID_PARAMETER, f"at most {CLIENT_ID_MAX}")

    async def test_the_tags_of_a_subscription_are_hashed_once_per_request(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashed: list[str] = []

        def hashes(text: str) -> frozenset[int]:
            hashed.append(text)
            return frozenset()

        monkeypatch.setattr(inspection_processor, "tag_hashes", hashes)
        for _ in range(3):
            await talk.send("T1")
        await talk.pull_until("T1", 3)
        await talk.beat("CG", subscriptions={"T1": "A"})
        answer = await talk.ask(
            RequestCode.QUERY_CONSUME_QUEUE,
            topic="T1",
            queueId=0,
            index=0,
            count=3,
            consumerGroup="CG",
        )
        assert answer.code == 0
        assert hashed == ["A"]


class TestLocks:
    async def test_only_queues_of_the_broker_are_locked(self, talk: Talk) -> None:
        await talk.send("T1")
        wanted = [
            MessageQueue("T1", "broker-a", 0),
            MessageQueue("T1", "broker-a", 4),
            MessageQueue("T1", "elsewhere", 0),
            MessageQueue("no-topic", "broker-a", 0),
        ]
        body = LockBody("CG", "c1", wanted).encode(standard=True)
        answer = await talk.ask(RequestCode.LOCK_BATCH_MQ, body=body)
        assert LockedBody.decode(answer.content).locked == wanted[:1]

    async def test_no_more_queues_are_locked_than_allowed(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rebalance_locks, "LOCKS_MAX", 6)  # a group gets a third
        await talk.send("T1")
        wanted = [MessageQueue("T1", "broker-a", number) for number in range(4)]
        body = LockBody("CG", "c1", wanted).encode(standard=True)
        for _ in range(2):  # those that are held are renewed
            answer = await talk.ask(RequestCode.LOCK_BATCH_MQ, body=body)
            assert len(LockedBody.decode(answer.content).locked) == 2

    async def test_locks_need_a_group(self) -> None:
        async with talking(config=BrokerConfig(auto_create_groups=False)) as talk:
            body = LockBody("made-up", "c1", []).encode(standard=True)
            answer = await talk.ask(RequestCode.LOCK_BATCH_MQ, body=body)
            refused(answer, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "made-up")


class TestHeldRequests:
    async def test_a_connection_has_a_limited_number(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(long_polling, "HELD_PER_CONNECTION", 2)
        await talk.send("T1")
        pulls = [asyncio.ensure_future(talk.pull("T1", 1, sysFlag=HELD)) for _ in range(3)]
        done, held = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result().code for each in done] == [ResponseCode.PULL_NOT_FOUND]
        notified = await talk.ask(
            RequestCode.NOTIFICATION,
            consumerGroup="CG",
            topic="T1",
            queueId=3,
            pollTime=60_000,
            bornTime=0,
        )
        assert (notified.code, notified.fields["hasMsg"]) == (0, "false")
        await talk.send("T1")
        assert {each.code for each in await asyncio.gather(*held)} == {0}

    async def test_their_frames_have_a_limited_size(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(long_polling, "HELD_BYTES", 3 * long_polling.HELD_LEAST)
        await talk.send("T1")
        pulls = [asyncio.ensure_future(talk.pull("T1", 1, sysFlag=HELD)) for _ in range(2)]
        done, held = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result().code for each in done] == [ResponseCode.PULL_NOT_FOUND]
        await talk.send("T1")
        assert {each.code for each in await asyncio.gather(*held)} == {0}

    async def test_a_pull_waits_for_a_limited_time(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.broker.processors.pull_processor.PULL_MAX_S", 0.01)
        await talk.send("T1")
        answer = await talk.pull("T1", 1, sysFlag=HELD, suspendTimeoutMillis=10**12)
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    async def test_they_are_woken_in_slices(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(long_polling, "WAKE_SLICE", 2)
        await talk.send("T1")
        pulls = [asyncio.ensure_future(talk.pull("T1", 1, sysFlag=HELD)) for _ in range(7)]
        polling = talk.broker._term.parts.state.long_polling
        while polling._count < 7:
            await asyncio.sleep(0.001)
        await talk.send("T1")
        assert {each.code for each in await asyncio.gather(*pulls)} == {0}
        assert (polling._count, polling._shares.total) == (0, 0)


class TestPops:
    async def test_an_invisible_time_is_limited(self, talk: Talk) -> None:
        await talk.send("T1")
        answer = await pop(talk, invisibleTime=INVISIBLE_MAX_MS + 1)
        refused(answer, ResponseCode.INVALID_PARAMETER, f"at most {INVISIBLE_MAX_MS} (3 days)")

    async def test_the_id_of_an_attempt_is_limited(self, talk: Talk) -> None:
        await talk.send("T1")
        answer = await pop(talk, attemptId="x" * (ATTEMPT_ID_MAX + 1), order=True)
        refused(answer, ResponseCode.INVALID_PARAMETER, f"at most {ATTEMPT_ID_MAX} are allowed")

    async def test_a_group_has_a_limited_share_of_the_open_pops(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pop_checkpoints, "OPEN_MAX", 3)
        for _ in range(2):
            await talk.send("T1")
        await talk.pull_until("T1", 2)
        assert (await pop(talk)).code == 0
        words = ("group CG of address 127.0.0.1 has 1 open pops", "all callers have 1 of at most 3")
        refused(await pop(talk), ResponseCode.POLLING_FULL, *words, "Acknowledge messages")
        assert (await pop(talk, consumerGroup="OTHER")).code == 0


async def test_open_transactions_are_limited() -> None:
    async with talking(config=BrokerConfig(open_transactions_max=6)) as talk:
        half = "TRAN_MSG\x01true\x02PGROUP\x01{}\x02UNIQ_KEY\x01U{}"
        for number in range(2):
            answer = await talk.send("T1", f=4, i=half.format("PG", number))
            assert answer.code == 0
        answer = await talk.send("T1", f=4, i=half.format("PG", 3))
        words = ("group PG of address 127.0.0.1 has 2 open transactions", "of at most 6")
        refused(answer, ResponseCode.SYSTEM_BUSY, *words, "raise open_transactions_max")
        assert (await talk.send("T1", f=4, i=half.format("OTHER", 4))).code == 0


class TestCounters:
    async def test_only_some_pairs_of_topic_and_group_are_counted(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(traffic, "COUNTS_MAX", 1)
        counts = talk.broker._term.parts.state.traffic
        for group in ("G1", "G2"):
            counts.count_get("T1", group, 1, 10)
            counts.count_sent_back("T1", group, 10)
        assert (len(counts.groups), len(counts.sent_back)) == (1, 1)
        assert counts.got.messages == 2

    async def test_request_modes_are_limited(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(assignment_processor, "MODES_MAX", 1)
        codes = []
        for group in ("G1", "G2", "G1"):
            body = b'{"topic":"T1","consumerGroup":"%s","mode":"POP"}' % group.encode()
            answer = await talk.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
            codes.append(answer.code)
        assert codes == [0, ResponseCode.INVALID_PARAMETER, 0]

    async def test_forbidden_topics_are_limited(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_table, "FORBIDDEN_MAX", 1)
        await talk.send("T1")
        codes = [
            (
                await talk.ask(
                    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
                    group=group,
                    topic="T1",
                    readable=False,
                )
            ).code
            for group in ("G1", "G2")
        ]
        assert codes == [0, ResponseCode.INVALID_PARAMETER]
