"""Keys, types and names of tables mean the same wherever they are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.decoder_spec import OPTIONS, BodyFormat, DecoderSpec
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.source.source_options import parse_options
from firetrail.pipeline.tables.files.table_columns import TableColumns
from firetrail.pipeline.tables.keyed.keyed_rows import with_keys
from firetrail.pipeline.tables.table_options import TableOptions

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


@pytest.mark.parametrize(
    ("text", "names"),
    [("id", ["id"]), (" id , n", ["id", "n"]), ("id,id", ["id"]), ("", None), ("id,", None)],
)
def test_a_list_of_names_is_read_in_one_way(text: str, names: list[str] | None) -> None:
    readers: list[Callable[[str], Any]] = [
        lambda text: TableOptions(upsert=text).fixed(None)["upsert"],
        OPTIONS["key"].parse,
        OPTIONS["tables"].parse,
        lambda text: parse_options({"path": "/x", "subscribe": text}).subscribe,
    ]
    for read in readers:
        if names is None:
            with pytest.raises(ConfigError):
                read(text)
        else:
            assert list(read(text)) == names


def test_a_column_that_is_named_twice_in_another_case_is_one_column() -> None:
    assert TableOptions(upsert="id,ID").fixed(None)["upsert"] == ["id"]
    assert OPTIONS["key"].parse("id,ID") == ("id",)


@pytest.mark.parametrize("text", [str(1 << 63), str(-(1 << 63) - 1), str(1 << 64), "1" + "0" * 25])
def test_a_whole_number_has_the_same_type_whether_it_is_seen_or_described(text: str) -> None:
    number = int(text)
    word = "maximum" if number > 0 else "minimum"
    described = {"properties": {"c": {"type": "integer", word: number}}}
    seen = DecoderSpec(BodyFormat.JSON).infer([f'{{"c": {text}}}'.encode()])[None]
    assert TableSchema.from_json_schema(json.dumps(described)) == seen


@pytest.mark.parametrize("prefix", ["m ", "a,", "=", "(", "x\t", "{"])
def test_a_prefix_has_letters_that_a_column_may_have(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"prefix = .*must have no space"):
        TableOptions(prefix=prefix).fixed(None)
    columns = TableColumns(TableSchema.of({prefix: pa.string()}), "_")
    assert columns.names[prefix] != prefix


def test_errors_name_the_option_that_has_the_columns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^columns = .*no such type"):
        DecoderSpec.from_options({"format": "csv", "columns": "id bigintt"})
    for text in ("id bigintt", '{"properties": {"a": true}}', "id int, ID int"):
        path = tmp_path / "columns"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"^schemaFile = "):
            DecoderSpec.from_options({"format": "json", "schemaFile": str(path)})
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"^schemaFile = "):
        DecoderSpec.from_options({"format": "avro", "schemaFile": str(path)})
