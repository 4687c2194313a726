"""Seeded bugs: surveys of crashes must find each of them."""

import random
from collections.abc import Callable, Iterable

from tests.crash.oracle import Violation

from firetrail.errors import FiretrailError


def expect_violation(survey: Callable[[int, random.Random], object], seeds: Iterable[int]) -> None:
    """Run a survey per seed until one finds a violation; fail if none does."""
    tried = 0
    for seed in seeds:
        try:
            survey(seed, random.Random(seed))
        except (Violation, FiretrailError) as caught:
            print(f"seed {seed}: {caught}")
            return
        tried += 1
    raise AssertionError(f"not caught in {tried} surveys")
