"""Tags that no consumer could filter for.

A subscription is ``a || b``: split at ``||``, with each tag trimmed, and ``*`` alone stands for
all. RocketMQ's remoting clients send any tag nevertheless, and stores keep it; the sink refuses
what could never be asked for.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.errors import IllegalMessageError
from firetrail.format.properties import TAGS

_UNFILTERABLE = r"\|\||^[\x00-\x20]|[\x00-\x20]$|^\*$"
"""``||``, a blank at an end as Java trims it, or ``*`` alone."""


def check_tags(batch: pa.RecordBatch, first_row: int) -> None:
    """Raise IllegalMessageError for the first row with a tag that cannot be filtered for.

    ``first_row`` is the number of the batch's first row among those of its task.
    """
    names = batch.schema.names
    if "tags" in names:
        _check(batch.column("tags"), "tags", first_row)
    if "properties" in names:
        found = pc.map_lookup(batch.column("properties"), pa.scalar(TAGS), "last")
        _check(found, f"properties['{TAGS}']", first_row)


def _check(tags: pa.Array, column: str, first_row: int) -> None:
    wrong = pc.fill_null(pc.match_substring_regex(tags, _UNFILTERABLE), False)
    for row in pc.indices_nonzero(wrong)[:1].to_pylist():
        raise IllegalMessageError(
            column,
            f"{tags[row].as_py()!r} in row {first_row + row} of the partition: consumers filter by "
            "'a || b', so a tag holds no '||', is not '*' and has no blanks around it; use another "
            "tag, or a property of your own",
        )
