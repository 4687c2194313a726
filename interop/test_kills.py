"""Brokers of both sides, killed under the same load, before the same ledger.

These are a few kills. ``python -m interop.tormented`` does more of them, and
``docs/durability/findings.md`` has its figures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.tormented import compared
from tests.torture.faults import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="faults.c needs a C compiler")
SEED = 1
KILLS = 2
KNOWN = {"keys lost", "files disagree", "starts refused"}
"""Violations that kills cause in RocketMQ, as seen in longer runs."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Clients complain a lot about brokers that are killed."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("side", "mode"),
    [
        ("firetrail", "SYNC_FLUSH"),
        ("firetrail", "ASYNC_FLUSH"),
        ("v4", "ASYNC_FLUSH"),
        ("v5", "SYNC_FLUSH"),
    ],
)
def test_kills(tmp_path: Path, side: str, mode: str) -> None:
    figures, wrong = asyncio.run(compared(tmp_path, SEED, side, mode, count=KILLS))
    print(f"seed {SEED}: {dict(figures)}, wrong: {dict(wrong)}")
    killed = {name: number for name, number in figures.items() if name.startswith("kills: ")}
    assert sum(killed.values()) == KILLS
    assert figures["acknowledged"] > 0
    assert wrong.keys() <= (set() if side == "firetrail" else KNOWN)
