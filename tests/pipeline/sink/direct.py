"""The writers of the sink, used without Spark."""

from pathlib import Path

import pyarrow as pa

from firetrail.pipeline.sink import sink_columns, store_writers


def rows_of(*bodies: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": ["T"] * len(bodies), "body": list(bodies)})


def stream_writer(root: Path, tmp_path: Path, **options: str) -> store_writers.StreamWriter:
    """Return the writer of a stream whose rows are staged in a folder of the test."""
    given = {"path": str(root), "writeId": "w", **options}
    return store_writers.StreamWriter(
        sink_columns.parse_options(given, stream=True), tmp_path / "staged"
    )
