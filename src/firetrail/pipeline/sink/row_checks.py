"""Checks of rows that the sink cannot write; errors name the row and the remedy."""

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.errors import IllegalMessageError
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.sink.tag_checks import check_tags


def check_rows(batch: pa.RecordBatch, first_row: int, max_level: int, remedy: str) -> None:
    """Raise IllegalMessageError for the first row that cannot be written.

    ``first_row`` is the number of the batch's first row among the rows of its task. ``remedy`` says
    what to do if more than ``max_level`` delay levels are needed.
    """
    check_tags(batch, first_row)
    names = batch.schema.names
    if "keys" in names:
        _check_keys(batch.column("keys"), first_row)
    if "sys_flag" in names:
        _check_flags(batch.column("sys_flag"), first_row)
    if "delay_level" in names:
        _check_levels(batch.column("delay_level"), first_row, max_level, remedy)


def _check_keys(keys: pa.Array, first_row: int) -> None:
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        return
    nulls = pc.indices_nonzero(pc.is_null(keys.flatten()))
    for row in pc.list_parent_indices(keys).take(nulls[:1]).to_pylist():
        raise IllegalMessageError(
            "keys",
            f"{keys[row].as_py()!r} in row {first_row + row} of the partition: a key cannot be "
            "null; drop the nulls with array_compact(keys)",
        )


def _check_flags(flags: pa.Array, first_row: int) -> None:
    """Refuse compressed bodies of rows that were read: they would be written without the flag."""
    if not pa.types.is_integer(flags.type):
        return
    compressed = pc.not_equal(pc.bit_wise_and(flags, pa.scalar(COMPRESSED, flags.type)), 0)
    for row in pc.indices_nonzero(pc.fill_null(compressed, False))[:1].to_pylist():
        raise IllegalMessageError(
            "body",
            f"of row {first_row + row} of the partition is compressed according to its sys_flag, "
            "and the sink writes bodies as they are: read the rows with the option decompress=true",
        )


def _check_levels(levels: pa.Array, first_row: int, max_level: int, remedy: str) -> None:
    wrong = pc.or_(pc.less(levels, 0), pc.greater(levels, max_level))
    for row in pc.indices_nonzero(pc.fill_null(wrong, False))[:1].to_pylist():
        raise IllegalMessageError(
            "delay_level",
            f"{levels[row].as_py()} in row {first_row + row} of the partition: the levels are 1 to "
            f"{max_level}, and 0 or null for no delay; {remedy}",
        )
