"""The measurements: each runs Java and Firetrail in turn and compares their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Snapshot
from benchmarks.contestants import Java, RunError, firetrail
from benchmarks.figures import Json, Line, Unit, samples
from benchmarks.load import BATCH, PRODUCERS, some_keys
from firetrail.format.names import CHECKPOINT, CONSUME_QUEUE, INDEX, WATERMARK

OURS = "Firetrail"
DERIVED = (CHECKPOINT, WATERMARK, CONSUME_QUEUE, INDEX)
"""Files that a store can be opened without after an unclean stop: they are derived from the log."""
DISPATCH_LAG_S = 0.005


def single_put(bench: Bench) -> Iterator[Line]:
    """Measure one producer; for Java, also two in parallel, and the write-buffer pool."""
    pool = {"transientStorePoolEnable": "true"}
    kinds: tuple[tuple[str, dict[str, list[str]], dict[str, str]], ...] = (
        ("put, one message", {"": [], ", two producers": ["--threads", "2"]}, {}),
        ("put, one message, write-buffer pool", {"": ["--pool"]}, pool),
    )
    for title, variants, settings in kinds:
        runs = _java_puts(bench, bench.scale.put, variants)
        runs[OURS] = _our_puts(bench, "put", bench.scale.put, settings)
        yield from _compare(title, bench.take_turns(runs), "per_second", 1.0)


def batch_put(bench: Bench) -> Iterator[Line]:
    """Batches against Java's batches, and against its single puts."""
    count = bench.scale.batch
    single, batch = ", single puts", ", batches"
    runs = _java_puts(bench, count, {single: [], batch: ["--batch", str(BATCH)]})
    runs[OURS] = _our_puts(bench, "batch", count, {})
    answers = bench.take_turns(runs)
    yield from _compare(f"put, batches of {BATCH}", answers, "per_second", 4.0)
    with_encoding = {name: given for name, given in answers.items() if not name.endswith(single)}
    yield from _compare(
        f"put, batches of {BATCH}, encoding included", with_encoding, "per_second_with_encoding"
    )


def sync_put(bench: Bench) -> Iterator[Line]:
    """Measure puts that wait for the disk."""
    count = bench.scale.sync
    settings = {"flushDiskType": "SYNC_FLUSH"}
    java_options = ["--flush", "sync", "--threads", str(PRODUCERS)]
    runs = _java_puts(bench, count, {"": java_options})
    for kind in ("threads", "tasks"):
        runs[kind] = _our_puts(bench, f"put_{kind}", count, settings, bench.scale.warm_sync)
    answers = bench.take_turns(runs)
    for kind, title in (("threads", "threads"), ("tasks", "tasks of one event loop")):
        chosen = {name: answers[name] for name in answers if name.startswith("Java")}
        yield from _compare(
            f"put, synced, {PRODUCERS} {title}",
            chosen | {OURS: answers[kind]},
            "per_second",
            1.0,
        )


def _java_puts(
    bench: Bench, count: int, variants: Mapping[str, list[str]]
) -> dict[str, Callable[[], Json]]:
    """Runs of ``bench-put``: each release with each set of options."""

    def put(java: Java, options: list[str], store: Path) -> Json:
        sized = ["--count", count, "--log-size", bench.scale.log_size]
        return java.run("bench-put", store, *sized, *options, kill=True)

    return {
        java.name + suffix: bench.in_new_folder(partial(put, java, options))
        for java in bench.javas
        for suffix, options in variants.items()
    }


def _our_puts(
    bench: Bench, command: str, count: int, settings: Mapping[str, str], warm: int = 0
) -> Callable[[], Json]:
    return bench.in_new_folder(
        lambda store: firetrail(
            command,
            store,
            count=count,
            warm=warm or bench.scale.warm,
            settings=bench.scale.settings | dict(settings),
        )
    )


def sequential_get(bench: Bench) -> Iterator[Line]:
    """Measure reads of all queues of one store in pulls of 32."""
    rounds = bench.scale.rounds
    with bench.folder("store") as store:
        _write(bench, store, messages=bench.scale.put)
        runs: dict[str, Callable[[], Json]] = {
            java.name: partial(
                java.run,
                *("bench-get", store, "--rounds", rounds, "--log-size", bench.scale.log_size),
            )
            for java in bench.javas
        }
        for name, slices in (("get", False), ("slices", True)):
            runs[name] = partial(firetrail, "get", store, rounds=rounds, slices=slices)
        answers = bench.take_turns(runs)
    chosen = {name: answers[name] for name in answers if name.startswith("Java")}
    for name, title, wanted in (
        ("get", "get, pulls of 32", 1.0),
        ("slices", "get, pulls of 32, with every slice", None),
    ):
        yield from _compare(title, chosen | {OURS: answers[name]}, "per_second", wanted)


def key_query(bench: Bench) -> Iterator[Line]:
    """Keys of one message each; Firetrail's answers are decoded, Java's are not."""
    scale = bench.scale
    with bench.folder("store") as store:
        _write(bench, store, messages=scale.put)
        keys = store / "keys.txt"
        keys.write_text("\n".join(some_keys(scale.keys, scale.put)), encoding="utf-8")
        runs: dict[str, Callable[[], Json]] = {
            java.name: partial(
                java.run,
                *("bench-query", store, "--keys", keys, "--log-size", scale.log_size),
            )
            for java in bench.javas
        }
        runs[OURS] = partial(firetrail, "query", store, keys_file=str(keys))
        answers = bench.take_turns(runs)
    for name, wanted in (("mean", 1.0), ("p50", None), ("p99", None)):
        ours = samples(Unit.SECONDS, answers[OURS], name)
        title = f"query by key, {name}"
        if not bench.javas:
            yield Line(title, ours)
        for java in bench.javas:
            theirs = samples(Unit.SECONDS, answers[java.name], f"{name}_us", 1e-6)
            yield Line(title, ours, java.name, theirs, wanted)


def _write(bench: Bench, store: Path, messages: int) -> None:
    """Return a closed store of this number of messages, by Java if possible, for all readers."""
    bench.say(f"  writing a store of {messages} messages")
    sized = {"count": messages, "warm": 1, "settings": bench.scale.settings}
    if bench.javas:
        options = ("--count", messages, "--log-size", bench.scale.log_size)
        bench.javas[0].run("bench-put", store, *options)
    else:
        firetrail("put", store, **sized)


def log_scan(bench: Bench) -> Iterator[Line]:
    """Measure the scan of one file of the log against a copy of as many bytes, on one core."""
    with bench.folder("store") as store:
        bench.say("  writing a log")
        firetrail("fill", store, size=bench.scale.scan, settings=bench.scale.settings)
        answers = bench.take_turns(
            {OURS: partial(firetrail, "scan_and_copy", store, rounds=bench.scale.rounds)}
        )[OURS]
    memcpy = samples(Unit.BYTES, answers, "memcpy")
    for title, name, wanted in (
        ("scan with checksums", "crc", 1 / 3),
        ("scan without checksums", "plain", None),
    ):
        yield Line(title, samples(Unit.BYTES, answers, name), "memcpy", memcpy, wanted)


def unclean_recovery(bench: Bench) -> Iterator[Line]:
    """Opening a store whose process was killed; one folder for all, brought back in between."""
    size = bench.scale.recover
    wanted = 3.0
    with bench.folder("store") as store:
        writer = _write_and_die(bench, store, size)
        snapshot = Snapshot(store)
        for title, without in (
            (f"recovery, all rebuilt from {size_text(size)}", DERIVED),
            (f"recovery of {size_text(size)} killed under {writer}", ()),
        ):
            yield from _open(bench, store, snapshot, title, wanted, without=without, kill=True)
    if bench.javas:
        with bench.folder("store") as store:
            fill(bench, store, size, kill=True)
            title = f"recovery of {size_text(size)} killed under {OURS}"
            alone = Bench(bench.root, bench.scale, (), bench.repeat, bench.say)
            yield from _open(alone, store, Snapshot(store), title, None, kill=True)


def clean_open(bench: Bench) -> Iterator[Line]:
    """Opening stores of two sizes that were closed: it must not depend on the size."""
    for size in (bench.scale.open_small, bench.scale.recover):
        with bench.folder("store") as store:
            fill(bench, store, size)
            yield from _open(
                bench, store, Snapshot(store), f"open {size_text(size)}, after a clean stop", None
            )


def _write_and_die(bench: Bench, store: Path, size: int) -> str:
    """Let a store be killed after it has written ``size`` bytes; return the name of the writer."""
    if not bench.javas:
        fill(bench, store, size, kill=True)
        return OURS
    java = bench.javas[0]
    bench.say(f"  {java.name} writes {size_text(size)}")
    record = 390  # of the benchmarks' messages, give or take a digit
    java.run(
        "bench-put",
        store,
        *("--count", size // record, "--log-size", bench.scale.log_size),
        kill=True,
    )
    return java.name


def fill(bench: Bench, store: Path, size: int, *, kill: bool = False) -> None:
    """Write a store with Firetrail until its log is ``size`` bytes long."""
    bench.say(f"  {OURS} writes {size_text(size)}")
    firetrail("fill", store, size=size, settings=bench.scale.settings, kill=kill)


def _open(
    bench: Bench,
    store: Path,
    snapshot: Snapshot,
    title: str,
    wanted: float | None,
    *,
    without: tuple[str, ...] = (),
    kill: bool = False,
) -> Iterator[Line]:
    """Measure the seconds that repeated opens of a copy of the same store take."""

    def ready() -> None:
        snapshot.restore(without=without)
        snapshot.warm_up()

    def java_opens(java: Java) -> Json:
        ready()
        figures = java.run("bench-recover", store, "--log-size", bench.scale.log_size)
        return {"seconds": figures["seconds_started"], "bytes": figures["bytes"]}

    def we_open() -> Json:
        ready()
        return firetrail("reopen", store, kill=kill)

    runs: dict[str, Callable[[], Json]] = {
        java.name: partial(java_opens, java) for java in bench.javas
    }
    answers = bench.take_turns(runs | {OURS: we_open})
    found = {name: {answer["bytes"] for answer in given} for name, given in answers.items()}
    if len(set.union(*found.values())) > 1:
        raise RunError(f"{title}: the log has another length for each: {found}")
    yield from _compare(title, answers, "seconds", wanted, Unit.SECONDS)


def dispatch_lag(bench: Bench) -> Iterator[Line]:
    """From put to readable when nothing else happens."""
    run = bench.in_new_folder(lambda store: firetrail("lag", store, count=bench.scale.lag))
    answers = bench.take_turns({OURS: run})[OURS]
    for name, limit in (("mean", DISPATCH_LAG_S), ("p99", None)):
        yield Line(
            f"from put to readable, idle store, {name}",
            samples(Unit.SECONDS, answers, name),
            limit=limit,
        )


def _compare(
    title: str,
    answers: Mapping[str, list[Json]],
    name: str,
    wanted: float | None = None,
    unit: Unit = Unit.MESSAGES,
) -> Iterator[Line]:
    """Yield a line per other store, or one for Firetrail alone if there is no other."""
    ours = samples(unit, answers[OURS], name)
    others = [other for other in answers if other != OURS]
    if not others:
        yield Line(title, ours)
    for other in others:
        yield Line(title, ours, other, samples(unit, answers[other], name), wanted)


def size_text(size: int) -> str:
    """Return a size in readable form."""
    gib = size / (1 << 30)
    return f"{gib:g} GiB" if gib >= 1 else f"{size / (1 << 20):g} MiB"


MEASUREMENTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "put": single_put,
    "batch": batch_put,
    "sync": sync_put,
    "get": sequential_get,
    "scan": log_scan,
    "recovery": unclean_recovery,
    "open": clean_open,
    "query": key_query,
    "lag": dispatch_lag,
}
