"""One Spark session and one object store for all tests of the pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.pipeline.lakes.object_store import ObjectStore

ROOT = Path(__file__).parent.parent.parent
_BUCKETS = count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests with the session in one xdist worker, and all with a cluster in another.

    Tests with a long program of their own run beside the cluster: the session has more to do.
    """
    for item in items:
        for fixture, group in (("spark", "spark"), ("bench", "cluster")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session on two cores, with settings for a fast start and for short queries.

    Spark interprets queries here: to compile one costs more than to run it on some hundred rows.
    """
    require("pyspark")
    from firetrail.pipeline import session

    if request.config.getoption("loadgroup", False):
        # One session per run: this fails if another worker has started one.
        (tmp_path_factory.getbasetemp().parent / "spark-session").touch(exist_ok=False)
    # Tasks may be functions of test modules, and must import the sources under test.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    started = session("local[2]", **settings)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    require("botocore", "moto")
    from tests.pipeline.lakes.object_store import ObjectStore

    with ObjectStore().serving() as store:
        yield store


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A new bucket that the environment has access to."""
    import botocore.session
    from tests.pipeline.lakes.object_store import SECRET

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": object_store.url,
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "aws-credentials"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_BUCKETS)}"
    client = botocore.session.get_session().create_client("s3")
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    client.close()
    return name
