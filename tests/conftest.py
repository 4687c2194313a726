"""The setup of all tests: Hypothesis's profiles, time limits, and the kernels in the header."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Generator, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.extras import ModuleWithExtras, require
from tests.harness import late_events, late_threads, time_limits, untested
from tests.harness.memory_disk import use_memory
from tests.machine.jvm import start_quickly

from firetrail import kernels

if TYPE_CHECKING:
    from tests.tls.authority import Authority

# The same examples in every run, so that a failure always belongs to the change under test.
settings.register_profile("ci", max_examples=60, derandomize=True, deadline=None, print_blob=True)
# New examples in every run, for hunting: pytest --hypothesis-profile=explore
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("ci")
start_quickly()
use_memory()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority, which issues certificates into a folder of its own."""
    require("cryptography")
    from tests.tls.authority import Authority

    return Authority(tmp_path_factory.mktemp("authority"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that look for tests that depend on the speed of the machine."""
    late_events.add_option(parser)
    late_threads.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Limit the time of tests, and make threads late if asked.

    Choose the seed of an exploring run, so that it can be printed.
    """
    config.pluginmanager.register(time_limits)
    config.pluginmanager.register(untested)
    late_events.configure(config)
    late_threads.configure(config)
    if config.option.hypothesis_profile == "explore" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the group of a test in its id, where ``--dist loadgroup`` looks for it.

    pytest-xdist does the same, but pytest 9.2 ignores its attempt, and the groups with it
    (https://github.com/pytest-dev/pytest-xdist/issues/1386).

    Slow tests begin first, so that no worker is left with one of them at the end.
    """
    if not config.getoption("loadgroup", False):
        return
    if not _is_shuffled(config):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is not None and not item.nodeid.endswith(f"@{group.args[0]}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the modules and items of all tests out of every collection of garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _is_shuffled(config: pytest.Config) -> bool:
    return bool(config.pluginmanager.hasplugin("randomly"))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Skip modules that import an optional package that is not installed."""
    module: pytest.Module = ModuleWithExtras.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the garbage collector away from reports of failures.

    A report parses the source of the test. Before Python 3.11.8 that ends the whole run with an
    INTERNALERROR if a finalizer parses something else during that time. Tasks that a failed test
    has left do so: asyncio logs their exceptions (https://github.com/python/cpython/issues/106905).
    """
    if call.excinfo is None or isinstance(call.excinfo.value, pytest.skip.Exception):
        return (yield)
    gc.collect()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how to repeat the run; at the end, because -q drops the header."""
    if config.option.hypothesis_seed is not None:
        terminalreporter.write_line(
            f"repeat with --hypothesis-seed={config.option.hypothesis_seed}"
        )
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(
            f"random order: repeat with make test ORDER=random SEED={seed} "
            f"(pytest -p randomly --randomly-seed={seed})"
        )
    for warning in _stale_kernels():
        terminalreporter.write_line(warning, yellow=True)


def pytest_report_header() -> str:
    """Report which kernels are under test."""
    return f"kernels: {'compiled' if kernels.COMPILED else 'pure Python'}"


def _stale_kernels() -> list[str]:
    """Compiled kernels older than their source: the results above are those of the old code."""
    if not kernels.COMPILED:
        return []
    extensions = [
        path
        for folder in kernels.kernel_folders()
        for path in Path(folder).iterdir()
        if path.name.endswith(tuple(EXTENSION_SUFFIXES))
    ]
    return [
        f"{source.name} was edited after it was compiled: make setup"
        for extension in extensions
        if (source := extension.with_name(extension.name.split(".")[0] + ".py")).exists()
        and source.stat().st_mtime > extension.stat().st_mtime
    ]


@pytest.fixture(autouse=True)
def random_numbers(request: pytest.FixtureRequest) -> None:
    """Begin every test with the same random numbers; in random order, with those of the seed."""
    if not _is_shuffled(request.config):
        random.seed(0)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the log level, which commands that serve set for the whole process."""
    logger = logging.getLogger("firetrail")
    level = logger.level
    yield
    logger.setLevel(level)
