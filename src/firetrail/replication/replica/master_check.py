"""The questions of a replica to a master before it follows it, and its conclusions.

The HA protocol has no handshake: a master sends bytes from any offset that a replica names. The
replica therefore asks the master's broker port, with requests that every RocketMQ broker answers:

- 26 GET_BROKER_CONFIG for the length of its log files and its HA port;
- 28 GET_BROKER_RUNTIME_INFO for the range of its log;
- 33 VIEW_MESSAGE_BY_ID for the record at the physical offset of the replica's last one.

A record contains its own offset and its store time. So if master and replica have the same last
record, byte for byte, the master's log continues the replica's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from firetrail.errors import (
    DivergedError,
    FiretrailError,
    FormatError,
    NotReachedError,
    ProtocolError,
    ReplicationError,
    RequestError,
    StuckError,
)
from firetrail.format.files.java_properties import parse_properties
from firetrail.format.layout import MAGIC_BLANK
from firetrail.format.values.truths import is_true
from firetrail.remoting.connections.access import ACCESS_KEY, SECRET_KEY_FILE
from firetrail.remoting.connections.remoting_client import REQUEST_S, RemotingClient, split_address
from firetrail.remoting.messages.bodies import ClusterInfo, KVTable
from firetrail.remoting.messages.headers import ViewMessageHeader
from firetrail.remoting.messages.replica_bodies import is_slave_role
from firetrail.remoting.wire.codes import RequestCode, ResponseCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.log_copy import LastRecord
from firetrail.text import some_of

NOT_FOUND = "can not find message by the offset"
"""The beginning of every broker's remark if no message begins at an offset."""
RANGE_ATTEMPTS, RANGE_PAUSE_S = 5, 1.0
"""The number of times that a broker is asked for its figures, which Java lacks right after its
start."""
_JAVA_FAILURE = re.compile(r"\bjava\.\w+\.\w+(Exception|Error)\b")
FIRETRAIL_KEY = "ha_allowed_peers"
"""A setting that only Firetrail brokers have."""
_ACL_1_REFUSAL = "AclException"
"""Part of the remark of a broker with ACL 1.0, whose response code is that of all other errors."""
REQUEST_MAX_S = 24.0
"""The maximum time limit of a request: a master on a busy machine, or one that takes its role, can
be slow for long. A follower reaches it by doubling; what is asked once has it from the start."""
EMPTY_REMEDY = "move the replica's folder away and start it with an empty one"


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """The addresses of a master.

    Attributes:
        broker: ``host:port`` for requests.
        ha: ``host:port`` of its HA port; empty if the master has to be asked for it.
    """

    broker: str
    ha: str = ""


class OwnLog(Protocol):
    """The log of a replica."""

    @property
    def file_size(self) -> int:
        """The length of its files."""

    @property
    def max_offset(self) -> int:
        """The physical offset of the next record."""

    @property
    def is_empty(self) -> bool:
        """Whether the log has no file, so that it may begin at any file of the master."""

    def last_record(self) -> LastRecord | None:
        """Return the last record, or None if there is none."""


class LogRange(NamedTuple):
    """The physical offsets at which a log begins and ends."""

    begin: int
    end: int


class MasterConfig(NamedTuple):
    """The settings of a master that matter to its replicas."""

    file_size: int
    ha: str
    """``host:port`` of the HA port; empty if the master sends none."""
    cluster: str
    name: str
    """The name of the broker; master and replicas have the same."""
    has_controller: bool
    """Whether the master is in controller mode, and so speaks the auto-switch protocol."""
    role: str
    """``brokerRole`` in capitals; empty if the master does not send it."""
    is_firetrail: bool
    """Whether the master is Firetrail, which sends confirmations to replicas."""


def sign_remedy(error: RequestError) -> str:
    """Return the remedy for a master's refusal; empty if its access control is not the reason.

    Args:
        error: The answer of the master.
    """
    if error.code != ResponseCode.NO_PERMISSION and _ACL_1_REFUSAL not in error.remark:
        return ""
    return (
        "; let the replica sign as a super user of the master: set "
        f"innerClientAuthenticationCredentials in its broker.conf, or {ACCESS_KEY} and "
        f"{SECRET_KEY_FILE} in its environment"
    )


async def check_is_broker(client: RemotingClient, address: str) -> None:
    """Raise ReplicationError if this is the address of a name server.

    Args:
        client: Sends the request.
        address: The address of a server that does not know a request of brokers.
    """
    try:
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        found = ClusterInfo.decode((await client.ask(address, command)).content)
    except (FiretrailError, OSError):
        return
    masters = [
        f"{name} at {data.master}"
        for name, data in sorted(found.broker_addr_table.items())
        if data.master is not None
    ]
    known = f"the masters that it knows: {some_of(masters)}" if masters else "it knows no master"
    raise ReplicationError(
        f"{address} is the address of a name server, not of a broker; give the address of a "
        f"broker ({known})"
    )


class Master:
    """A master's broker port, for the questions of a replica.

    Every method raises NotReachedError if the master does not answer, and ReplicationError if it
    refuses to.
    """

    def __init__(
        self, client: RemotingClient, address: MasterAddress, request_s: float = REQUEST_S
    ) -> None:
        """Prepare to ask.

        Args:
            client: Sends the requests.
            address: Where the master is.
            request_s: The time for which the master may take to answer a request.
        """
        self._client = client
        self._request_s = request_s
        self.address = address

    async def settings(self) -> dict[str, str]:
        """Return all settings by their keys in ``broker.conf``."""
        try:
            answer = await self._ask(RequestCode.GET_BROKER_CONFIG)
        except _RefusedError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                await check_is_broker(self._client, self.address.broker)
            raise
        lines = answer.content.decode("utf-8", "replace")
        return {key: entry.text for key, entry in parse_properties(lines).items()}

    async def config(self) -> MasterConfig:
        """Return the settings; raise NotMasterError if the broker is a slave."""
        settings = await self.settings()
        role = settings.get("brokerRole", "").upper()
        if is_slave_role(role):
            raise NotMasterError(
                f"the broker at {self.address.broker} is a slave itself; follow its master"
            )
        file_size = self._number(settings, "mappedFileSizeCommitLog")
        return MasterConfig(
            file_size=file_size,
            ha=self.address.ha or self._ha_address(settings),
            cluster=settings.get("brokerClusterName", ""),
            name=settings.get("brokerName", ""),
            has_controller=is_true(settings.get("enableControllerMode")),
            role=role,
            is_firetrail=FIRETRAIL_KEY in settings,
        )

    def _ha_address(self, settings: Mapping[str, str]) -> str:
        if "haListenPort" not in settings:
            return ""
        host = settings.get("brokerIP2", "") or split_address(self.address.broker)[0]
        host = f"[{host}]" if ":" in host else host
        return f"{host}:{self._number(settings, 'haListenPort')}"

    async def log_range(self) -> LogRange:
        """Return the range of the master's log."""
        answer = await self._runtime_info()
        try:
            table = KVTable.decode(answer.content).table
        except FormatError as error:
            raise ReplicationError(
                f"the broker at {self.address.broker} sent runtime figures that cannot be read: "
                f"{error}"
            ) from error
        # A Java master without a log tells -1.
        begin = max(self._number(table, "commitLogMinOffset"), 0)
        return LogRange(begin, max(self._number(table, "commitLogMaxOffset"), begin))

    async def _runtime_info(self) -> RemotingCommand:
        for _ in range(RANGE_ATTEMPTS - 1):
            try:
                return await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            except _RefusedError as error:
                if not error.is_java_failure:
                    raise
                await asyncio.sleep(RANGE_PAUSE_S)
        return await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)

    async def record(self, offset: int) -> bytes | None:
        """Return the master's record at ``offset``; None if none begins there.

        A Java master takes the bytes there for the size of a record. If none begins there, it
        returns any bytes, more bytes than an answer may have, or an error of the Java library.
        """
        fields = ViewMessageHeader(offset).encode()
        try:
            answer = await self._ask(RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except _RefusedError as error:
            if NOT_FOUND in error.remark or error.is_java_failure:
                return None
            raise
        except NotReachedError as error:
            lost = error.__cause__
            if lost is not None and isinstance(lost.__cause__, ProtocolError):
                return None
            raise
        return bytes(answer.content)

    async def _ask(
        self, code: RequestCode, fields: dict[str, str] | None = None
    ) -> RemotingCommand:
        broker = self.address.broker
        try:
            command = RemotingCommand(code, fields or {})
            return await self._client.ask(broker, command, self._request_s)
        except RequestError as error:
            raise _RefusedError(
                f"the broker at {broker} refuses request {code.value} {code.name} ({error}), "
                f"without which the replica cannot tell whether it may follow{sign_remedy(error)}",
                error,
            ) from error
        except OSError as error:
            raise NotReachedError(f"the broker of the master does not answer: {error}") from error

    def _number(self, settings: Mapping[str, str], key: str) -> int:
        try:
            return int(settings[key])
        except (KeyError, ValueError):
            raise ReplicationError(
                f"the broker at {self.address.broker} does not report its {key}"
            ) from None


class NotMasterError(ReplicationError):
    """The broker to follow is a slave, as it is for a moment during a hand-over."""


class _RefusedError(ReplicationError):
    """The master has answered a request with an error."""

    def __init__(self, message: str, answer: RequestError) -> None:
        super().__init__(message)
        self.code = answer.code
        self.remark = answer.remark

    @property
    def is_java_failure(self) -> bool:
        """Whether the Java library has raised an error in the master, rather than the broker."""
        return _JAVA_FAILURE.search(self.remark) is not None


def check_file_size(log: OwnLog, config: MasterConfig) -> None:
    """Raise ReplicationError if the files of master and replica differ in length."""
    if config.file_size != log.file_size:
        raise ReplicationError(
            f"the master's log files have {config.file_size} bytes, the replica's {log.file_size}; "
            f"set mappedFileSizeCommitLog of the replica to {config.file_size} and start it with "
            "an empty folder"
        )


def check_names(config: MasterConfig, cluster: str, name: str) -> None:
    """Raise ReplicationError if the master has another name, or is in another cluster.

    Clients would take the messages of a replica for those of the broker whose name it has.
    """
    if (config.cluster, config.name) != (cluster, name):
        raise ReplicationError(
            f"the master is broker {config.name!r} of cluster {config.cluster!r}, but this broker "
            f"is configured as a slave of {name!r} of cluster {cluster!r}; set brokerName and "
            "brokerClusterName to the master's, or correct the address of the master"
        )


def check_range(log: OwnLog, master: LogRange) -> None:
    """Raise StuckError if the master has deleted messages that the replica lacks."""
    if not log.is_empty and log.max_offset < master.begin:
        raise StuckError(
            f"the replica has the log up to {log.max_offset}, but the master has deleted everything"
            f" before {master.begin}: {master.begin - log.max_offset} bytes cannot be copied any "
            f"more; {EMPTY_REMEDY}"
        )


class Continuation(NamedTuple):
    """The position from which a replica may follow, and the log of its master."""

    begin: int
    """The physical offset of the first byte that the replica needs."""
    master: LogRange


async def check_history(
    log: OwnLog, master: Master, copy_of: str = "", *, is_cut_by_group: bool = False
) -> Continuation:
    """Check that the master's log continues the replica's; return where.

    Args:
        log: The log of the replica.
        master: The master.
        copy_of: The broker of another name whose log the replica is known to have. Default: none.
        is_cut_by_group: Whether the replica is a member of a group, which removes records that the
            master lacks. Otherwise an operator has to do it. Default: False.

    Raises:
        DivergedError: The logs differ, or the master's is shorter.
        StuckError: The master no longer has the replica's last record.
        ReplicationError: The master refuses to answer.
        NotReachedError: The master does not answer.
    """

    def diverged(detail: str) -> DivergedError:
        remedy = _divergence_remedy(master, copy_of, is_cut_by_group)
        return DivergedError(f"the logs of master and replica are not the same: {detail}. {remedy}")

    there = await master.log_range()
    if log.is_empty:  # a crash or retention may have left a file without a record
        return Continuation(max(there.begin, log.max_offset), there)
    check_range(log, there)
    last = log.last_record()
    if last is None:
        return Continuation(log.max_offset, there)
    if last.offset < there.begin:
        raise StuckError(
            f"the replica's last record is at offset {last.offset}, but the master has deleted "
            f"everything before {there.begin}, so it cannot be known whether their logs are the "
            f"same; {EMPTY_REMEDY}"
        )
    if log.max_offset > there.end:
        raise diverged(
            f"the replica has the log up to {log.max_offset}, the master only up to {there.end}"
        )
    if await master.record(last.offset) != last.content:
        raise diverged(f"their records at offset {last.offset} differ")
    if last.end < log.max_offset and not await _is_blank(master, last.end):
        raise diverged(f"the replica's file ends at offset {last.end}, the master's does not")
    return Continuation(log.max_offset, there)


async def _is_blank(master: Master, offset: int) -> bool:
    """Return whether the master fills a file up from ``offset``, at which a record has ended.

    Java returns the BLANK record; Firetrail answers that there is no message.
    """
    content = await master.record(offset)
    return content is None or content[4:8] == MAGIC_BLANK.to_bytes(4, "big")


def _divergence_remedy(master: Master, copy_of: str, is_cut_by_group: bool) -> str:
    broker = master.address.broker
    if copy_of:
        return (
            f"This folder has the log of {copy_of}: follow that broker, or give the broker at "
            f"{broker} another folder"
        )
    if is_cut_by_group:
        return (
            "Messages that the group has not confirmed, or that an operator has given up with "
            "recover-group, are removed before the replica follows; a copy of them is kept. If the "
            "master lacks confirmed messages, nothing is removed, and the log of this broker says "
            "what to do"
        )
    return (
        "The replica does not follow; it keeps what it has. To make it follow, stop it and remove "
        f"what the master does not have: firetrail replica rewind STORE --of {broker}"
    )
