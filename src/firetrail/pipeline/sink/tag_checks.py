"""Checks for tags that no consumer could filter by.

A subscription such as ``a || b`` is split at ``||``, its tags are trimmed, and ``*`` alone means
all tags. RocketMQ's remoting clients nevertheless send any tag, and stores keep it. The sink
refuses tags that no subscription can match.
"""

import pyarrow as pa
import pyarrow.compute as pc

from firetrail.errors import IllegalMessageError
from firetrail.format.properties import TAGS

_UNFILTERABLE = r"\|\||^[\x00-\x20]|[\x00-\x20]$|^\*$"
"""``||``, leading or trailing whitespace as Java's ``trim`` defines it, or ``*`` alone."""


def check_tags(batch: pa.RecordBatch, first_row: int) -> None:
    """Raise IllegalMessageError for the first row with a tag that consumers cannot filter by.

    ``first_row`` is the number of the batch's first row among the rows of its task.
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
            "'a || b', so a tag must not contain '||', be '*', or begin or end with a blank; use "
            "another tag, or a property of your own",
        )
