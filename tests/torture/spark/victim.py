"""The processes in which jobs of the pipeline run that are killed (``jobs.py``).

``python -m tests.torture.spark.victim JOB FOLDER MASTER`` runs one on a Spark of its own. Without
arguments it reads ``JOB<tab>FOLDER<tab>PORT<tab>SECRET`` from its input, line by line, and forks a
driver for each: on the Spark whose gateway that is, or without Spark if there is no port. A life
costs milliseconds then. The answer is a line with its process id, and one with how it ended.
"""

import gc
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from tests.machine.jvm import QUICK_START
from tests.torture.spark.jobs import JOBS, Alone

ROOT = Path(__file__).parents[3]


def main(job: str, folder: str, master: str) -> None:
    from firetrail.pipeline import session

    logging.disable()
    spark = session(
        master,
        **{
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.executor.extraJavaOptions": QUICK_START,
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    JOBS[job].run(spark, Path(folder))
    spark.stop()


def serve() -> None:
    """Run jobs, the driver of each in a process of its own."""
    import deltalake  # noqa: F401  # imported once, for all of the processes
    import pyiceberg.catalog.sql
    import pyiceberg.io.pyarrow  # noqa: F401

    gc.freeze()
    for line in sys.stdin:
        job, folder, port, secret = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            drive(job, Path(folder), port, secret)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def drive(job: str, folder: Path, port: str, secret: str) -> None:
    code = 1
    try:
        JOBS[job].run(attached(port, secret) if port else Alone(), folder)
        code = 0
    except BaseException:
        folder.with_name("failed").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def attached(port: str, secret: str) -> SparkSession:
    """Return the session of a Spark that another process has started."""
    os.environ |= {"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    java = jvm.org.apache.spark.SparkContext.getOrCreate()
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(java)
    conf = SparkConf(_jvm=jvm, _jconf=context.getConf())
    shared = SparkContext(gateway=gateway, jsc=context, conf=conf)
    return SparkSession(shared)


if __name__ == "__main__":
    from tests.torture.spark import victim

    if len(sys.argv) > 1:
        victim.main(*sys.argv[1:])
    else:
        victim.serve()
