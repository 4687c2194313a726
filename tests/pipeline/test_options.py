"""Options of Spark, decoders and tables: their errors, and the places that list them."""

import pytest

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.decoder_spec import OPTIONS as OF_DECODERS
from firetrail.pipeline.sink.sink_columns import OPTIONS as OF_SINK
from firetrail.pipeline.sink.sink_columns import WIRE_OPTIONS
from firetrail.pipeline.source.source_options import INTERNAL_OPTIONS
from firetrail.pipeline.source.source_options import OPTIONS as OF_SOURCE


def test_an_error_says_must_be_once() -> None:
    """The kind of a value completes "must be"."""
    tables = (OF_DECODERS, OF_SINK, WIRE_OPTIONS)
    listed = (option for table in tables for option in table._by_key.values())
    kinds = {each.name: each.kind for each in (*listed, *OF_SOURCE, *INTERNAL_OPTIONS)}
    assert len(kinds) > 40
    assert not [name for name, kind in kinds.items() if kind.allowed.startswith("must")]


def test_an_error_says_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"timeZone.*Mars.*: must be a time zone, such as Asia"):
        OF_DECODERS["timezone"].parse("Mars")
