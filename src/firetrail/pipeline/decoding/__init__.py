"""Decoders of message bodies: typed rows for tables.

::

    spec = DecoderSpec.from_options({"format": "json"})       # driver; can be pickled
    schema = spec.own_schema() or spec.infer(sample)[None]    # shown to users as schema.ddl
    decoded = spec.decoder(schema).decode(bodies)             # worker; bodies: a column of Arrow
    for part in decoded.parts:                                # one per table
        part.table                                            # None, or the database's table
        part.rows, part.messages, part.operations             # equally long
        part.schema                                           # `schema`, widened by this batch
    decoded.rejects                                           # (message, reason)

Rows always have the widened schema. The driver merges the schemas of all workers with
:meth:`TableSchema.widened`. If the result is more than what the workers were given, it decodes once
more with it, so that all rows have the same columns; conflicts that appear only then are rejects.
Workers need not agree beforehand.
"""

from firetrail.pipeline.decoding.body_decoder import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    TableName,
    TableRows,
)
from firetrail.pipeline.decoding.decoder_spec import BodyFormat, DecoderSpec
from firetrail.pipeline.decoding.schema.table_schema import EMPTY, TableSchema, Widening, merged

__all__ = [
    "EMPTY",
    "Bodies",
    "BodyDecoder",
    "BodyFormat",
    "Decoded",
    "DecoderSpec",
    "Operation",
    "Reject",
    "TableName",
    "TableRows",
    "TableSchema",
    "Widening",
    "merged",
]
