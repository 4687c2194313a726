"""A standalone cluster: a master, two workers and a driver, each in a separate process.

Below the folder :attr:`Bench.view` driver, worker ``home`` and worker ``away`` see a tree of their
own each, as if other disks were mounted there. Where mount namespaces are allowed, that is what
happens. Elsewhere the path itself does it: it leads through ``/proc/self/cwd``, and each of the
three runs below a folder of its own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from tests.machine.jvm import QUICK_START

from firetrail.pipeline.java import find_java, java_home

ROOT = Path(__file__).parents[3]
START_S = 120.0
"""How long a process may take to say that it is ready; a loaded machine is slow."""
_SPARK = Path(pyspark.__file__).parent
_SCALA = re.compile(r"scala-library-(\d+\.\d+)\.")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class RemoteError(Exception):
    """An error of a function in the driver, with its class name and message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Bench:
    """The cluster as tests see it."""

    def __init__(self, folder: Path, driver: subprocess.Popen[str], view: str) -> None:
        self.trees = {name: folder / name / "view" for name in ("driver", "home", "away")}
        """The folders that each machine sees as :attr:`view`."""
        self.common = folder / "common"
        """The folder that all machines share."""
        self.cwd = folder / "driver/run/cwd"
        """The working directory of the driver; no worker runs there."""
        self.view = view
        self._folder = folder
        self._driver = driver

    def is_away(self, executor: str) -> bool:
        """Whether an executor with this id belongs to worker ``away``."""
        return any(path.name == executor for path in self._folder.glob("away/app-*/*"))

    def show(self, name: str, *viewers: str) -> str:
        """Show ``common/name`` to some of the three in the view, and return its path there."""
        for viewer in viewers:
            (self.trees[viewer] / name).symlink_to(self.common / name)
        return f"{self.view}/{name}"

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of :mod:`tests.pipeline.standalone.driver` in the driver's process."""
        assert self._driver.stdin is not None and self._driver.stdout is not None
        request = json.dumps([function, list(map(_plain, arguments)), options])
        self._driver.stdin.write(request + "\n")
        self._driver.stdin.flush()
        answer = self._driver.stdout.readline()
        assert answer, "the driver has ended"
        kind, result = json.loads(answer)
        if kind is not None:
            raise RemoteError(kind, result)
        return result


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@contextmanager
def standalone(folder: Path) -> Iterator[Bench]:
    """Start the cluster, and stop it at the end of the block."""
    for name in ("driver/view", "home/view", "away/view", "common", "driver/run/cwd"):
        (folder / name).mkdir(parents=True)
    view, unshare = _separate(folder)
    with ExitStack() as started:
        log = folder / "master.log"
        master = ("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        _start(started, log, master, folder)
        address = _wait(log, _MASTER)[1]
        logs = []
        for name in ("home", "away"):
            logs.append(folder / f"{name}.log")
            options = ("--work-dir", str(folder / name), "--cores", "1", "--memory", "512m")
            ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            worker = ("worker.Worker", *ports, *options, address)
            mount = f'mount --bind "{folder / name / "view"}" "{view}" && exec "$@"'
            prefix = (*unshare, "sh", "-c", mount, "sh") if unshare else ()
            _start(started, logs[-1], worker, folder / name, prefix)
        for log in logs:
            _wait(log, _REGISTERED)
        driver = started.enter_context(
            _process(
                [sys.executable, "-m", "tests.pipeline.standalone.driver", address],
                folder / "driver/run/cwd",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        yield Bench(folder, driver, view)


def _separate(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the path of the view, and the command that gives a process its own mounts, if any."""
    real = folder / "driver/view"
    for unshare in (("unshare", "-m"), ("unshare", "-r", "-m")):
        tried = [*unshare, "mount", "--bind", str(folder / "home/view"), str(real)]
        if shutil.which("unshare") and subprocess.run(tried, capture_output=True).returncode == 0:
            return str(real), unshare
    return "/proc/self/cwd/../../view", ()  # executors run two folders below the worker's


def _start(
    started: ExitStack, log: Path, command: tuple[str, ...], cwd: Path, prefix: tuple[str, ...] = ()
) -> None:
    java = [
        str(find_java(os.environ).binary),
        *QUICK_START.split(),
        "-Xmx128m",
        "-cp",
        _class_path(),
    ]
    output = started.enter_context(log.open("wb"))
    line = [*prefix, *java, f"org.apache.spark.deploy.{command[0]}", *command[1:]]
    started.enter_context(_process(line, cwd, stdout=output, stderr=subprocess.STDOUT))


@contextmanager
def _process(command: list[str], cwd: Path, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a process until the end of the block; processes that started later end first."""
    environment = os.environ | {
        "JAVA_HOME": str(java_home(find_java(os.environ))),  # Spark looks nowhere else
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": _scala_version(),  # Spark's scripts set it for workers
    }
    with subprocess.Popen(command, cwd=cwd, env=environment, **options) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.terminate()
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _class_path() -> str:
    """Return that of Spark's launcher, for which classes are archived."""
    logging = next(_SPARK.glob("jars/slf4j-api-*.jar"))
    return f"{_SPARK}/conf:{logging}:{_SPARK}/jars/*"


def _scala_version() -> str:
    names = (_SCALA.match(path.name) for path in (_SPARK / "jars").iterdir())
    return next(found[1] for found in names if found)


def _wait(log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if found := pattern.search(log.read_text(errors="replace")):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{log.name}: no {pattern.pattern!r}:\n{log.read_text()[-4000:]}")
