"""A group of brokers, a consensus engine and the network between them, in simulated time.

Every member has a clock of its own. Requests and answers are delayed or lost, members are paused
(SIGSTOP), killed, and cut off from the engine or from each other. The members run the decisions of
the product (:class:`Election`, :class:`InSyncMembers`); everything else is a model: a log is a list
of messages, and replication copies lists.

The engine can also lose all its data, be restored from a backup, and be edited by hand, and so can
what a member keeps on its disk.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import cast

from tests.replication.simulated_engine import TIMING, SimulatedEngine

from firetrail.replication.group.confirmed_entry import ConfirmedEntry
from firetrail.replication.group.election import Coordinator, Election
from firetrail.replication.group.group_check import store_obstacle
from firetrail.replication.group.group_memory import NOTHING_SEEN, GroupMemory
from firetrail.replication.group.group_view import (
    UNKNOWN,
    Candidate,
    GroupView,
    MemberReport,
    SetChange,
)
from firetrail.replication.group.in_sync_members import InSyncMembers
from firetrail.replication.group.precedence import LogCondition, Precedence

LAG_S = 4.0
TICK_S = 0.25


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
    memory: GroupMemory = NOTHING_SEEN  # on its disk
    identity: str = ""
    followed: str = ""  # token of the master that it follows
    received: int = 0  # number of the last answer of the master
    acks: dict[int, int] = field(default_factory=dict)
    members: InSyncMembers | None = None
    acked: int = 0
    confirmed: int = 0  # up to where the log is known to be acknowledged
    is_kept: bool = False  # whether it refuses to cut its log
    asking: bool = False  # whether a request to the engine has no answer yet
    token: str = ""
    leaves_to: int = 0  # the member to which it hands over
    leaves_by: float = 0.0  # when it gives up to hand over
    stops_by: float = math.inf  # when a replica stops that says farewell
    farewells: dict[int, int] = field(default_factory=dict)  # the processes that have said it

    def __post_init__(self) -> None:
        self.identity = f"store {self.number}"
        self.start()

    def start(self) -> None:
        """Begin as a process that knows nothing but its log and what it keeps on its disk."""
        self.election = Election(
            self.number,
            TIMING,
            may_found=self.number == 1,
            memory=self.memory,
            remember=self.remember,
        )
        self.precedence = Precedence(self.number)
        self.entry = ConfirmedEntry(cast(Coordinator, self.world.engine))
        self.is_master, self.followed, self.asking, self.leaves_to = False, "", False, 0
        self.stops_by, self.farewells = math.inf, {}
        self.acks, self.members, self.acked = {}, None, 0
        self.life = next(self.world.numbers)  # answers to an earlier process are dropped

    def remember(self, memory: GroupMemory) -> None:
        self.memory = memory

    @property
    def clock(self) -> float:
        return 1000 * self.number + self.world.now * self.rate

    @property
    def obstacle(self) -> str:
        """The reason why the store is not that of this member."""
        return store_obstacle(self.election.view.identities, self.number, self.identity)

    @property
    def holds(self) -> bool:
        return self.election.holds(self.clock)

    # -- the consensus engine -----------------------------------------------------------------

    def ask(
        self, request: Callable[[], object], answered: Callable[[object], None] | None = None
    ) -> None:
        """Send a request to the engine; it or its answer may get lost."""
        world, life = self.world, self.life
        known = self.election.view.revision
        self.asking = True

        def saw(view: object) -> None:
            self.observe(view, known)

        answered = answered or saw

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
            if world.repeats and world.random.random() < world.repeats:
                world.at(world.now + world.delay(), request)
            if world.passes(0, self.number):
                world.after(self, world.delay(), lambda: done(answer))

        world.at(world.now + world.delay(), arrive)

    def observe(self, view: object, known: int) -> None:
        assert isinstance(view, GroupView)
        self.asking = False
        self.election.observe(view, known)
        self.follow_view()

    def follow_view(self) -> None:
        """Act on what is known of the group."""
        election = self.election
        if election.epoch and not self.is_master:
            self.promote()
        elif self.is_master and not election.epoch:
            self.is_master, self.members, self.leaves_to = False, None, 0
        if self.members is not None and election.view.in_sync is not None:
            self.members.observe(election.view.in_sync)
        holder = election.view.holder
        if election.refusal is not None or self.obstacle:
            self.followed = ""
        elif not self.is_master and holder is not None:
            self.followed = holder.token

    def promote(self) -> None:
        world, view = self.world, self.election.view
        assert view.in_sync is not None
        self.is_master, self.followed = True, ""
        self.confirmed = min(self.confirmed, len(self.log))  # what it lacks is given up
        self.acks, self.farewells = {}, {}
        world.begun.setdefault(view.in_sync.lineage.epoch, set()).add(self.number)
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
        elif election.view is not UNKNOWN and self.obstacle:
            self.ask(engine.view)
        elif self.number not in election.view.identities:
            self.ask(lambda: engine.claim(self.number, self.identity))
        elif (report := self.report) != election.view.reports.get(self.number):
            self.ask(lambda: engine.report(self.number, report))
        elif self.members is not None and self.leaves_to:
            self.hand_over(self.members)
        elif self.members is not None and (change := self.next_change()):
            self.ask(lambda: engine.change_in_sync(change))
        elif (note := self.noted(now)) is not None:
            self.ask(note)
        elif self.may_campaign:
            self.token = token = f"{self.number}/{next(self.world.numbers)}"
            asked = election.campaign(token, now, 0)
            candidate = Candidate(self.number, "", "", token)

            def campaign() -> GroupView:
                engine.grant(token)
                return engine.campaign(candidate, *asked)

            self.ask(campaign)
        else:
            self.ask(engine.view)

    def noted(self, now: float) -> Callable[[], object] | None:
        """Return the request that writes down what is confirmed, if it is due."""
        epoch = self.election.epoch if self.is_master else 0
        return self.entry.request(now, epoch, self.election.view, self.confirmed)

    @property
    def report(self) -> MemberReport | None:
        confirmed = min(self.confirmed, len(self.log))
        return self.election.report(len(self.log), confirmed, is_short=bool(self.shortfall))

    @property
    def shortfall(self) -> str:
        return "confirmed messages are missing" if len(self.log) < self.confirmed else ""

    @property
    def may_campaign(self) -> bool:
        election = self.election
        is_idle = not election.epoch and self.stops_by == math.inf
        if not is_idle or election.campaign_obstacle(len(self.log)):
            self.precedence.forget()
            return False
        log = LogCondition(len(self.log), shortfall=self.shortfall)
        return not self.precedence.is_left_to_others(self.clock, log, election.view)

    def leave(self, successor: int) -> None:
        """Begin to hand over."""
        self.leaves_to, self.leaves_by = successor, self.world.now + 3.0

    def hand_over(self, members: InSyncMembers) -> None:
        """Leave the in-sync set and give the lease away, if the successor has the whole log."""
        engine, election, successor = self.world.engine, self.election, self.leaves_to
        acks = {n: ack for n, ack in self.acks.items() if self.world.connected(self.number, n)}
        if successor not in members.committed.members or acks.get(successor, 0) < len(self.log):
            if self.world.now > self.leaves_by:
                self.leaves_to = 0  # it continues
            return
        if (change := members.leave(acks, self.world.least)) is not None:
            self.ask(lambda: engine.change_in_sync(change))
            return
        epoch = election.epoch
        election.expired()
        self.follow_view()
        self.ask(lambda: engine.leave(epoch, successor))

    def next_change(self) -> SetChange | None:
        assert self.members is not None
        acks = {n: ack for n, ack in self.acks.items() if self.world.connected(self.number, n)}
        leaving = self.farewells.keys()
        return self.members.step(self.clock, len(self.log), acks, self.world.least, leaving)

    # -- messages -----------------------------------------------------------------------------

    def tick(self) -> None:
        self.ask_engine()
        if not self.is_master:
            self.fetch()
            self.stop_in_order()
        elif self.world.now >= self.ready_at:
            if self.holds and not self.leaves_to:
                self.log.append(f"{self.memory.epoch}:{next(self.world.numbers)}")
            self.acknowledge()

    def stop_in_order(self) -> None:
        """Say farewell until nobody waits for this replica, or for too long; then restart."""
        in_sync, world = self.election.view.in_sync, self.world
        if self.stops_by == math.inf:
            return
        has_left = in_sync is not None and self.number not in in_sync.members
        if has_left or world.now > self.stops_by:
            world.farewells[has_left] += 1
            self.start()
            self.paused_until = world.now + world.random.uniform(0.5, 4.0)
            return
        master, token, life = self.master, self.followed, self.life

        def hear() -> None:
            if master is not None and master.is_master and master.token == token:
                master.farewells[self.number] = life

        if master is not None and world.passes(self.number, master.number):
            world.after(master, world.delay(), hear)

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
        self.confirmed = max(self.confirmed, confirmed)

    @property
    def master(self) -> Member | None:
        """The master that it follows, if that still is one."""
        members = self.world.members
        return next((m for m in members if m.token == self.followed and m.is_master), None)

    def fetch(self) -> None:
        """Ask the master for what is missing; remove what the master does not have."""
        world, token, life, order = self.world, self.followed, self.life, next(self.world.numbers)
        master = self.master
        if master is None or not world.connected(self.number, master.number):
            return

        def answer() -> None:
            sent, confirmed = list(master.log), master.confirmed
            world.after(self, world.delay(), lambda: receive(sent, confirmed))

        def receive(sent: list[str], confirmed: int) -> None:
            if self.followed != token or self.life != life or order < self.received:
                return  # the connection has ended, or the answer to a later request came first
            if not world.connected(self.number, master.number):
                return
            self.received = order
            pairs = enumerate(zip(self.log, sent, strict=False))
            common = next((at for at, (a, b) in pairs if a != b), min(len(self.log), len(sent)))
            if common < min(self.confirmed, len(self.log)) and not self.memory.may_truncate:
                self.is_kept = True  # the master lacks what was acknowledged
                return
            self.is_kept = False
            self.log[common:] = sent[common:]
            self.election.followed()
            end = len(self.log)
            self.confirmed = max(self.confirmed, min(confirmed, end))
            world.after(master, world.delay(), lambda: confirm(end))

        def confirm(end: int) -> None:
            if master.is_master and master.token == token:
                master.acks[self.number] = max(end, master.acks.get(self.number, 0))
                if master.farewells.get(self.number) != life:  # it was said by an earlier process
                    master.farewells.pop(self.number, None)

        world.after(master, world.delay(), answer)


class World:
    """Members, engine, network and time of one run.

    Attributes:
        acknowledged: Every message that a producer was told to be stored.
        wins: Time, epoch and member of every election.
        begun: The members that began an epoch of the log, by its number.
        most_holders: The most members that would have acknowledged at the same time.
        farewells: How many members that said farewell have stopped, by whether they had left the
            in-sync set.
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
        self.begun: dict[int, set[int]] = {}
        self.most_holders = 0
        self.farewells = Counter[bool]()
        self.cut: set[frozenset[int]] = set()  # pairs without a connection; 0 is the engine
        self.loss = 0.0
        self.repeats = 0.0  # how often a request arrives a second time, later
        self._events: list[tuple[float, int, Member | None, Callable[[], object]]] = []
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

    def at(self, when: float, work: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self.numbers), None, work))

    def after(self, member: Member, pause: float, work: Callable[[], object]) -> None:
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

    def hand_over(self) -> None:
        """Let the holder of the lease hand over to another member, by plan."""
        holder = self.engine.holder
        if holder is not None:
            others = [member.number for member in self.members if member.number != holder.member]
            self.members[holder.member - 1].leave(self.random.choice(others))

    def stop_replica(self) -> None:
        """Let a replica say farewell, and stop."""
        member = self.random.choice(self.members)
        if not member.is_master:
            member.stops_by = min(member.stops_by, self.now + 2.0)

    def disturbed_for(
        self, rounds: int, *, hand_overs: bool = False, farewells: bool = False
    ) -> None:
        for _ in range(rounds):
            if hand_overs:
                self.hand_over()
                self.run(self.random.uniform(0.0, 2.0))
            if farewells:
                self.stop_replica()
                self.run(self.random.uniform(0.0, 2.0))
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
