"""The columns of the data files of an archive."""

import pyarrow as pa

from firetrail.pipeline.lakes.lake_manifest import LakeLayout
from firetrail.pipeline.source.schema import arrow_schema

PROPERTIES_OPEN = pa.field("properties_open", pa.bool_())
"""Whether the last property lacks its separator, as RocketMQ 4.9.1 to 5.1.4 write it."""
RECORD = pa.field("record", pa.binary())
"""The whole record if the other columns do not determine all of its bytes, else null."""
FULL_SCHEMA: pa.Schema = arrow_schema().append(PROPERTIES_OPEN).append(RECORD)
DAY = pa.field("day", pa.date32())


def file_schema(*, topic: bool) -> pa.Schema:
    """Return the columns of a data file; the topic can be left out if it is part of the path."""
    if topic:
        return FULL_SCHEMA
    return FULL_SCHEMA.remove(FULL_SCHEMA.get_field_index("topic"))


def schema_of(layout: LakeLayout, *, topic_column: bool) -> pa.Schema:
    """Return the columns of a data file in a layout; ``topic_column`` is that of the table."""
    return file_schema(topic=topic_column or layout is LakeLayout.DAY)
