"""Power losses of a master and its replica: each image of both disks is recovered and rejoined.

A life is a run of puts on a master while its replica follows over a wire that is cut and goes
silent. Before each operation on either disk both disks are recorded. Of each moment:

* every image of the replica has what it has reported, what the master has acknowledged and what
  consumers have seen on either side, and is a prefix of what the master was given (R1, R2, R7);
* every image of the master has what it has acknowledged (I1 to I6);
* neither of them, opened in its role again, shows what the replica had not reported by then; when
  it is confirmed, everything is in the queues once (R7);
* either of them knows how far its log was confirmed; after a kill, a master knows it exactly (R14);
* recovered replicas are promoted, and crash during that;
* recovered replicas continue, with the master as it is at the end of the run or with an image of
  the master of the same moment, until both logs are equal byte for byte (R3).
"""

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.crash.files_check import check_files
from tests.crash.oracle import History, Violation, check_store
from tests.crash.world.disk import PAGE, Image, random_image, write_image
from tests.crash.world.pair import Node, Pair, PairConfig, PairMoment, check_same_log, write_images
from tests.crash.world.simulation import SLOTS, Checker, Producer, lists_at_once, scratch

from firetrail import FiretrailError, FlushMode, Message
from firetrail.format.names import OFFSET_MAX
from firetrail.replication.ha.ha_frames import HEADER
from firetrail.store.broker_store import BrokerStore
from firetrail.store.settings.store_config import BrokerRole

STEPS = 45


def use_pair(pair: Pair, source: random.Random, steps: int, *, faults: bool = True) -> None:
    """Put messages and disturb both sides, as the generator will have it."""
    producer = Producer(source)
    master, network, world = pair.master, pair.network, pair.world
    for _ in range(steps):
        world.now += source.choice((0, 0.001, 0.02, 0.06))
        step = source.random()
        if step < 0.50:
            master.put(producer.message())
        elif step < 0.60:
            master.put_without_waiting(producer.message())
            world.pause(source.choice((0.0, 0.2)))
        elif step < 0.68:
            master.put_batch(producer.batch())
        elif step < 0.72:
            master.flush()
        elif step < 0.80:
            world.pause(source.choice((0.06, 0.3, 1.1)))
        elif step < 0.84:
            pair.catch_up()
            master.expire()
        elif step < 0.86:
            pair.expire_replica()
        elif step < 0.88 and faults:
            pair.damage_wire()
        elif step < 0.90 and faults:
            with pair.full_disk():
                for _ in range(source.randrange(12)):
                    master.put(producer.message())
        elif step < 0.92:
            network.cut_all()
            with pair.stranger():
                master.put(producer.message())
        elif step < 0.93:
            network.cut_all()
        elif step < 0.97:
            network.next_cuts.append((source.randrange(1, 2000), source.randrange(1, 60)))
            network.cut_all()
        else:
            silent = source.choice((network.to_master, network.to_replica))
            silent.is_silent = True
            world.pause(source.choice((0.5, 25.0)))
            silent.is_silent = False
            network.cut_all()  # bytes are missing in the stream, which TCP would notice


class PairChecker:
    """Recovers images of both sides and holds them against the history."""

    def __init__(self, below: Path, config: PairConfig, final: History, master: Path) -> None:
        self.config = config
        self.images = 0
        self.rejoined = 0
        self._below = below
        self._final = final
        self._master = master  # the folder of the master after the run, which was closed
        self.promoted = Checker(
            below / "promoted", config.replica.replace(role=BrokerRole.ASYNC_MASTER)
        )

    def check(
        self,
        moment: PairMoment,
        source: random.Random,
        rejoin_share: float = 0.0,
        promotion_share: float = 0.0,
        master_share: float = 0.0,
    ) -> None:
        """Check an image of the replica, and some of the master; some are joined or promoted."""
        how, replica = self._replica_image(moment, source)
        try:
            self._check_replica(moment, replica)
            if source.random() < master_share:
                self._check_master(moment, source)
            if source.random() < rejoin_share:
                self._rejoin(moment, replica, source)
            if source.random() < promotion_share:
                self._promote(moment, replica, source)
        except AssertionError as error:
            error.add_note(f"before {moment.label}, replica: {how}")
            raise

    def _replica_image(self, moment: PairMoment, source: random.Random) -> tuple[str, Image]:
        """Return an image that a power loss could leave; without SYNC_FLUSH, that of a kill."""
        if self.config.replica_syncs:
            return random_image(moment.replica, source)
        return "killed", moment.replica.image(PAGE, moment.replica.pending(PAGE))

    def _master_image(self, moment: PairMoment, source: random.Random) -> tuple[str, Image]:
        """Return an image that a power loss could leave; without SYNC_FLUSH, that of a kill.

        Without SYNC_FLUSH the master could otherwise lose what the replica has.
        """
        snapshot = moment.master.snapshot
        if self.config.master.flush is FlushMode.SYNC:
            return random_image(snapshot, source)
        return "killed", snapshot.image(PAGE, snapshot.pending(PAGE))

    def _check_replica(self, moment: PairMoment, image: Image) -> None:
        history, least = moment.replica_history(self._final), moment.least_on_replica(self._final)
        self._check_tail("replica", image, moment, history, least, acknowledged=0)

    def _check_master(self, moment: PairMoment, source: random.Random) -> None:
        how, image = self._master_image(moment, source)
        history, least = moment.master.history(self._final), moment.master.least(self._final)
        is_killed = how.startswith(("killed", "all"))
        acknowledged = history.messages[moment.confirmed - 1].end if moment.confirmed else 0
        try:
            self._check_tail(
                "master", image, moment, history, least, acknowledged if is_killed else 0
            )
        except AssertionError as error:
            error.add_note(f"master: {how}")
            raise

    def _check_tail(
        self,
        name: str,
        image: Image,
        moment: PairMoment,
        history: History,
        least: int,
        acknowledged: int,
    ) -> None:
        """Open one side in its role: it shows its tail only when that is confirmed (R7).

        It knows what was confirmed: at least what was ``acknowledged`` if its process was killed.
        """
        self.images += 1
        below = self._below / f"{name}-{self.images}"
        write_image(image, below / name)
        pair = Pair(below, self.config, self.images, preemption=0.0)
        node: Node = getattr(pair, name)
        with pair.world.replaces_threading():
            try:
                node.open()
                store = node.broker_store
                check_shown(store, history, moment.reported)
                check_confirmed(store, acknowledged, moment.reported)
                if name == "master":
                    store.replica_acks.note("replica", store.log.max_offset)
                else:
                    store.log_copy().confirm(OFFSET_MAX)
                check_store(store.embedded, history, least)
                node.close()
            except FiretrailError as error:
                raise Violation(f"I1: the {name} refuses to open: {error}") from error
            finally:
                pair.world.abandon()
                node._release()
        check_files(below / name, SLOTS)
        shutil.rmtree(below)

    def _promote(self, moment: PairMoment, replica: Image, source: random.Random) -> None:
        """Open the replica as a master, which continues the queues; crash during that, and later.

        A broker that is promoted closes its store and opens it again in this way.
        """
        history, least = moment.replica_history(self._final), moment.least_on_replica(self._final)
        self.promoted.check_again_and_again(replica, history, least, source)

    def _rejoin(self, moment: PairMoment, replica: Image, source: random.Random) -> None:
        """Let a recovered replica follow a master; both logs must become equal."""
        self.rejoined += 1
        below = self._below / f"rejoin-{self.rejoined}"
        kinds: list[Callable[[Path, Image, PairMoment, random.Random], History]]
        kinds = [self._beside_later_master, self._beside_crashed_master]
        history = source.choice(kinds)(below, replica, moment, source)
        pair = Pair(
            below,
            self.config,
            self.rejoined,
            preemption=0.1,
            history=history,
            now=source.choice((0.0, 1000.0)),
        )
        with pair.running():
            log = pair.replica.broker_store.log_copy()
            if not log.is_empty and log.max_offset < pair.master.broker_store.log.min_offset:
                return  # retention of the master has deleted what the replica needs
            least = history.survive_power_loss
            pair.catch_up()
            count = check_store(pair.master.store, history, least)
            history.cut(count, durable=True)
            use_pair(pair, source, 4, faults=False)
            pair.catch_up()
            check_same_log(pair)
            pair.close()
            if pair.errors:
                raise Violation(f"R3: the replica was refused: {pair.errors[0]}")
        for name in ("master", "replica"):
            check_files(below / name, SLOTS)
        shutil.rmtree(below)

    def _beside_later_master(
        self, below: Path, replica: Image, moment: PairMoment, source: random.Random
    ) -> History:
        """The replica alone has crashed; the master has gone on to the end of the run."""
        write_image(replica, below / "replica")
        shutil.copytree(self._master, below / "master")
        history = self._final.copy()
        history.survive_power_loss = len(history.messages)
        return history

    def _beside_crashed_master(
        self, below: Path, replica: Image, moment: PairMoment, source: random.Random
    ) -> History:
        """Both have lost their power at the same time."""
        _, master = self._master_image(moment, source)
        write_images(below, master, replica)
        history = copy.copy(moment.master.history(self._final))
        history.messages = history.messages.copy()
        history.survive_power_loss = moment.master.least(self._final)
        return history


def check_shown(store: BrokerStore, history: History, reported: int) -> None:
    """Raise a Violation if consumers see a message that the replica has not reported (R7)."""
    for message in history.messages:
        if message.end <= reported:
            continue
        end = store.queues.max_offset(message.topic, message.queue_id)
        if message.is_in_queue and message.queue_offset < end:
            raise Violation(f"R7: {message} is shown, but confirmed is the log up to {reported}")
        for key in message.properties.get("KEYS", "").split():
            found = store.embedded.query(message.topic, key)
            if any(record.physical_offset == message.physical_offset for record in found):
                raise Violation(f"R7: {message} is found, but confirmed is the log to {reported}")


def check_confirmed(store: BrokerStore, acknowledged: int, reported: int) -> None:
    """Raise a Violation if a store does not know how far its log was confirmed (R14)."""
    end = store.log.confirmed_end
    if not acknowledged <= end <= max(reported, 0):
        raise Violation(
            f"R14: confirmed is the log up to {end}, but it was acknowledged up to {acknowledged}, "
            f"and reported up to {reported}"
        )


def check_reports(pair: Pair) -> None:
    """Every report must name the end of a record, or of a file (R2)."""
    size = pair.config.master.commit_log_file_size
    ends = {message.end for message in pair.history.messages} | {0, 1}
    for offset in pair.reports:
        if offset not in ends and offset % size:
            raise Violation(f"R2: the replica has reported {offset}, where no record ends")


def check_count_of_replicas(config: PairConfig) -> None:
    """Check that a replica counts as one after it has connected again."""
    with scratch() as below:
        pair = Pair(below, config, 0)
        with pair.running():
            for number in range(3):
                pair.catch_up()
                result = pair.master.put(Message("t", b"%d" % number))
                counted = pair.master.broker_store.replica_acks.in_sync(0)
                if result.ok or counted > 1:
                    raise Violation(f"R8: two replicas are needed, {counted} count: {result}")
                pair.network.cut_all()


def damage_survey(config: PairConfig, source: random.Random) -> None:
    """Damage the last of several records that arrive together, and crash the replica then.

    The replica appends those before it, connects again and confirms them.
    """
    with scratch() as below:
        pair = Pair(below / "live", config, 0, preemption=0.0)
        pair.network.splits = False
        with pair.running():
            pair.catch_up()
            pair.record()
            pair.network.cut_all()
            for number in range(4):
                pair.master.put_without_waiting(Message("t", b"%d" % number))
            pair.network.flip_after = HEADER.size + pair.history.messages[-1].physical_offset + 50
            pair.catch_up()
        if not pair.errors:
            raise Violation("R1: the replica has accepted damaged bytes")
        checker = PairChecker(below, config, pair.history, pair.master.disk.root)
        for moment in pair.moments:
            checker.check(moment, source)


def pair_survey(
    config: PairConfig,
    seed: int,
    source: random.Random,
    share: float = 1.0,
    rejoin_share: float = 0.3,
    promotion_share: float = 0.1,
    master_share: float = 0.3,
) -> PairChecker:
    """Let the power go at operations of a run; raises the first Violation that is found."""
    with scratch() as below, lists_at_once():
        pair = Pair(below / "live", config, seed)
        pair.record()
        try:
            with pair.running():
                use_pair(pair, source, STEPS)
                pair.catch_up()
                check_same_log(pair)
                pair.close()
            check_reports(pair)
            if pair.errors and not pair.faults:
                raise Violation(f"R3: the replica was refused: {pair.errors[0]}")
            checker = PairChecker(below, config, pair.history, pair.master.disk.root)
            for moment in pair.moments:
                if source.random() < share:
                    checker.check(moment, source, rejoin_share, promotion_share, master_share)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        return checker
