"""A group of brokers, a consensus engine and the network between them, in simulated time.

Every member has a clock of its own. Requests and answers are delayed or lost, members are paused
(SIGSTOP), killed, and cut off from the engine or from each other. The members run the decisions of
the product (:class:`Election`, :class:`InSyncMembers`); everything else is a model: a log is a list
of messages, and replication copies lists.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from firetrail.replication.election import (
    Candidate,
    Election,
    GroupView,
    Holder,
    InSyncSet,
    LeaseTiming,
    SetChange,
)
from firetrail.replication.in_sync_members import InSyncMembers

TIMING = LeaseTiming(5.0)
LAG_S = 4.0
TICK_S = 0.25


@dataclass
class SimulatedEngine:
    """The entries of the group, with a lease that expires by the engine's own clock."""

    world: World
    revision: int = 1
    holder: Holder | None = None
    in_sync: InSyncSet | None = None
    expires_at: dict[str, float] = field(default_factory=dict)  # leases by token

    def view(self) -> GroupView:
        self.expire()
        return GroupView(self.revision, self.holder, self.in_sync)

    def expire(self) -> None:
        now = self.world.now * self.world.engine_rate
        self.expires_at = {k: at for k, at in self.expires_at.items() if at > now}
        if self.holder is not None and self.holder.token not in self.expires_at:
            self.holder = None
            self.revision += 1

    def grant(self, token: str) -> None:
        self.expires_at[token] = self.world.now * self.world.engine_rate + TIMING.ttl_s

    def campaign(self, candidate: Candidate, expected: InSyncSet | None) -> GroupView:
        self.expire()
        if (
            self.holder is None
            and self.in_sync == expected
            and candidate.token in self.expires_at  # a late request finds its lease gone
        ):
            self.revision += 1
            self.holder = Holder(
                candidate.member,
                candidate.address,
                candidate.ha_address,
                candidate.token,
                self.revision,
            )
            if expected is None:
                self.in_sync = InSyncSet(frozenset({candidate.member}), 0, self.revision)
            self.world.wins.append((self.world.now, self.revision, candidate.member))
        return self.view()

    def renew(self, token: str) -> bool:
        self.expire()
        if token not in self.expires_at:
            return False
        self.grant(token)
        return True

    def change_in_sync(self, change: SetChange) -> GroupView:
        self.expire()
        if (
            self.holder is not None
            and self.holder.epoch == change.epoch
            and self.in_sync is not None
            and self.in_sync.revision == change.before
        ):
            self.revision += 1
            self.in_sync = InSyncSet(change.members, change.offset, self.revision)
        return self.view()


@dataclass
class Member:
    """A broker of the model."""

    world: World
    number: int
    rate: float
    log: list[str] = field(default_factory=list)
    paused_until: float = 0.0
    is_master: bool = False
    ready_at: float = 0.0  # when the promotion is finished
    followed: int = 0  # epoch of the master that it follows
    received: int = 0  # number of the last answer of the master
    acks: dict[int, int] = field(default_factory=dict)
    members: InSyncMembers | None = None
    acked: int = 0
    asking: bool = False  # whether a request to the engine has no answer yet
    token: str = ""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin as a process that knows nothing but its log."""
        self.election = Election(self.number, TIMING, may_found=self.number == 1)
        self.is_master, self.followed, self.asking = False, 0, False
        self.acks, self.members, self.acked = {}, None, 0
        self.life = next(self.world.numbers)  # answers to an earlier process are dropped

    @property
    def clock(self) -> float:
        return 1000 * self.number + self.world.now * self.rate

    @property
    def holds(self) -> bool:
        return self.election.holds(self.clock)

    # -- the consensus engine -----------------------------------------------------------------

    def ask(self, request: Callable[[], object], answered: Callable[[object], None]) -> None:
        """Send a request to the engine; it or its answer may get lost."""
        world, life = self.world, self.life
        self.asking = True

        def done(answer: object) -> None:
            if self.life == life:
                answered(answer)

        def give_up() -> None:
            if self.life == life:
                self.asking = False

        world.after(self, 2.0, give_up)
        if not world.passes(self.number, 0):
            return

        def arrive() -> None:
            answer = request()
            if world.passes(0, self.number):
                world.after(self, world.delay(), lambda: done(answer))

        world.at(world.now + world.delay(), arrive)

    def saw(self, view: object) -> None:
        assert isinstance(view, GroupView)
        self.asking = False
        self.election.saw(view)
        self.follow_view()

    def follow_view(self) -> None:
        """Act on what is known of the group."""
        election = self.election
        if election.epoch and not self.is_master:
            self.promote()
        elif self.is_master and not election.epoch:
            self.is_master, self.members = False, None
        if self.members is not None and election.view.in_sync is not None:
            self.members.saw(election.view.in_sync)
        holder = election.view.holder
        if not self.is_master and holder is not None and holder.epoch != self.followed:
            self.followed = holder.epoch

    def promote(self) -> None:
        world, view = self.world, self.election.view
        assert view.in_sync is not None
        self.is_master, self.followed = True, 0
        self.acks = {}
        self.acked = len(self.log)  # producers of what is there already wait for the old master
        self.members = InSyncMembers(
            self.number, self.election.epoch, view.in_sync, LAG_S, self.clock
        )
        self.ready_at = world.now + world.random.uniform(0, 2)

    def ask_engine(self) -> None:
        engine, election, now = self.world.engine, self.election, self.clock
        if self.asking:
            return
        if election.is_renewal_due(now):
            token = self.token

            def renewed(alive: object) -> None:
                self.asking = False
                if alive:
                    election.renewed(now)
                else:
                    election.expired()
                self.follow_view()

            self.ask(lambda: engine.renew(token), renewed)
        elif self.members is not None and (change := self.next_change()):
            self.ask(lambda: engine.change_in_sync(change), self.saw)
        elif not election.epoch and not election.obstacle(len(self.log)):
            self.token = token = f"{self.number}/{next(self.world.numbers)}"
            expected = election.campaign(token, now)
            candidate = Candidate(self.number, "", "", token)

            def campaign() -> GroupView:
                engine.grant(token)
                return engine.campaign(candidate, expected)

            self.ask(campaign, self.saw)
        else:
            self.ask(engine.view, self.saw)

    def next_change(self) -> SetChange | None:
        assert self.members is not None
        acks = {n: ack for n, ack in self.acks.items() if self.world.connected(self.number, n)}
        return self.members.step(self.clock, len(self.log), acks, self.world.least)

    # -- messages -----------------------------------------------------------------------------

    def tick(self) -> None:
        self.ask_engine()
        if not self.is_master:
            self.fetch()
        elif self.world.now >= self.ready_at:
            if self.holds:
                self.log.append(f"{self.election.epoch}:{next(self.world.numbers)}")
            self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledge what the required members have; check the lease at the last moment."""
        assert self.members is not None
        required = self.members.required
        confirmed = min([len(self.log), *(self.acks.get(n, 0) for n in required)])
        if 1 + len(required) < self.world.least:
            return
        for message in self.log[self.acked : confirmed]:
            if self.holds:
                self.world.acknowledged.append(message)
        self.acked = max(self.acked, confirmed)

    def fetch(self) -> None:
        """Ask the master for what is missing; remove what the master does not have."""
        world, epoch, life, order = self.world, self.followed, self.life, next(self.world.numbers)
        master = next((m for m in world.members if m.election.epoch == epoch and m.is_master), None)
        if master is None or not world.connected(self.number, master.number):
            return

        def answer() -> None:
            sent = list(master.log)
            world.after(self, world.delay(), lambda: receive(sent))

        def receive(sent: list[str]) -> None:
            if self.followed != epoch or self.life != life or order < self.received:
                return  # the connection has ended, or the answer to a later request came first
            if not world.connected(self.number, master.number):
                return
            self.received = order
            pairs = enumerate(zip(self.log, sent, strict=False))
            common = next((at for at, (a, b) in pairs if a != b), min(len(self.log), len(sent)))
            self.log[common:] = sent[common:]
            end = len(self.log)
            world.after(master, world.delay(), lambda: confirm(end))

        def confirm(end: int) -> None:
            if master.is_master and master.election.epoch == epoch:
                master.acks[self.number] = max(end, master.acks.get(self.number, 0))

        world.after(master, world.delay(), answer)


class World:
    """Members, engine, network and time of one run.

    Attributes:
        acknowledged: Every message that a producer was told to be stored.
        wins: Time, epoch and member of every election.
        most_holders: The most members that would have acknowledged at the same time.
    """

    def __init__(self, seed: int, *, least: int, drift: float = 0.05) -> None:
        self.random = Random(seed)
        self.least = least
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.engine_rate = self.random.uniform(1 - drift, 1 + drift)
        self.engine = SimulatedEngine(self)
        self.acknowledged: list[str] = []
        self.wins: list[tuple[float, int, int]] = []
        self.most_holders = 0
        self.cut: set[frozenset[int]] = set()  # pairs without a connection; 0 is the engine
        self.loss = 0.0
        self._events: list[tuple[float, int, Member | None, Callable[[], None]]] = []
        self.members = [
            Member(self, number, self.random.uniform(1 - drift, 1 + drift)) for number in (1, 2, 3)
        ]
        for member in self.members:
            self._tick(member)

    def delay(self) -> float:
        slow = self.random.random() < 0.05
        return self.random.uniform(0.5, 4.0) if slow else self.random.uniform(0.001, 0.1)

    def connected(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self.cut

    def passes(self, source: int, target: int) -> bool:
        return self.connected(source, target) and self.random.random() >= self.loss

    def at(self, when: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self.numbers), None, work))

    def after(self, member: Member, pause: float, work: Callable[[], None]) -> None:
        """Run something in the process of a member, which may be paused then."""
        heapq.heappush(self._events, (self.now + pause, next(self.numbers), member, work))

    def _tick(self, member: Member) -> None:
        def tick() -> None:
            member.tick()
            self._tick(member)

        self.after(member, TICK_S * self.random.uniform(0.5, 1.5), tick)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            when, _, member, work = heapq.heappop(self._events)
            self.now = when
            if member is not None and member.paused_until > when:
                self.after(member, member.paused_until - when, work)
                continue
            work()
            self.most_holders = max(self.most_holders, sum(m.holds for m in self.members))
        self.now = end

    def disturb(self) -> None:
        """Break or repair something."""
        random = self.random
        member = random.choice(self.members)
        other = random.choice(self.members)
        holder = self.engine.holder
        if holder is not None and random.random() < 0.6:
            member = self.members[holder.member - 1]
        match random.choice(("pause", "kill", "engine", "link", "alone", "heal", "heal", "loss")):
            case "pause":
                member.paused_until = self.now + random.uniform(0.5, 3 * TIMING.ttl_s)
            case "kill":
                member.start()
                member.paused_until = self.now + random.uniform(0.1, 2 * TIMING.ttl_s)
            case "engine":
                self.cut.add(frozenset((member.number, 0)))
            case "link" if other is not member:
                self.cut.add(frozenset((member.number, other.number)))
            case "alone":
                for number in {0, 1, 2, 3} - {member.number}:
                    self.cut.add(frozenset((member.number, number)))
            case "loss":
                self.loss = random.choice((0.0, 0.2, 0.5))
            case _:
                self.heal()

    def heal(self) -> None:
        self.cut.clear()
        self.loss = 0.0

    def disturbed_for(self, rounds: int) -> None:
        for _ in range(rounds):
            self.disturb()
            self.run(self.random.uniform(0.5, 8.0))
        self.heal()
        self.run(60)

    def lost(self) -> list[str]:
        """Return the acknowledged messages that the last master does not have."""
        masters = [member for member in self.members if member.holds]
        assert len(masters) == 1, "nobody holds the lease although nothing is broken any more"
        kept = set(masters[0].log)
        return [message for message in self.acknowledged if message not in kept]
