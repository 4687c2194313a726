"""Runs the tests on the Pythons of other Debian releases: ``make pythons``.

Each release is unpacked with debootstrap into a folder of its own, and everything runs inside a
chroot of that folder: the virtual environment, the compilation of the kernels, and the tests. The
folders are kept, so a second run only copies the sources, compiles and tests. Packages that have no
wheel for a Python are left out, and the tests that need them are skipped.

This needs root (for chroot), debootstrap, and about 2 GB of disk per Python.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clone import ROOT, files

CACHE = ROOT / "build" / "pythons"
SUITES = ("trixie", "sid")
TOOLS = ("ca-certificates", "gcc", "git", "libc6-dev", "make", "procps")
EXTRAS = ("auth", "broker", "compression", "grpc", "peers", "spark", "delta", "iceberg", "s3")
"""The extras whose packages are installed only if there is a wheel."""
SDIST_ONLY = ("pyspark",)
"""Packages of these extras that are written in Python and published as a source archive."""
HOST_FILES = ("etc/hosts", "etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")
"""The machine's settings for the network, which the chroots need as well.

Spark looks up the address of the machine's own name, which is often in ``/etc/hosts`` only.
"""
SOURCES = "firetrail"
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


@dataclass(frozen=True)
class Outcome:
    """One line of the summary."""

    python: str
    kernels: str
    counts: dict[str, int]
    missing: list[str]

    def line(self) -> str:
        """Format the outcome in the columns of the summary."""
        failed = sum(self.counts.get(name, 0) for name in ("failed", "error", "errors"))
        passed, skipped = (self.counts.get(name, 0) for name in ("passed", "skipped"))
        missing = ", ".join(self.missing) or "-"
        return f"{self.python:<8}{self.kernels:<13}{passed:>7}{failed:>8}{skipped:>9}  {missing}"


HEADER = f"{'Python':<8}{'kernels':<13}{'passed':>7}{'failed':>8}{'skipped':>9}  no wheel for"


def counts_of(output: str) -> dict[str, int]:
    """Return the counts in the last line of pytest's output; empty if it did not get that far."""
    lines = output.strip().splitlines() or [""]
    return {name: int(count) for count, name in COUNT.findall(lines[-1])}


def newest_first(names: Sequence[str]) -> list[str]:
    """Return the versions (``3.14``) in a list of Debian's packages, the newest first."""
    found = {match[1] for name in names if (match := re.match(r"python(3\.\d+)-venv\b", name))}
    return sorted(found, key=lambda version: int(version.partition(".")[2]), reverse=True)


def optional_packages() -> dict[str, str]:
    """Return the requirement of each package of the extras, by the name of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return {re.split(r"[^\w-]", line)[0]: line for line in listed}


def logged(command: Sequence[str], log: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and output, which ``log`` has from the first line on."""
    with log.open("w+", encoding="utf-8") as file:
        done = subprocess.run(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        file.seek(0)
        return done.returncode, file.read()


class Chroot:
    """A Debian release in a folder."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.root = CACHE / suite

    def unpack(self) -> None:
        """Unpack the release, unless an earlier run has done it."""
        if (self.root / "complete").exists():
            return
        shutil.rmtree(self.root, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *("debootstrap", "--variant=minbase", f"--include={','.join(TOOLS)}"),
                *(self.suite, str(self.root), mirror()),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (self.root / "complete").touch()

    def refresh(self) -> None:
        """Copy the sources of this clone, and the machine's network settings."""
        for name in HOST_FILES:
            if (Path("/") / name).exists():
                shutil.copyfile(Path("/") / name, self.root / name)
        target = self.root / SOURCES
        shutil.rmtree(target, ignore_errors=True)
        for path in files():
            copy = target / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)

    def run(self, *command: str, log: Path | None = None) -> tuple[int, str]:
        """Run a command among the sources; return its exit code and output.

        The mounts are private to the command, so none is left behind, whatever happens to it.
        """
        root = shlex.quote(str(self.root))
        inside = f"cd /{SOURCES} && {shlex.join(command)}"
        script = (
            f"mount --rbind /proc {root}/proc && mount --rbind /dev {root}/dev && "
            f"exec chroot {root} sh -c {shlex.quote(inside)}"
        )
        return logged(
            ["unshare", "--mount", "sh", "-c", script],
            log or CACHE / f"{self.suite}.log",
            os.environ | {"HOME": "/environments", "LANG": "C.UTF-8"},
        )

    def must(self, *command: str) -> str:
        """Run a command that must succeed; return its output."""
        code, output = self.run(*command)
        if code:
            sys.exit(f"{self.suite}: {shlex.join(command)} failed:\n{output}")
        return output

    def versions(self) -> list[str]:
        """Return the versions of Python that the release has, the newest first."""
        packages = self.must("apt-cache", "--names-only", "search", "^python3[.][0-9]+-venv$")
        return newest_first(packages.splitlines())

    def test(self, version: str, arguments: Sequence[str]) -> Outcome:
        """Install Firetrail for a version of Python, compile the kernels and run the tests."""
        name = f"python{version}"
        apt = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends")
        self.must(*apt, name, f"{name}-dev", f"{name}-venv")
        python = f"/environments/{version}/bin/python"
        if not (self.root / python.lstrip("/")).is_symlink():
            self.must(name, "-m", "venv", f"/environments/{version}")
        pip = (python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt")
        self.must(*pip, "setuptools", "Cython")
        extra = ("--no-build-isolation", "--editable", ".[dev,release]")
        self.must("env", "FIRETRAIL_NO_KERNELS=1", *pip, *extra)
        missing = []
        for package, requirement in optional_packages().items():
            source = () if package in SDIST_ONLY else ("--only-binary=:all:",)
            if self.run(*pip, *source, requirement)[0]:
                missing.append(package)
        self.must(python, "setup.py", "--quiet", "build_ext", "--inplace")
        kernels = self.must(python, "-m", "firetrail", "--version")
        tests = (python, "-m", "pytest", "-q", "-rs", "-n", "2", "--dist", "loadgroup")
        _, output = self.run(*tests, *arguments, log=CACHE / f"{version}.log")
        state = "compiled" if "(kernels: compiled)" in kernels else "pure Python"
        return Outcome(version, state, counts_of(output), missing)


def mirror() -> str:
    """Return the address of the Debian mirror that this machine's apt uses."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if not listed:
        sys.exit("apt has no Debian mirror configured; run apt-get update, or add one")
    return listed[0]


def main() -> int:
    """Run the tests on each Python; return 1 if a test failed anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="+", default=SUITES, help="Debian releases")
    parser.add_argument("--only", nargs="+", metavar="VERSION", help="of their Pythons, only these")
    parser.add_argument("arguments", nargs="*", help="arguments for pytest, after --")
    args = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("make pythons needs root and debootstrap (apt-get install debootstrap)")
    outcomes: list[Outcome] = []
    for suite in args.suites:
        tested = {outcome.python for outcome in outcomes}
        if args.only and tested >= set(args.only):
            break  # without unpacking another release
        chroot = Chroot(suite)
        chroot.unpack()
        chroot.refresh()  # commands run among the sources, the first one too
        for version in chroot.versions():
            if version in tested or (args.only and version not in args.only):
                continue
            chroot.refresh()  # without the extension modules of the Python before
            print(
                f"testing Python {version} of {suite}; the log is {CACHE / version}.log", flush=True
            )
            outcomes.append(chroot.test(version, args.arguments))
    if not outcomes:
        sys.exit(f"{', '.join(args.suites)} have no Python {', '.join(args.only)}")
    print(f"The logs are in {CACHE}.")
    print(HEADER, *(outcome.line() for outcome in outcomes), sep="\n")
    good = all(
        outcome.counts.get("passed") and not {"failed", "error", "errors"} & set(outcome.counts)
        for outcome in outcomes
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
