"""A broker is used in every way, and the power goes at every operation on its files."""

import asyncio
import itertools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.broker.pops import Popped, ack, change, pop
from tests.crash import ledger as books
from tests.crash.files_check import check_files
from tests.crash.ledger import GROUP, POPPED, Ledger, Place, Sent
from tests.crash.oracle import COMMIT, PREPARED, ROLLBACK, History, Violation
from tests.crash.world.broker_process import BrokerProcess, Requests
from tests.crash.world.disk import Disk, Image, Snapshot, random_image, write_image
from tests.crash.world.simulation import SLOTS, scratch

from firetrail import FiretrailError, FlushMode, StoreConfig
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig
from firetrail.remoting.wire.codes import RequestCode
from firetrail.remoting.wire.command import RemotingCommand

PLAIN = ("A", "B")
SHORT_MS = 2_000
"""How long popped messages stay invisible."""
LATER_S = 1_000.0
"""How long after the start of a life the next one begins: all that was delayed is due then."""


@dataclass(frozen=True, slots=True)
class BrokerMoment:
    """A snapshot, and what clients knew by then."""

    snapshot: Snapshot
    known: Ledger


class Users:
    """The clients of a broker, all of them."""

    timers = 0
    """How often messages with a delivery time are sent."""

    def __init__(self, process: BrokerProcess, source: random.Random, ledger: Ledger) -> None:
        self._handles: dict[bytes, str] = {}
        self._process = process
        self._talk: Requests = process.talk
        self._source = source
        self._ledger = ledger
        self._serials = itertools.count(len(ledger.sent))
        self._popped: list[Popped] = []
        self._halves: dict[bytes, RemotingCommand] = {}
        self._sync = process.config.flush is FlushMode.SYNC
        self._running: set[asyncio.Task[None]] = set()
        self._sending = 0

    async def work(self, steps: int) -> None:
        """Do ``steps`` random things, some of them at the same time."""
        ways = (
            (30, self._send),
            (10, self._send_delayed),
            (self.timers, self._send_timed),
            (self.timers // 4, self._recall),
            (6, self._begin),
            (8, self._end),
            (12, self._pop),
            (12, self._ack),
            (4, self._change),
            (12, self._commit_offset),
            (4, self._save),
            (6, self._make_topic),
            (5, self._delete_topic),
            (3, self._short_life),
            (2, self._make_group),
            (8, self._wait),
            (3, self._flush),
            (2, self._expire),
        )
        for _ in range(steps):
            weights, doings = zip(*ways, strict=True)
            (doing,) = self._source.choices(doings, weights)
            task = asyncio.get_running_loop().create_task(doing())
            self._running.add(task)
            if self._source.random() < 0.7:
                await task
            await self._reap()
        await asyncio.gather(*self._running)

    async def _reap(self) -> None:
        for task in [task for task in self._running if task.done()]:
            self._running.discard(task)
            await task

    # -- messages -----------------------------------------------------------------------------

    async def _send(self) -> None:
        made = self._made()
        await self._send_to(
            Sent(self._source.choice((*PLAIN, POPPED, POPPED, *made)), self._queue())
        )

    async def _send_delayed(self) -> None:
        await self._send_to(
            Sent(self._source.choice(PLAIN), self._queue(), self._source.choice((1, 2)))
        )

    async def _send_timed(self) -> None:
        due = self._now_ms() + self._source.choice((1, 700, 1_500, 3_000, 4_000))
        await self._send_to(Sent(self._source.choice(PLAIN), self._queue(), due_ms=due))

    async def _recall(self) -> None:
        if not self._handles:
            return
        body = self._source.choice(list(self._handles))
        topic, due = self._ledger.sent[body].topic, self._ledger.sent[body].due_ms
        self._ledger.recall_asked.add(body)
        handle = self._handles.pop(body)
        code = RequestCode.RECALL_MESSAGE
        answer = await self._talk.ask(code, topic=topic, recallHandle=handle)
        if answer.code == 0 and self._sync and self._now_ms() < due - 1_000:
            self._ledger.recalled.add(body)

    def _now_ms(self) -> int:
        return self._process.broker.system.clock.now_ms()

    async def _begin(self) -> None:
        await self._send_to(Sent(self._source.choice(PLAIN), self._queue(), half=True))

    def _queue(self) -> int:
        return self._source.randrange(2)

    async def _send_to(self, sent: Sent) -> None:
        body = b"%d:" % next(self._serials) + b"x" * self._source.choice((0, 20, 300))
        properties = f"UNIQ_KEY\x01U{body[:4].decode()}\x02KEYS\x01k{self._source.randrange(3)}\x02"
        if sent.level:
            properties += f"DELAY\x01{sent.level}\x02"
        if sent.due_ms:
            properties += f"TIMER_DELIVER_MS\x01{sent.due_ms}\x02"
        if sent.half:
            properties += "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
        self._ledger.sent[body] = sent
        flag = PREPARED if sent.half else 0
        before = self._now_ms()
        self._sending += 1
        answer = await self._talk.send(sent.topic, body, d=2, e=sent.queue_id, f=flag, i=properties)
        self._sending -= 1
        if answer.code == 0:
            place = decode_message_id(answer.fields["msgId"]).physical_offset
            known = Place(int(answer.fields["queueOffset"]), place, before)
            self._ledger.acked[body] = known
            if self._sync:
                self._ledger.durable.add(body)
            if sent.half:
                self._halves[body] = answer
            if "recallHandle" in answer.fields:
                self._handles[body] = answer.fields["recallHandle"]

    async def _end(self) -> None:
        if not self._halves:
            return
        body = self._source.choice(list(self._halves))
        half = self._halves.pop(body)
        decision = self._source.choice((COMMIT, COMMIT, ROLLBACK))
        if decision == COMMIT:
            self._ledger.commit_asked.add(body)
        answer = await self._talk.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="PG",
            tranStateTableOffset=half.fields["queueOffset"],
            commitLogOffset=decode_message_id(half.fields["msgId"]).physical_offset,
            commitOrRollback=decision,
        )
        if answer.code == 0 and decision == COMMIT and self._sync:
            self._ledger.committed.add(body)

    # -- consumers ----------------------------------------------------------------------------

    async def _pop(self) -> None:
        self._popped += await pop(
            self._talk, topic=POPPED, invisibleTime=SHORT_MS, maxMsgNums=self._source.choice((1, 3))
        )

    async def _ack(self) -> None:
        if self._popped:
            message = self._popped.pop(self._source.randrange(len(self._popped)))
            self._ledger.ack_asked.add(message.body)
            await ack(self._talk, message, topic=message.receipt.topic(POPPED, GROUP))

    async def _change(self) -> None:
        if self._popped:
            message = self._popped.pop(self._source.randrange(len(self._popped)))
            topic = message.receipt.topic(POPPED, GROUP)
            await change(self._talk, message, SHORT_MS, topic=topic)

    async def _commit_offset(self) -> None:
        await self._commit_in(*PLAIN, *self._made())

    async def _commit_in(self, *topics: str) -> None:
        ends = {
            (topic, queue_id): self._process.store.max_offset(topic, queue_id)
            for topic in topics
            for queue_id in range(2)
        }
        queues = [queue for queue, end in ends.items() if end]
        if queues:
            topic, queue_id = self._source.choice(queues)
            end = ends[topic, queue_id]
            values = self._ledger.offsets.setdefault((GROUP, topic, queue_id), [])
            values.append(self._source.randint(0, end))
            answer = await self._talk.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=GROUP,
                topic=topic,
                queueId=queue_id,
                commitOffset=values[-1],
            )
            if answer.code != 0:
                raise Violation(f"I1: {topic} has messages, an offset in it is refused: {answer}")

    def _made(self) -> list[str]:
        return [name for name, is_there in self._ledger.topics.items() if is_there]

    async def _save(self) -> None:
        saved = {key: len(values) for key, values in self._ledger.offsets.items()}
        await self._process.broker.offsets.saved()
        self._ledger.saved |= saved

    # -- the administrator --------------------------------------------------------------------

    async def _make_topic(self) -> None:
        await self._make(f"D{self._source.randrange(3)}")

    async def _make(self, name: str) -> None:
        if self._ledger.topics.get(name, False) is False:
            self._ledger.topics[name] = None
            answer = await self._talk.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=name,
                defaultTopic="TBW102",
                readQueueNums=2,
                writeQueueNums=2,
                perm=6,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=False,
            )
            self._ledger.topics[name] = True if answer.code == 0 else None

    async def _short_life(self) -> None:
        """Use a topic, delete it and create it again."""
        name = f"D{self._source.randrange(3)}"
        await self._make(name)
        for _ in range(3):
            if self._ledger.topics[name]:
                await self._send_to(Sent(name, self._queue()))
        if self._ledger.topics[name]:
            await self._commit_in(name)
            await self._save()
        await self._delete(name)
        await self._make(name)

    async def _delete_topic(self) -> None:
        made = self._made()
        if made:
            await self._delete(self._source.choice(made))

    async def _delete(self, name: str) -> None:
        if self._ledger.topics[name]:
            self._ledger.topics[name] = None
            while self._sending:
                await asyncio.sleep(0.01)
            self._ledger.forget_topic(name)
            answer = await self._talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
            if answer.code == 0:
                self._ledger.topics[name] = False
                sent = self._ledger.sent.items()
                self._ledger.lost |= {body for body, what in sent if what.topic == name}

    async def _make_group(self) -> None:
        name = f"G{self._source.randrange(9)}"
        body = SubscriptionGroupConfig(name).encode(standard=True)
        answer = await self._talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        if answer.code == 0:
            self._ledger.groups.add(name)

    async def _wait(self) -> None:
        await asyncio.sleep(self._source.choice((0.01, 0.3, 1.5)))

    async def _flush(self) -> None:
        durable = set(self._ledger.acked)
        await asyncio.to_thread(self._process.store.flush)
        self._ledger.durable |= durable

    async def _expire(self) -> None:
        await asyncio.to_thread(self._process.store.delete_expired, forced=True)


# -- crashes --------------------------------------------------------------------------------------


def record(process: BrokerProcess, ledger: Ledger) -> list[BrokerMoment]:
    """Keep a snapshot before each operation from now on."""
    moments: list[BrokerMoment] = []

    def keep(kind: str, name: str) -> None:
        snapshot = process.disk.snapshot(f"{process.files.operations}: {kind} {name}")
        moments.append(BrokerMoment(snapshot, ledger.copy()))

    process.files.hooks.append(keep)
    return moments


class BrokerChecker:
    """Starts brokers on images and holds them against what clients know."""

    def __init__(
        self,
        below: Path,
        config: StoreConfig,
        process_class: type[BrokerProcess] = BrokerProcess,
        users: type[Users] = Users,
    ) -> None:
        self.images = 0
        self._users = users
        self._below = below
        self._config = config
        self._process_class = process_class

    def check(
        self,
        image: Image,
        ledger: Ledger,
        must: set[bytes],
        source: random.Random | None = None,
        now: float = LATER_S,
    ) -> None:
        """Start a broker on an image and compare it with the ledger.

        With a source, the broker continues to work, and crashes again both during the start and
        during the work. Without one, everything that is due is delivered.
        """
        self.images += 1
        root = self._below / f"image-{self.images}"
        write_image(image, root)
        process = self._process_class(Disk(root), self._config, History(), self.images, now=now)
        first, ledger = ledger, ledger.copy()
        moments = record(process, ledger) if source is not None else []
        try:
            process.open()
        except FiretrailError as error:
            raise Violation(f"I1: refused to start: {error}") from error
        try:
            there = self._look(process, ledger, must)
            starting = len(moments)
            if source is not None:
                process.run(self._users(process, source, ledger).work(10))
            else:
                process.run(books.drain(process.talk, ledger, there))
        except BaseException:
            process.kill()
            raise
        process.close()
        check_files(root, SLOTS, deleted=ledger.topics)
        shutil.rmtree(root)
        if source is not None:
            for moment in source.sample(moments[:starting], min(2, starting)):
                how, again = random_image(moment.snapshot, source)
                self._again(moment, how, again, first, there)
            later = moments[starting:]
            for moment in source.sample(later, min(2, len(later))):
                how, again = random_image(moment.snapshot, source)
                must = must_survive(moment, how, self._config)
                self._again(moment, how, again, moment.known, must)

    def _look(self, process: BrokerProcess, ledger: Ledger, must: set[bytes]) -> set[bytes]:
        process.run(asyncio.to_thread(process.store.wait_dispatched))
        there = books.look(process.broker, ledger, must)
        low = process.store.log_range[0]
        for body in [body for body, p in ledger.acked.items() if p.physical_offset >= low]:
            if body not in there:
                del ledger.acked[body]
                ledger.lost.add(body)
        for key in list(ledger.offsets):
            now = process.broker.offsets.get(*key)
            ledger.offsets[key] = [] if now is None else [now]
            ledger.saved[key] = len(ledger.offsets[key])
        ledger.durable = set(ledger.acked)  # recovery syncs what it keeps
        return there

    def _again(
        self, moment: BrokerMoment, how: str, image: Image, known: Ledger, must: set[bytes]
    ) -> None:
        try:
            self.check(image, known, must, now=2 * LATER_S)
        except AssertionError as error:
            error.add_note(f"and again before {moment.snapshot.label}, {how}")
            raise


def must_survive(moment: BrokerMoment, how: str, config: StoreConfig) -> set[bytes]:
    """Return the messages that must survive a crash.

    A crash that keeps everything written is a kill, and loses no acknowledged message.
    """
    is_kill = how.startswith("all ") and not config.write_buffer_pool
    return set(moment.known.acked) if is_kill else moment.known.durable


def broker_survey(
    config: StoreConfig,
    seed: int,
    source: random.Random,
    process_class: type[BrokerProcess] = BrokerProcess,
    steps: int = 50,
    share: float = 1.0,
    chain_share: float = 0.15,
    users: type[Users] = Users,
) -> BrokerChecker:
    """Let the power go at a share of the operations; raises the first Violation that is found."""
    with scratch() as below:
        (below / "live").mkdir()
        ledger = Ledger()
        process = process_class(Disk(below / "live"), config, History(), seed, preemption=0.2)
        moments = record(process, ledger)
        process.open()
        process.run(users(process, source, ledger).work(steps))
        process.close()
        checker = BrokerChecker(below, config, process_class, users)
        for moment in moments:
            if source.random() >= share:
                continue
            how, image = random_image(moment.snapshot, source)
            chained = source if source.random() < chain_share else None
            try:
                checker.check(image, moment.known, must_survive(moment, how, config), chained)
            except AssertionError as error:
                error.add_note(f"seed {seed}, before {moment.snapshot.label}, {how}")
                raise
        return checker
