"""The cluster that all tests here share."""

from collections.abc import Iterator

import pytest
from tests.pipeline.standalone.bench import Bench, standalone


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started
