"""The folder of the tests' temporary files."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness import memory_disk
from tests.harness.memory_disk import FREE_LEAST, use_memory


@pytest.fixture(autouse=True)
def unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no place be configured, and memory be available."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(memory_disk, "SHARED_MEMORY", tmp_path)
    offer(monkeypatch)


def offer(monkeypatch: pytest.MonkeyPatch, flags: int = 0, free: int = FREE_LEAST) -> None:
    status = SimpleNamespace(f_flag=flags, f_frsize=4096, f_bavail=free // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: status)


def test_temporary_files_are_in_memory(tmp_path: Path) -> None:
    use_memory()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)


def test_a_chosen_place_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/chosen")
    use_memory()
    assert os.environ["TMPDIR"] == "/chosen"


@pytest.mark.parametrize("offered", [{"flags": os.ST_NOEXEC}, {"free": FREE_LEAST - 4096}])
def test_an_unsuitable_place_is_not_used(
    monkeypatch: pytest.MonkeyPatch, offered: dict[str, int]
) -> None:
    offer(monkeypatch, **offered)
    use_memory()
    assert "TMPDIR" not in os.environ


def test_a_missing_place_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_disk, "SHARED_MEMORY", tmp_path / "missing")
    use_memory()
    assert "TMPDIR" not in os.environ
