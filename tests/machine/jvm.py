"""The options of the tests' JVMs: they live for seconds, so they have to start fast.

``python -m tests.machine.jvm`` archives the classes that Spark loads for typical work. A JVM maps
such an archive into memory instead of reading and parsing some ten thousand classes, so a session
is there in half the time. ``make setup`` does this once. Everything also works without the archive.
"""

import os
import sys
import tempfile
from pathlib import Path

CLASSES = Path(sys.prefix, "spark-classes.jsa")
"""The archive. A JVM of another version, or one with other jars, ignores it."""

_SETTINGS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -XX:ArchiveRelocationMode=0 "
    "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
)
"""No threads of a collector, no optimizing compiler, Spark's own classes are not verified, pages of
the archive are shared, and nothing is printed about an archive that does not fit."""

QUICK_START = _SETTINGS + (
    f" -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() and " " not in str(CLASSES) else ""
)
"""The options of every JVM that a test starts."""


def start_quickly() -> None:
    """Let every driver of this process and its children run so, unless configured otherwise.

    Unlike JDK_JAVA_OPTIONS, Spark's own variables print nothing. The second one is for the JVM that
    only puts the command line of the first together.
    """
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(name, QUICK_START)


def archive_classes(target: Path = CLASSES) -> None:
    """Run typical work in a JVM that writes an archive of its classes when it ends.

    Args:
        target: The file to write or to replace.
    """
    from firetrail import Message, Store
    from firetrail.pipeline import session

    written = target.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_SETTINGS} -XX:ArchiveClassesAtExit={written}"
    with tempfile.TemporaryDirectory() as folder:
        with Store.open(f"{folder}/store") as store:
            store.put(Message("T", b"x"))
        spark = session("local[2]")
        messages = spark.read.format("rocketmq").load(f"{folder}/store")
        messages.groupBy("topic").count().write.parquet(f"{folder}/counts")
        spark.read.parquet(f"{folder}/counts").orderBy("count").collect()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends, and writes the archive
        gateway.proc.wait(timeout=120)
    written.replace(target)


if __name__ == "__main__":
    archive_classes()
