"""The defect of Spark that docs/design/spark-filter-pushdown.md describes still exists."""

from collections.abc import Iterator

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.clone import ROOT
from tests.docs.pages import blocks

PAGE = ROOT / "docs/design/spark-filter-pushdown.md"
FLAG = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def flag_as_it_was(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(FLAG)


@pytest.mark.usefixtures("flag_as_it_was")
def test_the_reproduction(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = (block.text for block in blocks(PAGE) if block.language == "py")
    exec(compile(code, str(PAGE), "exec"), {"__name__": "reproduction"})
    printed = capsys.readouterr().out.split()
    assert printed[:2] == ["100", "40"]
    if printed[2] == "100":
        version = pyspark.__version__
        pytest.fail(f"Spark {version} keeps no pushed filters any more: say so in {PAGE.name}")
    assert printed[2] == "40"
