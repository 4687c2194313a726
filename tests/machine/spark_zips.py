"""The Python code of Spark's workers, compiled.

Spark starts its Python processes with ``pyspark.zip``, which holds sources only, so each of them
compiles half of PySpark before it connects to Spark. ``python -m tests.machine.spark_zips`` adds
the compiled modules. ``make setup`` does this once, in the environment of the tests. Everything
also works without it, but each process needs 0.7 s of CPU time instead of 0.2 s, and on a very busy
machine it does not connect within the ten seconds that Spark allows.
"""

import importlib.util
import marshal
from importlib.metadata import files
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

UNCHECKED_HASH = (1).to_bytes(4, "little")
"""The flags of a compiled module that is used without a look at its source."""


def compiled(source: bytes, name: str) -> bytes:
    """Return the content of the ``.pyc`` file of a module."""
    code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    return importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source) + code


def add_compiled(archive: Path) -> int:
    """Add the compiled modules to an archive of sources; return how many were missing."""
    with ZipFile(archive, "a", ZIP_STORED) as opened:
        known = set(opened.namelist())
        sources = (name for name in known if name.endswith(".py") and "/tests/" not in name)
        missing = [name for name in sources if f"{name}c" not in known]
        for name in sorted(missing):
            opened.writestr(f"{name}c", compiled(opened.read(name), f"{archive}/{name}"))
    return len(missing)


def archives() -> list[Path]:
    """Return the archives of the installed PySpark."""
    return [
        Path(str(found.locate()))
        for found in files("pyspark") or ()
        if found.suffix == ".zip" and found.parent.name == "lib"
    ]


if __name__ == "__main__":
    for each in archives():
        add_compiled(each)
