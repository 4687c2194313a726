"""Administration, against Firetrail's broker and against brokers that only record requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
from tests.client.clusters import fill, read_all, until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import (
    Admin,
    Message,
    MessageType,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    Received,
)
from firetrail.errors import RequestError
from firetrail.format.system_topics import CHECKED_OFTEN_TOPIC
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.admin.admin_bodies import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerConnection,
    ResetOffsets,
    TopicOffset,
    TopicStats,
)
from firetrail.remoting.messages.bodies import (
    ConsumeFromWhere,
    DataVersion,
    GroupList,
    KVTable,
    MessageQueue,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from firetrail.remoting.messages.headers import OffsetResponse
from firetrail.remoting.messages.typed_body import Body
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import Permission, RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.system import SYSTEM

FIRST = ConsumeFromWhere.FIRST_OFFSET
A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
Answers = Mapping[int, Callable[[str], RemotingCommand | Body | dict[str, str]]]
TOPICS = TopicConfigTable({"T": TopicConfig("T", 1, 1)}, DataVersion(1, 1))


class TestFiretrail:
    async def test_the_cluster_and_its_masters_are_listed(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            info = await admin.cluster()
            assert list(info.cluster_addr_table.values()) == [["broker-a"]]
            assert list(await admin.masters()) == ["broker-a"]
            assert await admin.masters("elsewhere") == {}

    async def test_a_transaction_that_was_given_up_is_resumed(self) -> None:
        config = BrokerConfig(transaction_timeout_ms=1, transaction_check_max=1)
        asked: list[bytes] = []

        def check(message: Received) -> Outcome:
            asked.append(message.body)
            return Outcome.UNKNOWN if len(asked) == 1 else Outcome.COMMIT

        async with (
            Broker.running(config=config) as broker,
            Producer(broker.namesrv, "PG", check=check) as producer,
            Admin(broker.namesrv) as admin,
            PullConsumer(broker.namesrv) as consumer,
        ):
            sent = await producer.send_in_transaction(
                Message("T", b"half"), lambda _: Outcome.UNKNOWN
            )
            while CHECKED_OFTEN_TOPIC not in await admin.topics():
                await asyncio.sleep(0.01)
                await broker.check_transactions()
            (queue,) = await consumer.queues(CHECKED_OFTEN_TOPIC)
            (given_up,) = (await consumer.pull(queue, 0, wait_s=20)).messages
            assert given_up.message_id == sent.message_id
            await admin.resume_transaction(given_up.record.message_id)
            await asyncio.sleep(0.01)
            await broker.check_transactions()
            assert [m.body for m in await read_all(broker.namesrv, "T", 1)] == [b"half"]
            with pytest.raises(RequestError, match="there is no message"):
                await admin.resume_transaction(sent.offset_message_id)

    async def test_topics_are_listed_and_a_broker_is_made_read_only(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            await fill(namesrv, "T", 1)
            assert "T" in await admin.topics()
            assert [q.queue_id for q in await admin.queues("T")] == [0, 1, 2, 3]
            assert await admin.set_writable("broker-a", False) > 0
            assert {data.perm for data in (await admin.route("T")).queue_datas} == {4}
            assert await admin.set_writable("broker-a", True) > 0
            with pytest.raises(RequestError, match="does not know broker nope, only: broker-a"):
                await admin.set_writable("nope", False)
            with pytest.raises(RequestError, match=r"No topic route info .*: nope"):
                await admin.delete_topic("nope")

    async def test_messages_are_found_by_key_and_by_id(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin, Producer(namesrv) as producer:
            result = await producer.send(Message("T", b"one", keys=["k", "l"]))
            await producer.send(Message("T", b"two", keys=["k"]))
            await fill(namesrv, "T", 4)
            while len(found := await admin.find("T", "k")) < 2:
                await asyncio.sleep(0.01)
            assert [m.body for m in found] == [b"one", b"two"]
            assert found[0].queue == result.queue
            assert await admin.find("T", "nothing") == []
            assert [m.body for m in await admin.find("T", result.message_id)] == [b"one"]
            assert (await admin.view(result.offset_message_id)).body == b"one"

    async def test_topics_and_groups_are_created_and_deleted(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic("T", 2)
            await fill(namesrv, "T", 4)
            stats = await admin.topic_stats("T")
            assert [(at.min_offset, at.max_offset) for at in stats.offset_table.values()] == [
                (0, 2)
            ] * 2
            await admin.create_group("G")
            assert "G" in await admin.groups()
            (address,) = (await admin.masters()).values()
            assert (await admin.topic_configs(address))["T"].write_queue_nums == 2
            assert (await admin.broker_config(address))["brokerName"] == "broker-a"
            assert "brokerVersionDesc" in await admin.runtime_info(address)
            await admin.delete_group("G")
            assert "G" not in await admin.groups()
            await admin.delete_topic("T")
            assert "T" not in await admin.topics()

    async def test_topics_are_created_with_types(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic("T", message_type=MessageType.FIFO)
            await admin.create_topic(
                "U", attributes="+reserve.time=60", message_type=MessageType.MIXED
            )
            types = await admin.topic_types()
            assert types == {"T": {"broker-a": "FIFO"}, "U": {"broker-a": "MIXED"}}
            assert await admin.topic_types("T") == {"T": {"broker-a": "FIFO"}}
            (address,) = (await admin.masters()).values()
            attributes = (await admin.topic_configs(address))["U"].attributes
            assert attributes == {"message.type": "MIXED", "reserve.time": "60"}

    async def test_members_and_progress_of_a_group_are_shown(self, namesrv: str) -> None:
        heard: list[bytes] = []
        await fill(namesrv, "T", 8)
        async with (
            Admin(namesrv) as admin,
            PushConsumer(
                namesrv,
                "G",
                lambda message: heard.append(message.body),
                {"T": "*"},
                start=ConsumeFromWhere.FIRST_OFFSET,
            ) as consumer,
        ):
            await until(lambda: len(heard) >= 8)
            await consumer.commit()
            (address,) = (await admin.masters()).values()
            members = await admin.consumers("G", address)
            assert len(members.connection_set) == 1
            assert "T" in members.subscription_table
            assert await admin.groups_of("T") == ["G"]
            progress = await admin.consume_stats("G", "T")
            assert {
                at.broker_offset - at.consumer_offset for at in progress.offset_table.values()
            } == {0}
            await admin.reset_offsets("G", "T", 0)
            await until(lambda: len(heard) >= 16)

    async def test_a_reset_takes_effect_while_a_listener_runs(self, namesrv: str) -> None:
        """It also works for a member whose listener still consumes an earlier message."""
        heard: list[bytes] = []
        done = asyncio.Event()

        async def listen(message: Received) -> None:
            heard.append(message.body)
            if message.body == b"2" or heard.count(b"0") > 1:
                await done.wait()

        async with Admin(namesrv) as admin:
            await admin.create_topic("T", 1)
            await fill(namesrv, "T", 3)
            async with PushConsumer(namesrv, "G", listen, {"T": "*"}, start=FIRST) as consumer:
                await until(lambda: len(heard) >= 3)
                await admin.reset_offsets("G", "T", 0)
                await until(lambda: heard.count(b"0") > 1)
                (queue,) = await admin.queues("T")
                assert consumer.assigned[queue].offset == 0
                done.set()

    async def test_settings_of_name_servers_are_stored_and_deleted(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            await admin.put_kv("n", "k", "v")
            assert await admin.get_kv("n", "k") == "v"
            await admin.delete_kv("n", "k")
            with pytest.raises(RequestError, match="no value for k"):
                await admin.get_kv("n", "k")


class Brokers:
    """Two brokers, ``a`` and ``b``, with answers by request code."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.asked: list[tuple[str, RemotingCommand]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Admin]:
        """Start the brokers, and ask them as an administrator."""
        self.names = NameServer(NameServerConfig(listen_port=0))
        port = await self.names.start()
        servers = []
        for name in ("a", "b"):
            server = RemotingServer(
                {code: self._handler(name, code) for code in self._answers}, SYSTEM
            )
            address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
            self.names.register_local(cluster="C", name=name, address=address, topics=TOPICS)
            servers.append(server)
        try:
            async with Admin(f"127.0.0.1:{port}") as admin:
                yield admin
        finally:
            for server in servers:
                await server.stop()
            await self.names.stop()

    def _handler(self, name: str, code: int) -> Handler:
        def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            self.asked.append((name, request))
            answer = self._answers[code](name)
            if isinstance(answer, RemotingCommand):
                return request.answer(answer.code, answer.remark, answer.fields, answer.body)
            if isinstance(answer, Body):
                return request.answer(body=answer.encode())
            return request.answer(fields=answer)

        return handle


async def test_a_topic_is_created_on_every_master() -> None:
    brokers = Brokers({RequestCode.UPDATE_AND_CREATE_TOPIC: lambda name: {}})

    async with brokers.running() as admin:
        made = asyncio.ensure_future(admin.create_topic("U", 3, perm=Permission.READ))
        while len(brokers.asked) < 2:
            await asyncio.sleep(0.001)
        assert not made.done(), "the name server does not know it yet"
        for name, address in (await admin.masters()).items():
            table = TopicConfigTable({"U": TopicConfig("U", 3, 3)}, DataVersion(2, 2))
            brokers.names.register_local(cluster="C", name=name, address=address, topics=table)
        await made
        with pytest.raises(RequestError, match=r"no master has registered .* in the cluster X"):
            await admin.create_topic("U", cluster="X")
    assert sorted(name for name, _ in brokers.asked) == ["a", "b"]
    fields = brokers.asked[0][1].fields
    assert (fields["topic"], fields["writeQueueNums"], fields["perm"]) == ("U", "3", "4")


async def test_a_topic_is_deleted_on_every_broker_and_name_server() -> None:
    brokers = Brokers({RequestCode.DELETE_TOPIC_IN_BROKER: lambda name: {}})

    async with brokers.running() as admin:
        await admin.delete_topic("T")
        assert await admin.topics() == []
    assert len(brokers.asked) == 2


async def test_changes_without_a_master_are_errors() -> None:
    """A name server that has just started knows no broker yet."""
    server = NameServer(NameServerConfig(listen_port=0))
    port = await server.start()
    try:
        async with Admin(f"127.0.0.1:{port}") as admin:
            for change in (
                admin.create_topic("T1"),
                admin.delete_topic("T1"),
                admin.create_group("G1"),
                admin.delete_group("G1"),
            ):
                with pytest.raises(RequestError, match="no master has registered"):
                    await change
    finally:
        await server.stop()


async def test_stats_of_all_brokers_are_merged() -> None:
    queues = {"a": A, "b": B}
    brokers = Brokers(
        {
            RequestCode.GET_TOPIC_STATS_INFO: lambda n: TopicStats({queues[n]: TopicOffset(1, 5)}),
            RequestCode.GET_CONSUME_STATS: lambda n: ConsumeStats(
                {queues[n]: OffsetWrapper(5, 3)}, 1.5
            ),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: lambda n: GroupList(["G", n]),
        }
    )

    async with brokers.running() as admin:
        stats = await admin.topic_stats("T")
        assert stats.offset_table == {A: TopicOffset(1, 5), B: TopicOffset(1, 5)}
        progress = await admin.consume_stats("G", "T")
        assert progress == ConsumeStats({A: OffsetWrapper(5, 3), B: OffsetWrapper(5, 3)}, 3.0)
        assert await admin.groups_of("T") == ["G", "a", "b"]


async def test_groups_are_created_listed_and_deleted_on_all_brokers() -> None:
    brokers = Brokers(
        {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda name: {},
            RequestCode.DELETE_SUBSCRIPTIONGROUP: lambda name: {},
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda name: SubscriptionGroupTable(
                {name: SubscriptionGroupConfig(name)}
            ),
        }
    )

    async with brokers.running() as admin:
        await admin.create_group("G")
        assert sorted(await admin.groups()) == ["a", "b"]
        await admin.delete_group("a")
        assert brokers.asked[-1][1].fields == {"groupName": "a", "cleanOffset": "true"}
        with pytest.raises(RequestError, match="no broker knows the group G; create_group creates"):
            await admin.delete_group("G")
    _, made = brokers.asked[0]
    _, deleted = brokers.asked[-1]
    assert SubscriptionGroupConfig.decode(made.content) == SubscriptionGroupConfig("G")
    assert deleted.fields == {"groupName": "G", "cleanOffset": "true"}, "its offsets are deleted"


async def test_connections_and_settings_of_one_broker_are_returned() -> None:
    client = ClientConnection("c@1", "10.0.0.1:5", "JAVA", 409)
    brokers = Brokers(
        {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda n: ConsumerConnection([client]),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: lambda n: ProducerConnection([client]),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda n: KVTable({"brokerVersionDesc": n}),
            RequestCode.GET_BROKER_CONFIG: lambda n: RemotingCommand(0, {}, b"#x\nbrokerName=a\n"),
            RequestCode.UPDATE_BROKER_CONFIG: lambda n: {},
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda n: TOPICS,
        }
    )

    async with brokers.running() as admin:
        address = (await admin.masters())["a"]
        assert (await admin.consumers("G", address)).connection_set == [client]
        assert (await admin.producers("P", address)).connection_set == [client]
        assert await admin.runtime_info(address) == {"brokerVersionDesc": "a"}
        assert await admin.broker_config(address) == {"brokerName": "a"}
        assert await admin.topic_configs(address) == TOPICS.topic_config_table
        await admin.update_broker_config(address, {"x": "1", "y": "2"})
    assert brokers.asked[-1][1].content == b"x=1\ny=2\n"


KNOWN: Answers = {
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda name: SubscriptionGroupTable(
        {"G": SubscriptionGroupConfig("G")}
    )
}
"""Brokers that know the group G."""


class TestReset:
    async def test_a_reset_returns_the_offsets_of_all_brokers(self) -> None:
        queues = {"a": A, "b": B}
        brokers = Brokers(
            {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda n: ResetOffsets({queues[n]: 9})}
        )

        async with brokers.running() as admin:
            assert await admin.reset_offsets("G", "T", 1000) == {A: 9, B: 9}

    async def test_offsets_of_a_group_without_members_are_committed(self) -> None:
        offline = RemotingCommand(ResponseCode.CONSUMER_NOT_ONLINE, remark="nobody")
        brokers = Brokers(
            {
                **KNOWN,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda n: offline,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda n: OffsetResponse(4).encode(),
                RequestCode.GET_MAX_OFFSET: lambda n: OffsetResponse(6).encode(),
                RequestCode.UPDATE_CONSUMER_OFFSET: lambda n: {},
            }
        )

        async with brokers.running() as admin:
            assert await admin.reset_offsets("G", "T", 1000) == {A: 4, B: 4}
            assert await admin.reset_offsets("G", "T", -1) == {A: 6, B: 6}
        assert brokers.asked[-1][1].fields["commitOffset"] == "6"

    async def test_a_broker_that_rejects_a_reset_is_an_error(self) -> None:
        wrong = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="not now")
        brokers = Brokers({RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda n: wrong})

        async with brokers.running() as admin:
            with pytest.raises(RequestError, match="a: not now"):
                await admin.reset_offsets("G", "T", 1000)

    async def test_a_reset_of_an_unknown_group_is_an_error(self) -> None:
        offline = RemotingCommand(ResponseCode.CONSUMER_NOT_ONLINE, remark="nobody")
        brokers = Brokers({**KNOWN, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda n: offline})

        async with brokers.running() as admin:
            with pytest.raises(RequestError, match="code 26: no broker knows the group H; create_"):
                await admin.reset_offsets("H", "T", 1000)
