"""The programs of examples/clients for stock clients do what they promise."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from interop.peer import missing_tool
from interop.servers import jars
from interop.stock import HERE, client_environment, create_topics, firetrail_up, needs, output

NEEDS_JAVA = False
CLIENTS = HERE.parent / "examples" / "clients"


def _java(_: Path) -> Sequence[str | Path]:
    if tool := missing_tool():
        pytest.skip(f"{tool} is not on this machine")
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", jars("v5"), CLIENTS / "HelloJava.java"]


def _go(_: Path) -> Sequence[str | Path]:
    needs("go")
    return [client_environment("go-example") / "client"]


def _node(folder: Path) -> Sequence[str | Path]:
    needs("npm")
    modules = client_environment("node") / "node_modules"
    (folder / "node_modules").symlink_to(modules)
    return ["node", shutil.copy(CLIENTS / "hello_node.js", folder)]


def _cpp(_: Path) -> Sequence[str | Path]:
    python = client_environment("cpp") / "venv" / "bin" / "python"
    return [python, CLIENTS / "hello_cpp.py"]


@pytest.mark.parametrize("command", [_java, _go, _node, _cpp])
def test_hello(command: Callable[[Path], Sequence[str | Path]], tmp_path: Path) -> None:
    program = command(tmp_path)
    with firetrail_up(tmp_path) as namesrv:
        asyncio.run(create_topics(namesrv, "HelloNode"))
        printed = output([*program, namesrv], tmp_path)
    got = Counter(line for line in printed.splitlines() if line.startswith("got "))
    assert got == Counter(f"got hello {n}" for n in range(3))
