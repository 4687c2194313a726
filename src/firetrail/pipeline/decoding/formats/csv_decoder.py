"""The decoder of CSV: the fields of each line, in the order of the columns.

An empty field is null, or, in a column of text, an empty text. Numbers and times are written as in
:mod:`~firetrail.pipeline.decoding.values.text_values`.
"""

import csv
import io
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.body_decoder import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    body_list,
    plain_rows,
)
from firetrail.pipeline.decoding.formats.json_decoder import NO_BODY
from firetrail.pipeline.decoding.schema.arrow_types import ddl_type
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.decoding.values.json_values import in_column
from firetrail.pipeline.decoding.values.text_values import BodyError, Converter, from_text


@dataclass(frozen=True, slots=True)
class CsvRules:
    """The choices of the user.

    Args:
        columns: The columns in the order of the fields.
        delimiter: The letter between fields. Default: a comma.
        quote: The letter around fields that contain delimiters, doubled in them. Default: ``"``.
        null_text: The field that is null in any column. Default: None, there is none.
        zone: The zone of times that name none. Default: UTC.
        tombstones: Whether an empty body deletes the row of the message's key. Default: False.
    """

    columns: TableSchema
    delimiter: str = ","
    quote: str = '"'
    null_text: str | None = None
    zone: tzinfo = UTC
    tombstones: bool = False


class CsvDecoder(BodyDecoder):
    """Rows of CSV, one per line of a body. A message is a row for each line, or a reject.

    Args:
        schema: The known columns, which may be more, in another order, and wider.
        rules: The choices of the user.
    """

    def __init__(self, schema: TableSchema, rules: CsvRules) -> None:
        self._rules = rules
        self._schema = schema.widened(rules.columns).schema
        self._fields: list[tuple[str, str, Converter]] = []
        for name in rules.columns.names:
            column, kind = self._schema.own_name(name), self._schema.type_of(name)
            assert column is not None and kind is not None
            read = from_text(kind, rules.zone)
            if read is None:
                allowed = f"CSV has no fields of type {ddl_type(kind)}; use a simple type"
                raise ConfigError("columns", name, allowed)
            self._fields.append((name, column, read))
        kinds = {column: self._schema.type_of(column) for _, column, _ in self._fields}
        self._texts = {column for column, kind in kinds.items() if kind == pa.string()}

    def decode(self, bodies: Bodies) -> Decoded:
        rows: list[dict[str, Any]] = []
        messages: list[int] = []
        operations: list[Operation] = []
        rejects: list[Reject] = []
        for at, body in enumerate(body_list(bodies)):
            deletes = self._rules.tombstones and not body
            try:
                found = [{}] if deletes else self._rows(body or b"")
            except BodyError as error:
                rejects.append(Reject(at, str(error)))
                continue
            rows += found
            messages += [at] * len(found)
            operations += [Operation.DELETE if deletes else Operation.UPSERT] * len(found)
        batch = pa.RecordBatch.from_pylist(rows, self._schema.arrow)
        part = plain_rows(batch, pa.array(messages, pa.int32()), pa.array(operations, pa.int8()))
        return Decoded((part,), tuple(rejects))

    def _rows(self, body: bytes) -> list[dict[str, Any]]:
        if not body.strip(b"\r\n"):
            raise BodyError(NO_BODY)
        rules = self._rules
        try:
            lines = io.StringIO(body.decode(), newline="")
            reader = csv.reader(
                lines, delimiter=rules.delimiter, quotechar=rules.quote, strict=True
            )
            return [self._row(fields) for fields in reader if fields]
        except UnicodeDecodeError as error:
            raise BodyError(f"not UTF-8 at byte {error.start}") from None
        except csv.Error as error:
            raise BodyError(f"not CSV: {error}") from None

    def _row(self, fields: list[str]) -> dict[str, Any]:
        if len(fields) != len(self._fields):
            raise BodyError(f"has {len(fields)} fields, but there are {len(self._fields)} columns")
        row: dict[str, Any] = {}
        for text, (name, column, read) in zip(fields, self._fields, strict=True):
            if text == self._rules.null_text or not (text or column in self._texts):
                row[column] = None
                continue
            try:
                row[column] = read(text)
            except BodyError as error:
                raise in_column(name, error) from None
        return row
