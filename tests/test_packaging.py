"""The pins, and builds without a working compiler; ``make interop`` tests the release."""

import os
import re
import shutil
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.machine.builds import ROOT, copy_source, run

import firetrail


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source tree to build from. It has Cython's output of an earlier build, if there is one."""
    copy = copy_source(tmp_path)
    generated = ROOT / "build" / "cython"
    if generated.is_dir():
        shutil.copytree(generated, copy / "build" / "cython")
    return copy


def build_wheel(source: Path, **environment: str) -> Path:
    """Build a wheel without the release tools."""
    script = "import setuptools.build_meta as b; b.build_wheel('dist')"
    run([sys.executable, "-c", script], cwd=source, env=os.environ | environment)
    (built,) = (source / "dist").iterdir()
    return built


def test_the_installed_version_is_that_of_the_sources() -> None:
    assert version("firetrail") == firetrail.__version__


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
    # Two kernels suffice, and these compile fast. The constants of kernels need the third.
    kept = ("host_text", "checksum", "properties")
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
    for extra in ("dev", "peers", "release"):
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
