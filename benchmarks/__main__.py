"""``python -m benchmarks``: measure Firetrail beside the Java store and print the ratios."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from interop.peer import missing_tool

from benchmarks.bench import FULL, GIB, MIB, QUICK, Bench
from benchmarks.contestants import JAVAS, ROOT, RunError
from benchmarks.figures import Line
from benchmarks.grpc_servers import GRPC_SERVING
from benchmarks.measurements import MEASUREMENTS
from benchmarks.pipelines import PIPELINES
from benchmarks.replicas import REPLICATING
from benchmarks.report import machine, table, write_page
from benchmarks.security import SECURING
from benchmarks.servers import SERVING
from benchmarks.timers import TIMERS

PARTS: dict[str, Mapping[str, object]] = {
    "store": MEASUREMENTS | PIPELINES,
    "brokers": SERVING,
    "grpc": GRPC_SERVING,
    "timers": TIMERS,
    "replication": REPLICATING,
    "tls": SECURING,
}
"""The parts of the page, and the measurements of each."""
ALL = MEASUREMENTS | PIPELINES | SERVING | GRPC_SERVING | TIMERS | REPLICATING | SECURING
SPACE = {FULL: 16 * GIB, QUICK: 6 * GIB}
"""The disk space that the largest step needs at a time, and some to spare."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("--quick", action="store_true", help="small numbers: a look, not a result")
    made.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=ALL,
        help=f"only this measurement, may be repeated: {', '.join(ALL)}",
    )
    made.add_argument("--repeat", type=int, default=3, metavar="N", help="repetitions (3)")
    made.add_argument(
        "--replicated", type=int, metavar="MIB", help="size of the log that a replica catches up"
    )
    made.add_argument(
        "--timers", type=int, metavar="N", help="messages that wait for their delivery time"
    )
    made.add_argument("--no-java", action="store_true", help="measure Firetrail alone")
    made.add_argument(
        "--dir",
        type=Path,
        metavar="FOLDER",
        help="where the stores go, on the disk that is to be measured (build/)",
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--write", action="store_true", help="also write docs/performance.md")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements; 0 whatever the ratios are, 1 if one could not be taken."""
    options = parser().parse_args(arguments)
    names = options.only or list(ALL)
    whole = [part for part, measurements in PARTS.items() if set(measurements) <= set(names)]
    if options.write and (options.quick or options.no_java or not whole):
        parser().error(
            "--write is for complete runs: without --quick and --no-java, and with --only for all "
            "measurements of a part: " + "; ".join(", ".join(PARTS[part]) for part in PARTS)
        )
    tool = missing_tool()
    if tool and not options.no_java:
        parser().error(f"{tool} is not on this machine; --no-java measures Firetrail alone")
    preset = QUICK if options.quick else FULL
    scale = replace(
        preset,
        replicated=(options.replicated or preset.replicated // MIB) * MIB,
        timers=options.timers or preset.timers,
    )
    home = options.dir or ROOT / "build"
    home.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(home).free < SPACE[preset]:
        parser().error(f"{home} needs {SPACE[preset] >> 30} GiB free; name another with --dir")
    if os.getloadavg()[0] > 1:
        _say(f"others use this machine (load {os.getloadavg()[0]:.1f}): expect noise")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and clean up
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as root:
        bench = Bench(Path(root), scale, () if options.no_java else JAVAS, options.repeat, _say)
        try:
            lines = measure(bench, names)
        except RunError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 1
    found = [line for some in lines.values() for line in some]
    if options.json:
        print(json.dumps({"machine": machine(), "lines": [line.as_json() for line in found]}))
    else:
        print(table(found))
    for part in whole if options.write else ():
        chosen = [line for name in PARTS[part] for line in lines[name]]
        write_page(part, chosen, scale, options.repeat)
    return 0


def measure(bench: Bench, names: Sequence[str]) -> dict[str, list[Line]]:
    """Return the lines of the measurements of these names."""
    lines: dict[str, list[Line]] = {}
    for name in names:
        bench.say(name)
        for line in ALL[name](bench):
            lines.setdefault(name, []).append(line)
            bench.say(f"    {line}")
    return lines


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
