"""Rounds of faults of a cluster in namespaces: ``python -m tests.torture.group.cluster_rounds``.

In a round, a new group suffers faults in random order. After each one and its healing, an
independent client must be able to read everything that was acknowledged. The result is a table in
Markdown. Exit code 1: something was lost, or the group did not recover; 2: this user cannot create
network namespaces.
"""

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.oracle import Violation
from tests.torture.group.bridge import NoNamespaces, check_namespaces
from tests.torture.group.cluster import Cluster
from tests.torture.group.cluster_faults import FAULTS
from tests.torture.group.networks import run_in_namespace

LOST = ("lost", "read and lost")


@dataclass
class Row:
    """The results of one fault."""

    runs: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    without_s: float = 0.0
    refused_s: float = 0.0
    decisions: int = 0

    def add(self, answer: dict[str, Any], decisions: int) -> None:
        figures, wrong = answer["figures"], answer["wrong"]
        self.runs += 1
        self.acknowledged += int(figures.get("acknowledged", 0))
        self.lost += sum(int(wrong[kind][0]) for kind in LOST if kind in wrong)
        self.wrong += sum(int(them[0]) for kind, them in wrong.items() if kind not in LOST)
        self.without_s = max(self.without_s, figures.get("longest without", 0.0))
        self.refused_s = max(self.refused_s, figures.get("longest refusal", 0.0))
        self.decisions += decisions


class Rows:
    """The results of all faults."""

    def __init__(self) -> None:
        self.by_fault: dict[str, Row] = {}

    def row(self, fault: str) -> Row:
        return self.by_fault.setdefault(fault, Row())

    def table(self) -> str:
        return table((name, self.by_fault[name]) for name in FAULTS if name in self.by_fault)

    def figures(self) -> Counter[str]:
        rows = self.by_fault.values()
        return Counter(
            {
                "faults": sum(row.runs for row in rows),
                "acknowledged": sum(row.acknowledged for row in rows),
                "lost": sum(row.lost for row in rows),
                "longest ms without a master": int(1000 * max(row.without_s for row in rows)),
            }
        )


def table(rows: Iterable[tuple[str, Row]]) -> str:
    lines = [
        "| fault | runs | acknowledged | lost | longest without a master |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, row in rows:
        figures = f"{row.runs} | {row.acknowledged:,} | {row.lost:,} | {row.without_s:.1f} s"
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)


async def _round(folder: Path, seed: int, names: Sequence[str], rows: Rows) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(folder, seed, stack)
        fault = "the start"
        try:
            await cluster.start()
            for fault in cluster.random.sample(names, len(names)):
                await _suffer(cluster, fault, rows)
            fault = "the end"
            if wrong := await cluster.finish():
                raise Violation(f"the logs of members: {wrong}")
        except BaseException as error:
            error.add_note(f"seed {seed}, {fault}; evidence: {_kept(cluster, seed)}")
            raise


async def _suffer(cluster: Cluster, fault: str, rows: Rows) -> None:
    await cluster.settled()
    await asyncio.sleep(cluster.random.uniform(0.2, 2.0))
    decisions, began_at = cluster.decisions, time.monotonic()
    try:
        await FAULTS[fault](cluster)
        await cluster.settled()
    finally:
        answer = await cluster.witness.ask("check")
        rows.row(fault).add(answer, cluster.decisions - decisions)
        took = f"{time.monotonic() - began_at:.1f} s"
        print(
            f"  {fault}: {took}, {answer['figures']}, {answer['wrong'] or 'nothing wrong'}",
            flush=True,
        )
    if answer["wrong"]:
        raise Violation(f"{fault}: {answer['wrong']}")
    await cluster.witness.ask("go")


def _kept(cluster: Cluster, seed: int) -> Path:
    """Copy ledger, settings and logs of the members to a folder that stays; return it."""
    kept = Path(tempfile.mkdtemp(prefix=f"firetrail-cluster-{seed}-"))
    for path in [cluster.witness.ledger, cluster.folder / "etcd.log"]:
        if path.exists():
            shutil.copy(path, kept)
    for member in cluster.members:
        for path in member.folder.glob("*.txt"):
            shutil.copy(path, kept / f"{member.folder.name}-{path.name}")
        seen = member.store / "config" / "firetrailMember.json"
        if seen.exists():
            shutil.copy(seen, kept / f"{member.folder.name}-{seen.name}")
    return kept


def run_round(folder: Path, seed: int, names: Sequence[str], rows: Rows) -> None:
    """Run a round; raise NoNamespaces if that is not possible."""
    check_namespaces()
    run_in_namespace(_round(folder, seed, names, rows))


def sampled_round(folder: Path, seed: int, count: int) -> Counter[str]:
    """Run a round with some of the faults, drawn from the seed; return the figures."""
    rows = Rows()
    names = random.Random(f"faults {seed}").sample(list(FAULTS), count)
    run_round(folder, seed, names, rows)
    return rows.figures()


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster_rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, help="of the first round")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin no round after this time"
    )
    args = parser.parse_args()
    try:
        check_namespaces()
    except NoNamespaces as error:
        print(f"not run: {error}", file=sys.stderr)
        return 2
    logging.disable()
    first = args.seed if args.seed is not None else random.SystemRandom().getrandbits(31)
    rows, failed = Rows(), 0
    over_at = time.monotonic() + 60 * args.minutes
    for seed in range(first, first + args.rounds):
        if time.monotonic() >= over_at:
            break
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="firetrail-cluster-") as folder:
            try:
                run_round(Path(folder), seed, args.fault or list(FAULTS), rows)
            except Exception:
                traceback.print_exc()
                failed += 1
    print(rows.table())
    print(f"{failed} rounds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
