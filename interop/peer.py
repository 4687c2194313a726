"""The Java message store as the tests use it: one process per session, answers as values."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firetrail import StoreConfig

Json = dict[str, Any]
Command = str | list[Json]
"""A line of the peer's ``script`` command, or the lines of a spec to write."""

RUN = Path(__file__).parent / "java" / "run.sh"
KILLED = 9
TIMEOUT_S = 120
SURVEYED_AT_ONCE = 40
"""Stores that one process opens: each of 4.9 takes 9 MB and a dozen threads."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Sizes:
    """File sizes of a store, which are passed to the Java store.

    An index file must not fill up within a millisecond: Java names index files by the time in
    milliseconds, and would take the full file for the new one.
    """

    log: int = 4096
    queue: int = 400
    slots: int = 50
    entries: int = 200

    @property
    def options(self) -> list[str]:
        """As options of the peer."""
        named = {
            "--log-size": self.log,
            "--queue-size": self.queue,
            "--slots": self.slots,
            "--entries": self.entries,
        }
        return [text for name, size in named.items() for text in (name, str(size))]

    def config(self, **settings: Any) -> StoreConfig:
        """Return these sizes as settings of Firetrail."""
        return StoreConfig(**settings).for_files(
            commit_log_file_size=self.log,
            consume_queue_file_size=self.queue,
            index_slots=self.slots,
            index_entries=self.entries,
        )


SMALL = Sizes()
FEW = Sizes(log=16_384, queue=200, slots=50, entries=200)
"""5.5.1 recovers at most the last ten files of the log."""


def missing_tool() -> str:
    """Return the name of a tool that the peer needs and the machine lacks, or ""."""
    java = shutil.which("java") or os.environ.get("JAVA_HOME")
    return "java" if not java else "mvn" if not shutil.which("mvn") else ""


@dataclass
class Surveyed:
    """The results for one store: the answers of each command, and why the last one failed."""

    answers: list[list[Json]] = field(default_factory=lambda: [[]])
    failure: str = ""

    def take(self, answer: Json) -> None:
        """Add one line of the peer's output."""
        if "end" in answer:
            self.answers.append([])
        elif "failed" in answer:
            self.failure = answer["failed"]
        elif "store" not in answer:
            self.answers[-1].append(answer)


class Java:
    """The unmodified store of one release line: ``v4`` or ``v5``."""

    def __init__(self, line: str) -> None:
        self.line = line

    def session(
        self,
        store: Path,
        *commands: Command,
        sizes: Sizes = SMALL,
        options: Sequence[str] = (),
        kill: bool = False,
    ) -> list[list[Json]]:
        """Open ``store``, run the commands, shut down or (``kill``) halt; the answer of each."""
        done = subprocess.run(
            self._arguments(store, commands, sizes, *options, *(["--kill"] if kill else [])),
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            env=_environment(),
        )
        assert done.returncode == (KILLED if kill else 0), (done.returncode, done.stderr[-4000:])
        answers: list[list[Json]] = [[]]
        for text in done.stdout.splitlines():
            answer = json.loads(text)
            if "end" in answer:
                answers.append([])
            else:
                answers[-1].append(answer)
        assert len(answers) == len(commands) + 1, done.stderr[-4000:]
        return answers[:-1]

    def survey(
        self,
        stores: Sequence[Path],
        *commands: str,
        sizes: Sizes = SMALL,
        options: Sequence[str] = (),
    ) -> list[Surveyed]:
        """Open many stores, damaged or not, in few processes and run the commands on each."""
        script = stores[0].parent / f"survey.{self.line}.{next(_numbers)}"
        script.write_text("".join(f"{command}\n" for command in commands), encoding="utf-8")
        found: list[Surveyed] = []
        for first in range(0, len(stores), SURVEYED_AT_ONCE):
            some = stores[first : first + SURVEYED_AT_ONCE]
            found += self._survey(some, script, [*sizes.options, *options])
        return found

    def _survey(self, stores: Sequence[Path], script: Path, options: list[str]) -> list[Surveyed]:
        listed = script.with_suffix(f".{next(_numbers)}")
        listed.write_text("".join(f"{store}\n" for store in stores), encoding="utf-8")
        command = [str(RUN), self.line, "survey", "--stores", str(listed), "--file", str(script)]
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            env=_environment("2g"),
        )
        assert not done.returncode, (done.returncode, done.stderr[-4000:])
        found = [Surveyed()]
        for answer in map(json.loads, done.stdout.splitlines()):
            found[-1].take(answer)
            if "store" in answer:
                found.append(Surveyed())
        assert len(found) == len(stores) + 1, done.stderr[-4000:]
        return found[:-1]

    @contextmanager
    def writing(self, store: Path, lines: list[Json]) -> Iterator[list[Json]]:
        """Put the lines, yield the results with the store open, and kill the process at the end."""
        last = {**lines[-1], "pause_ms": 1000 * TIMEOUT_S}
        with subprocess.Popen(
            self._arguments(store, [[*lines, last]], SMALL),
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=_environment(),
        ) as java:
            assert java.stdout is not None
            try:
                yield [json.loads(java.stdout.readline()) for _ in lines]
            finally:
                java.kill()

    def _arguments(
        self, store: Path, commands: Iterable[Command], sizes: Sizes, *options: str
    ) -> list[str]:
        files = store.parent / f"{store.name}.{self.line}.{next(_numbers)}"
        files.mkdir()
        script = files / "script"
        script.write_text("".join(f"{_line(c, files)}\n" for c in commands), encoding="utf-8")
        arguments = [str(RUN), self.line, "script", str(store), "--file", str(script)]
        return [*arguments, *sizes.options, *options]


def _environment(heap: str = "512m") -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "FIRETRAIL_JAVA_HEAP": heap}


def _line(command: Command, files: Path) -> str:
    if isinstance(command, str):
        return command
    spec = files / f"spec-{next(_numbers)}"
    spec.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in command), encoding="utf-8"
    )
    return f"write --spec {spec}"
