"""A master with a broker port that answers just what a replica asks, and an HA port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.client.clusters import until
from tests.helpers import PATIENCE_S
from tests.replication.logs import SMALL

from firetrail import Message
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.servers.remoting_server import RemotingServer
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.replication.ha.ha_port import HAPort
from firetrail.replication.ha.ha_service import HAService
from firetrail.replication.ha.ha_source import HALimits, HASource
from firetrail.replication.log.epochs import EpochFile
from firetrail.replication.replica.follower import Follower, FollowerSettings
from firetrail.replication.replica.follower_status import FollowerState
from firetrail.replication.replica.master_check import MasterAddress
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole, StoreConfig
from firetrail.system import SYSTEM

MASTER = SMALL.replace(commit_log_file_size=16 << 10)
REPLICA = MASTER.replace(role=BrokerRole.SLAVE)
QUICK = FollowerSettings(
    heartbeat_s=0.05,
    silence_s=PATIENCE_S,
    check_s=0.05,
    retry_s=0.02,
    retry_max_s=0.05,
    unheard_s=PATIENCE_S,
)
LIMITS = HALimits(batch_size=1000, heartbeat_s=0.05, silence_s=PATIENCE_S)
Answer = Callable[[RemotingCommand], RemotingCommand]


class FakeMaster:
    """A store with both ports; a test may change every answer.

    Attributes:
        settings: The answer to GET_BROKER_CONFIG.
        figures: Changes of the answer to GET_BROKER_RUNTIME_INFO.
        refusal: If set, the remark with which every request is refused.
        asked: The codes of the requests so far.
        serves: Whether the HA port sends the log.
    """

    def __init__(self, folder: Path, config: StoreConfig = MASTER) -> None:
        self.store = BrokerStore.open(folder, config, system=SYSTEM)
        self.acks = self.store.replica_acks
        self.port = HAPort(SYSTEM)
        source = HASource(self.store.log, self.acks, LIMITS, SYSTEM.clock, SYSTEM.threads)
        self.ha = HAService(source, self.port)
        self.settings = {
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": str(config.commit_log_file_size),
        }
        self.figures: dict[str, str] = {}
        self.refusal = ""
        self.asked: list[int] = []
        handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_CONFIG: self._handler(self._config),
            RequestCode.GET_BROKER_RUNTIME_INFO: self._handler(self._runtime),
            RequestCode.VIEW_MESSAGE_BY_ID: self._handler(self._record),
        }
        self._server = RemotingServer(handlers, SYSTEM, ServerLimits())
        self.address = MasterAddress("")

    async def start(self) -> None:
        self.port.open("127.0.0.1", 0)
        self.ha.start()
        self.settings |= {"brokerIP2": "127.0.0.1", "haListenPort": str(self.port.port)}
        self.address = MasterAddress(f"127.0.0.1:{await self._server.start('127.0.0.1', 0)}")

    async def stop(self) -> None:
        await self._server.stop()
        self.ha.stop()
        self.port.close()
        self.store.close()

    def fill(self, count: int, text: str = "") -> None:
        for number in range(count):
            message = Message("T", b"%s%05d" % (text.encode(), number) * 20)
            assert self.store.embedded.try_put(message).ok

    def _handler(self, answer: Answer) -> Handler:
        def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            self.asked.append(request.code)
            if self.refusal:
                return request.answer(ResponseCode.NO_PERMISSION, self.refusal)
            return answer(request)

        return handle

    def _config(self, request: RemotingCommand) -> RemotingCommand:
        lines = [f"{key}={value}" for key, value in self.settings.items()]
        return request.answer(body="\n".join(lines).encode())

    def _runtime(self, request: RemotingCommand) -> RemotingCommand:
        begin, end = self.store.embedded.log_range
        table = {"commitLogMinOffset": str(begin), "commitLogMaxOffset": str(end)}
        return request.answer(body=KVTable(table | self.figures).encode())

    def _record(self, request: RemotingCommand) -> RemotingCommand:
        offset = int(request.fields["offset"])
        record = self.store.reads.buffer_at(offset)
        if record is None:
            remark = f"can not find message by the offset, {offset}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark)
        return request.answer(body=bytes(record))


@asynccontextmanager
async def master_in(folder: Path, config: StoreConfig = MASTER) -> AsyncIterator[FakeMaster]:
    master = FakeMaster(folder, config)
    await master.start()
    try:
        yield master
    finally:
        await master.stop()


class Replica:
    """A store with its follower."""

    def __init__(self, store: BrokerStore, follower: Follower) -> None:
        self.store = store
        self.follower = follower

    @property
    def end(self) -> int:
        return self.store.log.max_offset


@asynccontextmanager
async def replica_in(
    folder: Path,
    master: MasterAddress | None,
    config: StoreConfig = REPLICA,
    settings: FollowerSettings = QUICK,
) -> AsyncIterator[Replica]:
    client = RemotingClient()
    with BrokerStore.open(folder, config, system=SYSTEM) as store:
        epochs = EpochFile(SYSTEM, folder)
        follower = Follower(store.log_copy(), epochs, client, SYSTEM, settings)
        follower.follow(master)
        follower.start()
        try:
            yield Replica(store, follower)
        finally:
            await follower.stop()
            await client.close()


async def state_of(replica: Replica, state: FollowerState, text: str = "") -> str:
    """Wait for a state and an error that contains the text; return the error."""

    def holds() -> bool:
        status = replica.follower.status
        return status.state is state and text in status.error

    await until(holds)
    return replica.follower.status.error
