"""The commands of Firetrail, run on stores that the tests hand over."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from interop.peer import Json

from firetrail.cli.main import main


class Output(NamedTuple):
    """The output of a command, line by line, and its exit code."""

    code: int
    lines: list[Json]


def run(name: str, store: Path, *arguments: str) -> Output:
    """Run ``firetrail NAME STORE ARGUMENTS``, which prints JSON lines."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main([name, str(store), *arguments])
    assert not errors.getvalue(), errors.getvalue()
    return Output(code, [json.loads(line) for line in out.getvalue().splitlines()])


def check_clean(store: Path, messages: int) -> None:
    """Check that ``fsck`` finds this number of messages and no problems, and changes nothing."""
    before = contents(store)
    code, (report,) = run("fsck", store, "--json")
    assert report["problems"] == []
    assert (code, report["ok"], report["messages"]) == (0, True, messages)
    assert contents(store) == before


def contents(store: Path) -> dict[str, bytes | None]:
    """Return every file of a store, and every folder."""
    return {
        path.relative_to(store).as_posix(): path.read_bytes() if path.is_file() else None
        for path in store.rglob("*")
    }
