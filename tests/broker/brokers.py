"""A broker on free ports with a client that talks to it, for the tests of its parts."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.helpers import PATIENCE_S

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.format.record import Record, decode_record
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import (
    BY_TAG,
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from firetrail.remoting.wire.codes import RequestCode, Version
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import System

SMALL = StoreConfig(
    commit_log_file_size=8 << 20,
    consume_queue_file_size=20_000,
    index_slots=100,
    index_entries=1000,
)
SUSPEND, SUBSCRIPTION = 2, 4
Field = str | int | None
"""The value of a field in a request. Fields with None are left out."""
Fields = dict[str, Field]


class Talk:
    """A client with a method for each request of the tests."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client

    async def ask(
        self,
        code: int,
        fields: Mapping[str, Field] | None = None,
        *,
        body: bytes = b"",
        version: int = Version.V4_9_8,
        **more: Field,
    ) -> RemotingCommand:
        """Return the response to a request, with any code. The fields may be given in both ways."""
        return await self._request(code, body, version, {**(fields or {}), **more})

    async def _request(
        self, code: int, body: bytes, version: int, fields: Mapping[str, Field]
    ) -> RemotingCommand:
        texts = {name: text(value) for name, value in fields.items() if value is not None}
        command = RemotingCommand(code, texts, body, version=version)
        return await self.client.request(self.broker.address, command, PATIENCE_S)

    async def send(
        self,
        topic: str,
        body: bytes = b"hello",
        changes: Mapping[str, Field] | None = None,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        version: int = Version.V4_9_8,
        **more: Field,
    ) -> RemotingCommand:
        fields: Fields = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 0,
            "i": "KEYS\x01k1\x02TAGS\x01A\x02UNIQ_KEY\x01U1\x02WAIT\x01true",
            "j": 0,
            "k": "false",
        }
        changed = {**fields, **(changes or {}), **more}
        return await self._request(code, body, version, changed)

    async def pull(self, topic: str, offset: int = 0, **changes: Field) -> RemotingCommand:
        fields: Fields = {
            "consumerGroup": "CG",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
        }
        return await self._request(RequestCode.PULL_MESSAGE, b"", Version.V4_9_8, fields | changes)

    async def pull_until(self, topic: str, count: int, **changes: Field) -> list[Record]:
        """Return the first messages of a queue; wait for dispatch, which follows the send."""
        found: list[Record] = []
        while len(found) < count:
            flag = SUSPEND | SUBSCRIPTION
            answer = await self.pull(topic, len(found), sysFlag=flag, **changes)
            found += records(answer.content)
        return found

    async def commit(
        self, offset: int, group: str = "CG", topic: str = "T1", queue_id: int = 0
    ) -> RemotingCommand:
        return await self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=group,
            topic=topic,
            queueId=queue_id,
            commitOffset=offset,
        )

    async def committed(
        self, group: str = "CG", topic: str = "T1", queue_id: int = 0
    ) -> int | None:
        answer = await self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id
        )
        return int(answer.fields["offset"]) if answer.code == 0 else None

    async def beat(
        self,
        group: str = "CG",
        client_id: str = "c1",
        subscriptions: Mapping[str, str] | None = None,
        client: RemotingClient | None = None,
        producer: str | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        kind: str = BY_TAG,
    ) -> RemotingCommand:
        wanted = [SubscriptionData(t, text, kind) for t, text in (subscriptions or {}).items()]
        consumers = [ConsumerData(group, message_model=message_model, subscription_data_set=wanted)]
        body = HeartbeatData(
            client_id, [ProducerData(producer)] if producer else [], [] if producer else consumers
        )
        command = RemotingCommand(RequestCode.HEART_BEAT, {}, body.encode(standard=True))
        return await (client or self.client).request(self.broker.address, command)


def text(value: str | int) -> str:
    """Return the value of a field as it is written in a header."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def records(content: bytes) -> list[Record]:
    found = []
    at = 0
    while at < len(content):
        record = decode_record(content, at)
        assert isinstance(record, Record)
        found.append(record)
        at += record.size
    return found


@asynccontextmanager
async def talking(
    folder: Path | None = None,
    config: BrokerConfig | None = None,
    store: StoreConfig = SMALL,
    client_handlers: Mapping[int, Handler] | None = None,
    system: System | None = None,
) -> AsyncIterator[Talk]:
    """Run a broker, and talk to it. The fixture ``talk`` does so with the default settings."""
    async with Broker.running(folder, config, store, system=system) as broker:
        client = RemotingClient(client_handlers)
        try:
            yield Talk(broker, client)
        finally:
            await client.close()
