"""The distributions and their installation, the pins, and builds without a working compiler."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata

import firetrail
from firetrail import kernels

ROOT = Path(__file__).parent.parent


BUILD_FILES = ("LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "setup.py")

IN_THE_SDIST = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.py"}
"""The files of an sdist outside ``src``. setuptools adds ``setup.cfg``."""


def copy_source(folder: Path) -> Path:
    """Copy the files that a build reads, without extension modules that were built in place."""
    copy = folder / "source"
    copy.mkdir()
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    return copy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree to build from. It has Cython's output of an earlier build, if there is one."""
    copy = copy_source(tmp_path)
    generated = ROOT / "build" / "cython"
    if generated.is_dir():
        shutil.copytree(generated, copy / "build" / "cython")
    return copy


def run(command: Sequence[str | Path], **options: Any) -> str:
    """Run a command that must succeed; return its output."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(source: Path, **environment: str) -> Path:
    """Build a wheel without the release tools."""
    script = "import setuptools.build_meta as b; b.build_wheel('dist')"
    run([sys.executable, "-c", script], cwd=source, env=os.environ | environment)
    (built,) = (source / "dist").iterdir()
    return built


@dataclass(frozen=True)
class Release:
    """The two files that ``make wheel`` puts into ``dist/``."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build the distributions once for the whole module; compiling the kernels takes a while."""
    for tool in ("auditwheel", "build"):
        pytest.importorskip(tool, reason=f"{tool} is missing: install the extra release")
    source = copy_source(tmp_path_factory.mktemp("release"))
    run(["make", "distributions", f"TOOLS={sys.executable}"], cwd=source)
    (wheel,) = (source / "dist").glob("*.whl")
    (sdist,) = (source / "dist").glob("*.tar.gz")
    return Release(wheel, sdist)


@pytest.fixture(scope="module")
def installed(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty virtual environment; return the folder of its programs."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(environment, with_pip=True)
    programs = environment / "bin"
    pip: list[str | Path] = [programs / "python", "-m", "pip", "install", "--no-index", "--quiet"]
    run([*pip, release.wheel], env=bare_environment(environment))
    return programs


def bare_environment(folder: Path) -> dict[str, str]:
    """Return environment variables with which neither a compiler nor a package index is found."""
    nothing = folder / "nothing"
    nothing.mkdir(exist_ok=True)
    return {"PATH": str(nothing), "HOME": str(folder), "CC": "false", "PIP_CONFIG_FILE": os.devnull}


needs_the_release = pytest.mark.xdist_group("release")
"""Keeps the tests that use the distributions in one worker, so that they are built once."""


def kernel_sources() -> set[str]:
    return {
        path.relative_to(ROOT / "src").as_posix()
        for folder in kernels.kernel_folders()
        for path in Path(folder).iterdir()
        if path.suffix in (".py", ".pxd")
    }


def test_the_installed_version_is_that_of_the_sources() -> None:
    assert version("firetrail") == firetrail.__version__


@needs_the_release
@pytest.mark.slow
def test_the_wheel_runs_with_an_old_c_library(release: Release) -> None:
    """The tag was manylinux_2_17 with GCC 12. With a newer compiler it may be somewhat newer."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = re.search(rf"-{python}-{python}-manylinux.*_2_(\d+)_\w+\.whl$", release.wheel.name)
    assert found is not None, release.wheel.name
    assert int(found[1]) <= 28


@needs_the_release
@pytest.mark.slow
def test_the_wheel_has_kernels_sources_and_data_files(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA")))
    assert kernel_sources() <= names
    compiled = {name.split(".")[0] for name in names if name.endswith(".so")}
    assert compiled == {
        "firetrail/_cyutility",
        *(name.replace(".", "/") for name in kernels.kernel_names()),
    }
    assert not {name for name in names if name.endswith((".c", ".pyc"))}
    assert {
        "firetrail/py.typed",
        "firetrail/pipeline/log4j2.properties",
        "firetrail/pipeline/jobs/report/page.html",
        "pyspark_rocketmq/__init__.py",  # by which Spark finds the data source
    } <= names
    Metadata.from_email(metadata, validate=True)


@needs_the_release
@pytest.mark.slow
def test_the_sdist_has_what_a_build_needs_and_nothing_else(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    sources = {name for name in files if name.startswith("src/")}
    assert {f"src/{name}" for name in kernel_sources()} <= sources
    assert {name.rpartition(".")[2] for name in sources if ".egg-info/" not in name} == {
        *("html", "properties", "pxd", "py", "typed")
    }
    assert set(files) - sources - {"setup.cfg"} == IN_THE_SDIST


@needs_the_release
@pytest.mark.slow
def test_an_installed_wheel_runs_compiled(installed: Path, tmp_path: Path) -> None:
    told = run([installed / "firetrail", "--version"], env=bare_environment(tmp_path))
    assert told == f"firetrail {firetrail.__version__} (kernels: compiled)\n"


@needs_the_release
@pytest.mark.slow
def test_an_installed_wheel_stores_sends_and_receives(installed: Path, tmp_path: Path) -> None:
    script = """
import asyncio
from firetrail import Message, Store
from firetrail.broker import Broker
from firetrail.client import Message as Outgoing, Producer, SimpleConsumer

with Store.open("data") as store:
    store.put(Message("orders", b"stored", keys=["o-1"]))
    store.wait_dispatched()
    print(store.query("orders", "o-1")[0].body.decode())

async def main():
    async with Broker.running() as broker:
        async with Producer(broker.namesrv, "shop") as producer:
            await producer.send(Outgoing("orders", b"received"))
        async with SimpleConsumer(broker.namesrv, "kitchen", {"orders": "*"}) as consumer:
            while not (received := await consumer.receive(wait_s=5)):
                pass
            print(received[0].body.decode())

asyncio.run(main())
"""
    told = run(
        [installed / "python", "-c", script],
        cwd=tmp_path,
        env=bare_environment(tmp_path),
        timeout=120,
    )
    assert told == "stored\nreceived\n"


@pytest.mark.slow
def test_wheel_without_a_compiler(source: Path) -> None:
    """The build succeeds. The package runs uncompiled, and its version line says so."""
    wheel = build_wheel(source, CC="no-such-compiler")
    installed = source.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert not list(installed.rglob("*.so"))
    told = run(
        [sys.executable, "-m", "firetrail", "--version"],
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert "(kernels: pure Python" in told


@pytest.mark.slow
def test_a_single_kernel_that_does_not_compile_fails_the_build(source: Path) -> None:
    """Otherwise all kernels would silently run uncompiled."""
    kept = ("host_text", "checksum")  # two kernels suffice, and these compile fast
    for path in (source / "src" / "firetrail").glob("*/kernels/[!_]*.py"):
        if path.stem not in kept:
            path.unlink()
    compiler = source / "cc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *host_text.c*) exit 1;; esac\nexec cc "$@" -O0\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    with pytest.raises(AssertionError, match=r"host_text did not compile.*FIRETRAIL_NO_KERNELS=1"):
        build_wheel(source, CC=str(compiler))


def pins(lines: list[str]) -> dict[str, str]:
    """Return normalised name and version of each pin; fail on lines of another form."""
    found = {}
    for line in lines:
        name, number = line.split("==")
        found[re.sub(r"[-_.]+", "-", name).lower()] = number
    return found


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_tools_are_pinned_alike() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = pins([line for line in constraints if line and not line.startswith("#")])
    for extra in ("dev", "release"):
        assert pins(project["optional-dependencies"][extra]).items() <= pinned.items()
    for requirement in project["optional-dependencies"]["spark"]:
        parts = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", requirement)
        assert parts is not None, requirement
        assert numbers(pinned[parts[1]]) >= numbers(parts[2])


def test_the_core_has_no_runtime_dependency() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["dependencies"] == []


def test_the_readme_names_the_pythons_of_the_classifiers() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [line.removeprefix(prefix) for line in project["classifiers"] if prefix in line]
    assert project["requires-python"] == f">=3.{minors[0]}"
    *others, newest = [f"3.{minor}" for minor in minors]
    told = f"3.{minors[0]} or later (tested on {', '.join(others)} and {newest};"
    assert told in (ROOT / "README.md").read_text(encoding="utf-8")
