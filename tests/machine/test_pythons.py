"""The output of other programs that ``make pythons`` reads, and its summary."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.extras import EXTRAS
from tests.machine import pythons
from tests.machine.pythons import (
    HEADER,
    Outcome,
    counts_of,
    logged,
    newest_first,
    optional_packages,
)


def test_versions_are_sorted_as_numbers() -> None:
    packages = ["python3.9-venv - venv", "python3.14-venv - venv", "python3-venv - default"]
    assert newest_first(packages) == ["3.14", "3.9"]


def test_counts_are_read_from_the_last_line() -> None:
    output = "1 failed, as a test prints\n2 failed, 10 passed, 3 skipped, 1 error in 4.00s\n"
    assert counts_of(output) == {"failed": 2, "passed": 10, "skipped": 3, "error": 1}


def test_a_run_that_ended_early_has_no_counts() -> None:
    assert counts_of("") == {}
    assert counts_of("Segmentation fault\n") == {}


def test_the_summary_lines_up() -> None:
    counts = {"passed": 10, "failed": 2, "error": 1, "skipped": 3}
    line = Outcome("3.15", "compiled", counts, ["lz4", "zstandard"]).line()
    assert line.split() == ["3.15", "compiled", "10", "3", "3", "lz4,", "zstandard"]
    assert line.index("lz4") == HEADER.index("no wheel for")


def test_a_log_can_be_read_before_the_command_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"print('first', flush=True); print(open({str(log)!r}).read() * 2); exit(3)"
    assert logged([sys.executable, "-c", script], log, os.environ) == (3, "first\nfirst\nfirst\n\n")
    assert log.read_text(encoding="utf-8") == "first\nfirst\nfirst\n\n"


def test_requirements_are_those_of_the_extras() -> None:
    packages = optional_packages()
    assert packages["zstandard"] == "zstandard>=0.22; python_version < '3.14'"
    assert packages["pyiceberg"].startswith("pyiceberg[sql-sqlite]>=")
    brought_by_others = {"fsspec", "py4j"}
    imported_as = {
        "grpcio": "grpc",
        "grpcio-tools": "grpc_tools",
        "PyYAML": "yaml",
        "protobuf": "google",
        "rocketmq-python-client": "rocketmq",
    }
    of_extras = {name for name, extra in EXTRAS.items() if extra != "dev"}
    assert {imported_as.get(name, name) for name in packages} == of_extras - brought_by_others


def test_a_release_without_a_requested_python_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unpacked = []

    class Release(pythons.Chroot):
        def unpack(self) -> None:
            unpacked.append(self.suite)

        def refresh(self) -> None: ...

        def versions(self) -> list[str]:
            return ["3.13"] if self.suite == "trixie" else ["3.15", "3.13"]

        def test(self, version: str, arguments: Sequence[str]) -> Outcome:
            return Outcome(version, "compiled", {"passed": 1}, [])

    monkeypatch.setattr(pythons, "Chroot", Release)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("sys.argv", ["pythons", "--only", "3.13"])
    assert pythons.main() == 0
    assert unpacked == ["trixie"]
