"""Power losses during bulk appends (``store/bulk.py``), with which sink and replay write.

A life is a few numbered appends to one store, with puts between them. Before each operation on a
file a snapshot of the disk is kept, and each image of it is opened. Everything that was promised
must have survived (I1 to I6), and of each append all messages or none. Then all numbers are
appended again, as a job does that is run again. Appends that were committed are refused, the others
are accepted, and in the end every message is stored once.
"""

import random
import shutil
from dataclasses import dataclass

from tests.crash.files_check import check_files, read_log, readable
from tests.crash.oracle import History, Stored, Violation, check_store
from tests.crash.world.disk import Disk, Image, random_image, write_image
from tests.crash.world.simulation import SLOTS, Checker, Moment, Process, Producer, scratch

from firetrail import FiretrailError, Store, StoreConfig
from firetrail.format.batch import BatchItem, encode_batch
from firetrail.store.bulk import BulkAppend
from firetrail.store.bulk_journal import Ticket

WRITER = "w"
APPENDS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that go together, all of one queue: an append has several."""

    topic: str
    queue_id: int
    bodies: tuple[bytes, ...]
    keys: str

    @property
    def items(self) -> bytes:
        properties = f"KEYS\x01{self.keys}\x02".encode()
        return encode_batch(BatchItem(0, body, properties) for body in self.bodies)


Append = tuple[Group, ...]


def draw_append(source: random.Random, number: int) -> Append:
    """From a single message to more than a file of the log holds."""
    return tuple(
        Group(
            source.choice(("orders", "t")),
            source.randrange(2),
            tuple(
                b"%d.%d.%d:" % (number, group, one) + source.randbytes(source.choice((0, 90, 700)))
                for one in range(source.randint(1, 6))
            ),
            source.choice(("k1", "k2 k3")),
        )
        for group in range(source.randint(1, 4))
    )


class BulkProcess(Process):
    """A process that appends; between appends it may have the store open and put."""

    def start(self) -> None:
        """Begin, with no store open."""
        self._threading.__enter__()
        self._producer = Producer(random.Random(0))

    def append(self, number: int, append: Append) -> bool:
        """Make a numbered append and note it; return False if that number was appended before."""
        with self.new_append(number) as bulk:
            if bulk.done:
                return False
            for group in append:
                bulk.add(group.topic, group.queue_id, group.items)
            done = bulk.commit()
        self._note_append(append, done.start, done.end)
        return True

    def put_some(self, source: random.Random) -> None:
        self._store = Store.open(self.disk.root, self.config, system=self.files.system())
        for _ in range(source.randrange(4)):
            self.put(self._producer.message())
        self._store.close()
        self._store = None
        self.history.promise(power_loss=len(self.history.messages))

    def new_append(self, number: int) -> BulkAppend:
        """Return a new append, as the commit of a sink begins one."""
        ticket = Ticket(WRITER, number)
        return BulkAppend(self.disk.root, self.config, ticket, self.files.system())

    def _note_append(self, append: Append, start: int, end: int) -> None:
        """Enter what the log has between two places; it must be what was appended."""
        raws = [r for r in read_log(self.disk.root / "commitlog")[0] if start <= r.offset < end]
        new = [
            Stored(
                raw.topic,
                raw.queue_id,
                raw.queue_offset,
                raw.offset,
                raw.size,
                raw.store_time,
                raw.sys_flag & ~0x30,
                0,
                raw.body,
                {name: value for name, value in raw.properties.items() if name != "__CRC32#"},
            )
            for raw in raws
        ]
        given = [(g.topic, g.queue_id, body, g.keys) for g in append for body in g.bodies]
        found = [(m.topic, m.queue_id, m.body, m.properties["KEYS"]) for m in new]
        if found != given:
            raise Violation(f"I2: {given} was appended, {found} was found")
        self.history.add(new)
        self.history.promise(power_loss=len(self.history.messages))


class BulkChecker(Checker):
    """Holds images against the history, and against the appends it is made of."""

    def __init__(
        self, process: BulkProcess, appends: list[Append], process_class: type[BulkProcess]
    ) -> None:
        super().__init__(process.disk.root.parent, process.config, process_class)
        self._bulk_class = process_class
        self._appends = appends
        self._bodies = [{body for group in one for body in group.bodies} for one in appends]

    def check_moment(
        self, moment: Moment, final: History, source: random.Random, chain_share: float = 0.1
    ) -> None:
        """Recover an image, compare it, append everything again and compare again.

        A job that is run again may be the first to open the store, or not. Some are crashed once
        more while they recover and append again.
        """
        how, image = random_image(moment.snapshot, source)
        history, least = moment.history(final), moment.least(final)
        try:
            if source.random() < 0.4:
                self.check(image, history, least)
            history.survive_power_loss = least
            crash_again = source.random() < chain_share
            process = self._run_again(image, history, least, record=crash_again)
            moments = process.moments if crash_again else []  # none if nothing was appended again
            for again in source.sample(moments, min(2, len(moments))):
                self.check_moment(again, process.history, source, chain_share=0)
        except AssertionError as error:
            error.add_note(f"before {moment.snapshot.label}, {how}")
            raise

    def _run_again(
        self, image: Image, history: History, least: int, *, record: bool
    ) -> BulkProcess:
        """Append every number to an image; nothing is lost, and nothing there twice."""
        self.images += 1
        root = self._folder / f"again-{self.images}"
        write_image(image, root)
        process = self._bulk_class(Disk(root), self.config, history.copy(), self.images)
        process.start()
        if record:
            process.record()
        try:
            self._settle(process, least)
            for number, append in enumerate(self._appends):
                process.append(number, append)
        except FiretrailError as error:
            raise Violation(f"I1: cannot be appended to: {error}") from error
        finally:
            process.kill()
        found = sorted(m.body for m in process.history.messages if is_appended(m.body))
        if found != sorted(body for bodies in self._bodies for body in bodies):
            raise Violation("I2: after appending again, not every message is stored once")
        last = self._process_class(Disk(root), self.config, process.history, self.images)
        last.open()
        try:
            check_store(last.store, last.history, len(last.history.messages))
        finally:
            last.close()
        check_files(root, SLOTS)
        shutil.rmtree(root)
        return process

    def _settle(self, process: BulkProcess, least: int) -> None:
        """Let an append settle the earlier appends; compare the result with the log."""
        with process.new_append(len(self._appends)) as bulk:
            last = bulk.last_numbers.get(WRITER, -1)
        raws = readable(process.disk.root / "commitlog")
        if len(raws) < least:
            raise Violation(f"I1: {least} messages were promised, {len(raws)} were found")
        process.history.cut(len(raws), durable=True)
        there = {raw.body for raw in raws}
        for number, bodies in enumerate(self._bodies):
            if bodies & there and not bodies <= there:
                raise Violation(f"I1: only a part of append {number} was found")
            if bodies <= there and number > last:
                raise Violation(f"I2: append {number} is complete, and would be repeated")
            if number <= last and not bodies <= there:
                raise Violation(f"I1: append {number} counts as committed, and is missing")


def is_appended(body: bytes) -> bool:
    """Return whether a message was appended rather than put."""
    return b"." in body.partition(b":")[0]


def bulk_survey(
    config: StoreConfig,
    seed: int,
    source: random.Random,
    process_class: type[BulkProcess] = BulkProcess,
    share: float = 1.0,
) -> Checker:
    """Let the power go at every operation of some appends, or at a ``share`` of the operations.

    Raises the first Violation that is found.
    """
    with scratch() as below:
        (below / "live").mkdir()
        process = process_class(Disk(below / "live"), config, History(), seed)
        appends = [draw_append(source, number) for number in range(APPENDS)]
        process.start()
        process.record()
        for number, append in enumerate(appends):
            process.append(number, append)
            process.put_some(source)
        process.kill()
        checker = BulkChecker(process, appends, process_class)
        for moment in process.moments:
            if share < 1.0 and source.random() >= share:
                continue
            try:
                checker.check_moment(moment, process.history, source)
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise
        return checker
