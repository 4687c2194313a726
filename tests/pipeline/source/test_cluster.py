"""The main paths once more on a cluster: several executors, each a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.pipeline.source.shelf import consumed, fill, some_messages
from tests.stores import records

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, sys
from firetrail.pipeline import session
store, archive, place = sys.argv[1:]
spark = session("local-cluster[2,1,1024]", **{"spark.executor.memory": "1g"})

def load(path, **options):
    frame = spark.read.format("rocketmq").options(minPartitions="6", **options).load(path)
    return sorted(row[0] for row in frame.select("physical_offset").collect())

found = {
    "queue": load(store),
    "log": load(store, view="log"),
    "remote": load(archive),
    "key": load(store, key="k77", subscribe="usual"),
}
hosts = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
found["executors"] = len(hosts) - 1
query = (
    spark.readStream.format("rocketmq")
    .options(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    .load(store)
    .writeStream.option("checkpointLocation", place + "/checkpoint")
    .trigger(availableNow=True)
    .start(place + "/rows", format="parquet")
)
query.awaitTermination()
rows = spark.read.parquet(place + "/rows").select("physical_offset").collect()
found["stream"] = sorted(row[0] for row in rows)
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.slow
def test_local_cluster(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, some_messages(150))
    with ZipFile(tmp_path / "store.zip", "w") as archive:
        for path in (store / "commitlog").iterdir():
            archive.write(path, f"archive/commitlog/{path.name}")
    url = f"zip://archive::{tmp_path}/store.zip"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), url, str(tmp_path / "out")],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    queues = [row["physical_offset"] for row in consumed(store)]
    everything = records(store)
    assert found == {
        "queue": queues,
        "remote": queues,
        "stream": queues,
        "log": [record.physical_offset for record in everything],
        "key": [record.physical_offset for record in everything if "k77" in record.keys],
        "executors": 2,
    }
