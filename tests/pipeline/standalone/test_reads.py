"""Reading on a cluster: relative paths, and a worker that does not see the store."""

import re
import shutil
from zipfile import ZipFile

import pytest
from tests.pipeline.source.shelf import consumed, fill, some_messages
from tests.pipeline.standalone.bench import Bench, RemoteError
from tests.stores import records

pytestmark = pytest.mark.slow
MESSAGES = 300


def refused(bench: Bench, path: str, function: str, *arguments: object, **options: str) -> str:
    """Assert that a call fails because a worker sees another ``path``; return the executor."""
    with pytest.raises(RemoteError) as caught:
        bench.call(function, *arguments, **options)
    assert caught.value.kind == "NotSharedError", caught.value
    text = caught.value.message
    assert path in text
    assert "the driver and all workers must have the same folder at this path" in text
    named = re.search(r"the worker \S+ \(executor (\d+)\)", text)
    assert named is not None, text
    return named[1]


def test_a_relative_path_is_the_drivers(bench: Bench) -> None:
    fill(bench.cwd / "rel", some_messages(MESSAGES))
    wanted = len(consumed(bench.cwd / "rel"))
    assert bench.call("read", "rel") == wanted
    deeper = bench.cwd / "deeper"
    fill(deeper / "moved", some_messages(40))
    bench.call("chdir", deeper)
    assert bench.call("read", "moved") == len(consumed(deeper / "moved"))
    bench.call("chdir", bench.cwd)


def test_what_everybody_sees(bench: Bench) -> None:
    """Each way of reading returns every message once, on executors in separate processes."""
    store, place = bench.common / "seen", bench.common / "seen-copied"
    fill(store, some_messages(150))
    with ZipFile(bench.common / "seen.zip", "w") as archive:
        for path in (store / "commitlog").iterdir():
            archive.write(path, f"archive/commitlog/{path.name}")
    queues = [row["physical_offset"] for row in consumed(store)]
    everything = records(store)
    keyed = [record.physical_offset for record in everything if "k77" in record.keys]
    assert bench.call("executors") == 2
    assert bench.call("places", store) == queues
    assert bench.call("places", f"zip://archive::{bench.common}/seen.zip") == queues
    assert bench.call("places", store, view="log") == [r.physical_offset for r in everything]
    assert bench.call("places", store, key="k77", subscribe="usual") == keyed
    bench.call("stream", store, place)
    assert bench.call("parquet", place / "rows") == queues


def test_a_worker_without_the_store(bench: Bench) -> None:
    fill(bench.common / "absent", some_messages(MESSAGES))
    path = bench.show("absent", "driver", "home")
    lenient = {"mode": "permissive", "failOnDataLoss": "false"}
    assert bench.is_away(refused(bench, path, "read", path))
    refused(bench, path, "read", path, **lenient)
    refused(bench, path, "read", path, view="log", **lenient)
    refused(bench, path, "read", path, view="damage")


def test_a_worker_with_an_older_copy_or_another_store(bench: Bench) -> None:
    machine = fill(bench.common / "stale", some_messages(MESSAGES))
    shutil.copytree(bench.common / "stale", bench.trees["away"] / "stale")
    fill(bench.common / "stale", some_messages(20, MESSAGES), machine)
    path = bench.show("stale", "driver", "home")
    refused(bench, path, "read", path, mode="permissive")
    fill(bench.common / "other", some_messages(MESSAGES))
    fill(bench.trees["away"] / "other", some_messages(MESSAGES, 1))
    path = bench.show("other", "driver", "home")
    refused(bench, path, "read", path)


def test_a_stream_goes_on_after_the_worker_sees_the_store(bench: Bench) -> None:
    fill(bench.common / "followed", some_messages(MESSAGES))
    path, place = bench.show("followed", "driver", "home"), bench.common / "copied"
    refused(bench, path, "stream", path, place)
    bench.show("followed", "away")
    bench.call("stream", path, place)
    wanted = [row["physical_offset"] for row in consumed(bench.common / "followed")]
    assert bench.call("parquet", place / "rows") == wanted
