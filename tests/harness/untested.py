"""The last lines of a run: tests that were skipped, with the reason, which names the remedy."""

from collections import Counter, defaultdict

import pytest

HEADLINE = "not tested on this machine"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per reason: how many tests, of which files."""
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.stats.get("skipped", []):
        if report.longrepr is not None and not hasattr(report, "wasxfail"):
            files[_reason(report)][report.nodeid.partition("::")[0]] += 1
    if files:
        terminalreporter.section(HEADLINE, yellow=True)
    for reason, counts in sorted(files.items()):
        tests = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        terminalreporter.write_line(f"{reason}: {tests}", yellow=True)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skipped test, or of a module whose import skipped it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
