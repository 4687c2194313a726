"""The release: the distributions of ``make wheel``, and their installation without a compiler."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from tests.machine.builds import BUILD_FILES, ROOT, copy_source, run

import firetrail
from firetrail import kernels

NEEDS_JAVA = False

IN_THE_SDIST = BUILD_FILES | {"PKG-INFO"}
"""The files of an sdist outside ``src``. setuptools adds ``setup.cfg``."""


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


def kernel_sources() -> set[str]:
    return {
        path.relative_to(ROOT / "src").as_posix()
        for folder in kernels.kernel_folders()
        for path in Path(folder).iterdir()
        if path.suffix in (".py", ".pxd")
    }


def test_the_wheel_runs_with_an_old_c_library(release: Release) -> None:
    """The tag was manylinux_2_17 with GCC 12. With a newer compiler it may be somewhat newer."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = re.search(rf"-{python}-{python}-manylinux.*_2_(\d+)_\w+\.whl$", release.wheel.name)
    assert found is not None, release.wheel.name
    assert int(found[1]) <= 28


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
        "firetrail/proxy/schema/messages.binpb",
        "pyspark_rocketmq/__init__.py",  # by which Spark finds the data source
    } <= names
    Metadata.from_email(metadata, validate=True)


def test_the_sdist_has_what_a_build_needs_and_nothing_else(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    sources = {name for name in files if name.startswith("src/")}
    assert {f"src/{name}" for name in kernel_sources()} <= sources
    assert {name.rpartition(".")[2] for name in sources if ".egg-info/" not in name} == {
        *("binpb", "html", "properties", "proto", "pxd", "py", "pyi", "typed")
    }
    assert set(files) - sources - {"setup.cfg"} == IN_THE_SDIST


def test_an_installed_wheel_runs_compiled(installed: Path, tmp_path: Path) -> None:
    told = run([installed / "firetrail", "--version"], env=bare_environment(tmp_path))
    assert told == f"firetrail {firetrail.__version__} (kernels: compiled)\n"


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
