"""The text of a key means the same in a body and in the keys of a message that deletes its row."""

from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from firetrail.pipeline.decoding.spec import BodyFormat, DecoderSpec
from firetrail.pipeline.decoding.table_schema import TableSchema
from firetrail.pipeline.tables.keyed_rows import with_keys

TEXTS = [
    *[("binary", text) for text in ("AgM=", "AA==", "~")],
    *[("boolean", text) for text in ("true", "False", "1", "yes")],
    *[("bigint", text) for text in ("7", "+7", "007", "7.0", "1e3", " 7", "0x7", str(1 << 63))],
    *[("smallint", text) for text in ("32767", "32768")],
    *[("decimal(10,2)", text) for text in ("1.5", "1.50", "+1.5", "1.555", "15e-1")],
    *[("date", text) for text in ("2026-03-01", "2026-3-1", "2026-02-30", "2026-03-01 00:00")],
    *[("timestamp", text) for text in ("2026-03-01 08:00", "2026-03-01T08:00:00Z", "2026-03-01")],
    *[("timestamp_ntz", text) for text in ("2026-03-01 08:00:00.1234567", "2026-03-01T08:00Z")],
    *[("string", text) for text in ("x", " 7", "ü")],
]


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_key_has_the_same_value_in_a_body_and_in_a_delete(kind: str, text: str) -> None:
    columns = TableSchema.from_ddl(f"id {kind}")
    zone = ZoneInfo("Asia/Shanghai")
    spec = DecoderSpec(BodyFormat.CSV, columns=columns, zone=zone, tombstones=True)
    decoded = spec.decoder(columns).decode([f'"{text}"'.encode(), b""])
    batch = pa.RecordBatch.from_pydict({"keys": [[], [text]]})
    keyed = with_keys(batch, decoded.parts[0], ["id"], zone)
    if decoded.rejects:
        assert [reject.message for reject in keyed.rejects] == [1]
    else:
        assert not keyed.rejects
        assert keyed.keys[0] == keyed.keys[1]
