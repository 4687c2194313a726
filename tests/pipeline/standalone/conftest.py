"""The cluster that all tests here share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.extras import require

if TYPE_CHECKING:
    from tests.pipeline.standalone.bench import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require("pyspark")
    from tests.pipeline.standalone.bench import standalone

    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started
