"""``make torture``: torments brokers for as long as it is given, one seed after the other.

A round's seed says everything about it: which part it is, and what happens in it. After a failure
the same round comes first with ``make torture SEED=<its seed>``. The exit code is 1 if a round has
failed, and 2 if the requested part cannot run on this machine.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.torture.faults import compiler
from tests.torture.parts import PARTS, LeftOut


def main() -> int:
    """Run rounds until the time is over or one fails."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="0 for one round")
    parser.add_argument("--seed", type=int, help="of the first round")
    parser.add_argument("--part", choices=PARTS, help="this one only")
    args = parser.parse_args()
    if compiler() is None:
        parser.error("a C compiler is needed for faults.c: install gcc or clang")
    logging.disable()  # clients complain a lot about brokers that are killed
    seed = args.seed if args.seed is not None else random.SystemRandom().getrandbits(31)
    deadline = time.monotonic() + 60 * args.minutes
    total, rounds = Counter[str](), 0
    while True:
        try:
            passed = run(args.part or list(PARTS)[seed % len(PARTS)], seed, total)
        except LeftOut as reason:
            print(f"left out: {reason}")
            if args.part:
                return 2
            passed = True
        if not passed:
            what = f" PART='{args.part}'" if args.part else ""
            print(f"FAILED; again with: make torture MINUTES=0 SEED={seed}{what}")
            return 1
        rounds += 1
        seed += 1
        if time.monotonic() >= deadline:
            break
    print(f"{rounds} rounds, acknowledged messages lost: 0; {listed(total)}")
    return 0


def run(name: str, seed: int, total: Counter[str]) -> bool:
    print(f"seed {seed}: {name}: ", end="", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="firetrail-torture-") as folder:
        try:
            figures = PARTS[name](Path(folder), seed)
        except LeftOut:
            raise
        except Exception:
            print()
            traceback.print_exc()
            return False
    total += figures
    print(f"{listed(figures)} in {time.monotonic() - started:.0f} s", flush=True)
    return True


def listed(figures: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in figures.items())


if __name__ == "__main__":
    sys.exit(main())
