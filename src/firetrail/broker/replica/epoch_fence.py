"""The fence that keeps a former master from accepting messages while another broker is the master.

Every promotion begins an epoch with a larger number than all before, and a master registers with
the number of its epoch (RocketMQ's ``stateVersion``). A master that learns of a larger number
refuses messages until it is promoted again or becomes a slave, and no longer registers. The answers
of Firetrail's name servers contain the number. Other name servers return only the address of the
master that they know, which is then asked.

Two brokers can begin epochs with the same number, if one was promoted while the other could not
know of it. Of two such masters, the one that finds the other registered refuses messages.

Without a consensus engine this cannot be complete: a former master that reaches neither name
servers nor its successor does not know of it.
"""

import asyncio
import logging

from firetrail.broker.broker_parts import Environment, Parts
from firetrail.broker.replica.role_requests import ask_status
from firetrail.errors import FiretrailError
from firetrail.pace.reminders import Reminders
from firetrail.remoting.connections.remoting_client import RemotingClient
from firetrail.remoting.messages.bodies import ClusterInfo
from firetrail.remoting.messages.replica_bodies import ReplicaStatus
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.admission.fence import KnownFence
from firetrail.store.admission.gate import Closure

NOT_ASKED = (
    "no name server has answered yet, so there may be a newer master; start a name server, or use "
    "'firetrail replica promote ADDRESS --force' if this broker is to be the master"
)

_log = logging.getLogger(__name__)


class EpochFence:
    """Closes the store of a master for messages while there is, or may be, a newer master."""

    def __init__(self, env: Environment, parts: Parts) -> None:
        self._env = env
        self._store = parts.state.store
        self._registration = parts.registration
        self._newest = 0  # the largest number of an epoch that was heard of
        self._rival = ("", 0)  # address and epoch of another master that was registered
        self._is_answered = False  # whether a name server has answered
        self._is_settled = False  # whether the broker has registered
        self._logged = ""  # the last reason that was logged
        self._reminders: dict[str, Reminders] = {}  # by name server
        self._client = RemotingClient(access=env.client_access)

    @property
    def is_fenced(self) -> bool:
        """Whether messages are refused because of a newer master."""
        return self._must_refuse() != ""

    @property
    def newest(self) -> int:
        """The largest known epoch number of another master; 0 if none is known."""
        return self._newest

    def begin(self) -> None:
        """Refuse messages, if there are name servers, until they were asked."""
        self._registration.on_answer = self._answered
        self._registration.permit = self._may_register
        self._settle()

    def start(self) -> None:
        """Decide, after the broker has registered, whether it may accept messages."""
        self._is_settled = True
        self._settle()

    async def stop(self) -> None:
        """Stop asking other masters."""
        await self._client.close()

    def _answered(self, newest: int) -> None:
        self._is_answered = True
        self._newest = max(self._newest, newest)
        self._settle()

    def _settle(self) -> None:
        """Open or close the store, depending on the known epochs and masters."""
        reason = self._must_refuse()
        if reason:
            self._store.gate.shut(Closure.FENCED, reason)
        else:
            self._store.gate.lift(Closure.FENCED)
        fence = self._store.gate.fence
        if isinstance(fence, KnownFence):  # not that of a group, whose lease decides
            fence.refusal = reason
        if self._is_settled and reason != self._logged:
            self._logged = reason
            if reason:
                _log.warning("this broker refuses messages: %s", reason)
            else:
                _log.warning("this broker accepts messages again: there is no newer master")

    def _must_refuse(self) -> str:
        """Return why messages must be refused; empty if they may be accepted."""
        if self._env.keeper is not None:  # the lease of the group decides
            return ""
        own = self._env.epochs.number
        remedy = "stop it, run 'firetrail replica rewind' on its store and start it as a slave"
        if self._newest > own:
            return (
                f"a master with epoch {self._newest} has registered, and this broker has epoch "
                f"{own}: {remedy}"
            )
        if self._has_rival:
            return (
                f"the broker at {self._rival[0]} is also a master with epoch {own}, and registered "
                f"before this broker: {remedy}"
            )
        must_ask = bool(self._env.live.current.name_servers)
        if must_ask and (not self._is_settled or (own and not self._is_answered)):
            return NOT_ASKED
        return ""

    @property
    def _has_rival(self) -> bool:
        """Whether another master was registered that has the epoch of this one.

        Brokers without an epoch have never been in a promotion, and cannot be told apart.
        """
        return 0 < self._env.epochs.number == self._rival[1]

    async def _may_register(self, name_servers: list[str]) -> bool:
        """Ask the masters of this name that name servers know; return whether none is newer.

        This comes right before a registration. Of two masters that both register regularly, each
        then finds the other at every name server, even if that prefers the last one.
        """
        await asyncio.gather(*(self._ask_other_master(address) for address in name_servers))
        self._settle()
        if self._env.keeper is not None:
            return True
        return self._newest <= self._env.epochs.number and not self._has_rival

    async def _ask_other_master(self, name_server: str) -> None:
        """Ask the master that a name server knows for its epoch, unless it is this broker."""
        new = Reminders(self._env.system.clock.monotonic)
        reminders = self._reminders.setdefault(name_server, new)
        try:
            command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await self._client.ask(name_server, command)
            clusters = ClusterInfo.decode(answer.content)
            known = clusters.broker_addr_table.get(self._env.live.current.name)
            if known is not None and known.master not in (None, self._env.address):
                self._note_master(await ask_status(self._client, known.master))
        except (OSError, FiretrailError) as error:
            reason = str(error) if name_server in str(error) else f"{name_server}: {error}"
            if reminders.is_due(reason):
                _log.info("cannot learn whether there is a newer master: %s", reason)
        else:
            reminders.forget()

    def _note_master(self, other: ReplicaStatus) -> None:
        self._newest = max(self._newest, other.epoch)
        is_master = not other.is_slave and other.address != self._env.address
        if is_master and other.epoch >= self._rival[1]:
            self._rival = (other.address, other.epoch)
