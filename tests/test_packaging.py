"""What is built and installed: the distributions, the pins, and a build without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import firetrail
from firetrail import kernels

ROOT = Path(__file__).parent.parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what a build reads, without what was compiled in place."""
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    return copy


def build(source: Path, kind: str, **environment: str) -> Path:
    """Build the ``wheel`` or the ``sdist`` of ``source``; the file."""
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as b; b.build_{kind}('dist')"],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").iterdir()
    return built


def kernel_sources() -> set[str]:
    return {
        path.relative_to(ROOT / "src").as_posix()
        for folder in kernels.kernel_folders()
        for path in Path(folder).iterdir()
        if path.suffix in (".py", ".pxd")
    }


def kernels_in(names: list[str]) -> set[str]:
    """The files of kernels in a distribution, from the package's folder on."""
    found = {name[name.index("firetrail/") :] for name in names if "/kernels/" in name}
    return {name for name in found if not name.endswith("/")}


def test_installed_version() -> None:
    assert version("firetrail") == firetrail.__version__


def test_wheel_has_the_kernels_sources(source: Path) -> None:
    wheel = build(source, "wheel", FIRETRAIL_NO_KERNELS="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert kernels_in(names) == kernel_sources()
    assert "firetrail/py.typed" in names


def test_wheel_has_what_spark_looks_for(source: Path) -> None:
    """Beside the code: the module by which Spark finds the data source, logging, the report."""
    wheel = build(source, "wheel", FIRETRAIL_NO_KERNELS="1")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "pyspark_rocketmq/__init__.py" in names
    assert "firetrail/pipeline/log4j2.properties" in names
    assert "firetrail/pipeline/jobs/report/page.html" in names


def test_sdist_has_the_kernels_sources(source: Path) -> None:
    with tarfile.open(build(source, "sdist", FIRETRAIL_NO_KERNELS="1")) as archive:
        names = archive.getnames()
    assert kernels_in(names) == kernel_sources()
    assert any(name.endswith("/setup.py") for name in names)


@pytest.mark.slow
def test_wheel_without_a_compiler(source: Path) -> None:
    """The build goes on, and what it made works uncompiled and says so."""
    wheel = build(source, "wheel", CC="no-such-compiler")
    installed = source.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert not list(installed.rglob("*.so"))
    told = subprocess.run(
        [sys.executable, "-m", "firetrail", "--version"],
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "(kernels: pure Python" in told


@pytest.mark.slow
def test_a_single_kernel_that_does_not_compile_fails_the_build(source: Path) -> None:
    """Otherwise all kernels would run uncompiled, and nobody would be told."""
    kept = ("host_text", "checksum")  # enough to see it, and quickly compiled
    for path in (source / "src" / "firetrail").glob("*/kernels/[!_]*.py"):
        if path.stem not in kept:
            path.unlink()
    compiler = source / "cc"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *host_text.c*) exit 1;; esac\nexec cc "$@" -O0\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    with pytest.raises(AssertionError, match=r"host_text did not compile.*FIRETRAIL_NO_KERNELS=1"):
        build(source, "wheel", CC=str(compiler))


def pins(lines: list[str]) -> dict[str, str]:
    """Normalised name and version of every pin; whatever is not ``name==version`` fails."""
    found = {}
    for line in lines:
        name, number = line.split("==")
        found[re.sub(r"[-_.]+", "-", name).lower()] = number
    return found


def release(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_tools_are_pinned_alike() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = pins([line for line in constraints if line and not line.startswith("#")])
    assert pins(project["optional-dependencies"]["dev"]).items() <= pinned.items()
    for requirement in project["optional-dependencies"]["spark"]:
        parts = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", requirement)
        assert parts is not None, requirement
        assert release(pinned[parts[1]]) >= release(parts[2])


def test_no_runtime_dependency() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["dependencies"] == []
