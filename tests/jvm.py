"""How the JVMs of the tests run: they live for seconds, so the start counts more than the speed."""

import os

QUICK_START = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""No threads of a collector, no optimizing compiler, and Spark's own classes are not verified."""


def start_quickly() -> None:
    """Let every driver of this process and its children run so, unless configured otherwise.

    Unlike JDK_JAVA_OPTIONS, Spark's own variables print nothing. The second one is for the JVM that
    only puts the command line of the first together.
    """
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(name, QUICK_START)
