"""One measurement of Firetrail in a process of its own: ``python -m benchmarks.worker NAME JSON``.

Prints the figures as one line of JSON. With ``"kill": true`` among the arguments the process then
kills itself, which leaves its store as a crash does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from benchmarks.puts import Figures, batch, put, put_tasks, put_threads
from benchmarks.reads import get, query, scan_and_copy
from benchmarks.start import fill, lag, reopen
from benchmarks.timers import wait_and_deliver

COMMANDS: dict[str, Callable[..., Figures]] = {
    command.__name__: command
    for command in (
        put,
        batch,
        put_threads,
        put_tasks,
        get,
        query,
        scan_and_copy,
        fill,
        reopen,
        lag,
        wait_and_deliver,
    )
}


def _command(name: str) -> Callable[..., Figures]:
    """Return the function of a command.

    Those of the pipeline are imported on demand: importing Spark would slow down all others.
    """
    if name.startswith("spark_"):
        from benchmarks import plans, spark_jobs

        command: Callable[..., Figures] = getattr(
            spark_jobs if hasattr(spark_jobs, name) else plans, name
        )
        return command
    return COMMANDS[name]


def main() -> None:
    """Run the command that the arguments name."""
    name, text = sys.argv[1:]
    arguments = json.loads(text)
    figures = _command(name)(**arguments)
    print(json.dumps(figures), flush=True)
    if arguments.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
