"""The torments, by name; each run of ``make torture`` draws from them."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from tests.crash.power_loss.broker_survey import broker_survey
from tests.crash.power_loss.bulk_survey import bulk_survey
from tests.crash.power_loss.pair_survey import pair_survey
from tests.crash.world.broker_process import broker_config
from tests.crash.world.pair import pair_config
from tests.crash.world.simulation import MODES as MODES_OF_STORES
from tests.crash.world.simulation import few_open_files, survey, tiny_config
from tests.machine.etcd_program import MISSING, find_etcd
from tests.torture.bent_limits import clock_jumps, few_files, few_from_the_start, little_memory
from tests.torture.damage import spoil
from tests.torture.disk_failures import (
    FULL_WALK,
    START_WALK,
    can_mount,
    disk_is_full,
    small_disk,
    start_fails,
)
from tests.torture.exhaustion import exhaust
from tests.torture.group.bridge import NoNamespaces
from tests.torture.group.cluster_rounds import sampled_round
from tests.torture.group.counted_copies import count_copies
from tests.torture.group.failover import GROUP_KINDS, KINDS, NAMESPACE_KINDS, fail_over
from tests.torture.group.hand_over import check_pauses, hand_over
from tests.torture.group.killed_pair import kill_pair
from tests.torture.kills import kill_loop
from tests.torture.mutants import BUGS, caught
from tests.torture.soak import soak, soak_pair
from tests.torture.syncs import MODES, WALK, sync_fails, sync_is_slow

Part = Callable[[Path, int], Counter[str]]
"""Torments a broker in an empty folder, all chances drawn from a seed; gives figures."""
CHANGES = int(os.environ.get("FIRETRAIL_CHANGES", "6"))
"""Planned changes of the master in one round."""
CLUSTER_FAULTS = 6
"""Faults of a cluster in namespaces in one round."""
SOAK_S = float(os.environ.get("FIRETRAIL_SOAK_S", "60"))
"""How long one soak takes; an hour is FIRETRAIL_SOAK_S=3600."""


class LeftOut(Exception):
    """A part cannot run on this machine; the text says why, and the remedy."""


def _drawn(seed: int) -> random.Random:
    """Return the source of a part's parameters; choices inside the part use the seed itself."""
    return random.Random(f"part {seed}")


def _kill(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(kill_loop(folder, seed, _drawn(seed).choice(MODES)))


def _kill_a_pair(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(kill_pair(folder, seed, _drawn(seed).choice(MODES)))


def _failed_sync(folder: Path, seed: int) -> Counter[str]:
    site, skip, mode = WALK[seed % len(WALK)]
    return asyncio.run(sync_fails(folder, seed, mode, site, skip))


def _slow_sync(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(sync_is_slow(folder, seed))


def _full_disk(folder: Path, seed: int) -> Counter[str]:
    mode, place, skip = FULL_WALK[seed % len(FULL_WALK)]
    return asyncio.run(disk_is_full(folder, seed, mode, place, skip))


def _small_disk(folder: Path, seed: int) -> Counter[str]:
    if not can_mount():
        return Counter({"left out: this user may not mount": 1})
    drawn = _drawn(seed)
    size_kib = drawn.randrange(6_000, 16_000)
    return asyncio.run(small_disk(folder, seed, drawn.choice(MODES), size_kib))


def _start(folder: Path, seed: int) -> Counter[str]:
    code, first = START_WALK[seed % len(START_WALK)]
    return asyncio.run(start_fails(folder, seed, code, first))


def _power_loss(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    config = tiny_config(drawn.choice(list(MODES_OF_STORES)), property_crc=drawn.random() < 0.5)
    with few_open_files() if drawn.random() < 0.3 else nullcontext():
        checker = survey(config, seed, drawn, images_per_moment=2)
    torn = Counter({"torn, without a checksum": checker.torn_properties})
    return Counter({"crash images of a store": checker.images}) + torn


def _power_loss_of_a_broker(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    config = broker_config(drawn.choice(list(MODES_OF_STORES)))
    with few_open_files() if drawn.random() < 0.3 else nullcontext():
        checker = broker_survey(config, seed, drawn)
    return Counter({"crash images of a broker": checker.images})


def _power_loss_of_an_append(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    config = tiny_config("sync", property_crc=drawn.random() < 0.5)
    checker = bulk_survey(config, seed, drawn)
    return Counter({"crash images of bulk appends": checker.images})


def _power_loss_of_a_pair(folder: Path, seed: int) -> Counter[str]:
    drawn = _drawn(seed)
    modes = drawn.choice((("sync", "sync"), ("sync", "sync"), ("async", "sync"), ("sync", "async")))
    checker = pair_survey(pair_config(*modes, property_crc=True), seed, drawn)
    return Counter(
        {
            "crash images of replicas": checker.images,
            "replicas rejoined": checker.rejoined,
            "crash images of promotions": checker.promoted.images,
        }
    )


def _pipeline(folder: Path, seed: int) -> Counter[str]:
    from tests.torture.spark.pipeline import kill_a_job  # it needs Spark

    return kill_a_job(seed)


def _pipeline_without_spark(folder: Path, seed: int) -> Counter[str]:
    from tests.torture.spark.forked_drivers import walk_a_job

    return walk_a_job(seed)


def _clock(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(clock_jumps(folder, seed, _drawn(seed).choice(MODES)))


def _descriptors(folder: Path, seed: int) -> Counter[str]:
    limit = _drawn(seed).choice((0, 16, 32, 64, 256))
    part = few_from_the_start(folder, seed, limit) if limit else few_files(folder, seed)
    return asyncio.run(part)


def _memory(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(little_memory(folder, seed, _drawn(seed).choice(MODES)))


def _spoil(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(spoil(folder, seed, 300))


def _soak(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(soak(folder, seed, SOAK_S))


def _soak_a_pair(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(soak_pair(folder, seed, SOAK_S))


def _exhaustion(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(exhaust(folder, seed))


def _failover(folder: Path, seed: int) -> Counter[str]:
    if find_etcd() is None:
        return Counter({"left out: there is no etcd": 1})
    return fail_over(folder, seed, KINDS + NAMESPACE_KINDS + GROUP_KINDS)


def _cluster(folder: Path, seed: int) -> Counter[str]:
    if find_etcd() is None:
        raise LeftOut(MISSING)
    try:
        figures = count_copies(folder / "copies", seed)
        return figures + sampled_round(folder, seed, CLUSTER_FAULTS)
    except NoNamespaces as error:
        raise LeftOut(str(error)) from None


def _hand_over(folder: Path, seed: int) -> Counter[str]:
    if find_etcd() is None:
        return Counter({"left out: there is no etcd": 1})
    figures = asyncio.run(hand_over(folder, seed, CHANGES))
    check_pauses(figures)
    return figures


def _seeded_bugs(folder: Path, seed: int) -> Counter[str]:
    return asyncio.run(caught(folder, seed, list(BUGS)[seed % len(BUGS)]))


PARTS: dict[str, Part] = {
    "kill": _kill,
    "kill of a pair": _kill_a_pair,
    "failed sync": _failed_sync,
    "full disk": _full_disk,
    "failed start": _start,
    "slow sync": _slow_sync,
    "small disk": _small_disk,
    "power loss": _power_loss,
    "power loss of a broker": _power_loss_of_a_broker,
    "clock": _clock,
    "descriptors": _descriptors,
    "memory": _memory,
    "spoil": _spoil,
    "soak": _soak,
    "soak of a pair": _soak_a_pair,
    "seeded bugs": _seeded_bugs,
    "power loss of an append": _power_loss_of_an_append,
    "power loss of a pair": _power_loss_of_a_pair,
    "failover": _failover,
    "hand-over": _hand_over,
    "cluster": _cluster,
    "exhaustion": _exhaustion,
    "pipeline": _pipeline,
    "pipeline without Spark": _pipeline_without_spark,
}
