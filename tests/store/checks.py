"""Helpers for the tests of fsck."""

from pathlib import Path

from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.store.inspect.fsck.check import check_store
from firetrail.store.inspect.fsck.report import CheckReport
from firetrail.store.inspect.view import StoreView
from firetrail.system import System

DELAYS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
FIRST = "0" * 20
LOG = f"commitlog/{FIRST}"


def checked(
    root: Path, *, system: System | None = None, delays: DelayLevels = DELAYS
) -> CheckReport:
    with StoreView.open(root, system=system) as view:
        return check_store(view, delays)


def found(report: CheckReport) -> list[tuple[str, int, int | None, str]]:
    return [problem[:4] for problem in report.problems]
