"""A machine of fakes and a small store on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.harness.stepped import stepped_machine
from tests.helpers import Machine, put_all, small_config
from tests.store.recoveries import numbered
from tests.stores import copy_of

from firetrail import FiretrailError, Store

OpenStore = Callable[..., Store]


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Fakes; the test steps their threads if it is marked with ``stepped_threads``."""
    if request.node.get_closest_marker("stepped_threads") is None:
        yield Machine()
    else:
        with stepped_machine() as machine:
            yield machine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_store(machine: Machine, root: Path) -> Iterator[OpenStore]:
    """Opens stores with tiny files on the fakes; those still open are closed at the end."""
    with ExitStack() as stores:

        def close(store: Store) -> None:
            machine.files.heal()
            with suppress(FiretrailError):
                store.close()

        def open_one(path: Path = root, **settings: Any) -> Store:
            store = Store.open(path, small_config(**settings), system=machine.system)
            stores.callback(close, store)
            return store

        yield open_one
    assert not machine.files.open_files


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()


@pytest.fixture
def closed(open_store: OpenStore, root: Path) -> list[int]:
    """A closed store of 10 messages in one file; their physical offsets."""
    store = open_store()
    offsets = put_all(store, numbered(10), keys=["k"])
    store.close()
    return [*offsets, offsets[-1] + offsets[1]]


@pytest.fixture
def v4(tmp_path: Path) -> Path:
    """A copy of a store that Java closed."""
    return copy_of("v4-clean", tmp_path)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A closed store of 40 messages in several files of each kind."""
    with Store.open(tmp_path / "s", small_config(log=2048)) as store:
        put_all(store, [b"%d" % n for n in range(40)], tags="paid", keys=["a", "b", "c"])
    return tmp_path / "s"
