"""The sink refuses tags that no filter matches; a store and the client keep them."""

from pathlib import Path

import pyarrow as pa
import pytest

from firetrail import Message, Store
from firetrail.client.consumers.subscription import by_tags
from firetrail.errors import ConfigError, IllegalMessageError
from firetrail.pipeline.sink.tag_checks import check_tags


def batch_of(tags: list[str | None], properties: list[dict[str, str]]) -> pa.RecordBatch:
    kind = pa.map_(pa.string(), pa.string())
    maps = pa.array([list(some.items()) for some in properties], kind)
    return pa.RecordBatch.from_arrays([pa.array(tags, pa.string()), maps], ["tags", "properties"])


def can_be_subscribed(tag: str) -> bool:
    try:
        return tag in by_tags("T", tag).tags_set
    except ConfigError:  # "||" names no tag at all
        return False


@pytest.mark.parametrize("tag", ["a||b", "||", " a", "a ", "a\t", "*", " "])
def test_tags_that_no_filter_matches_are_refused(tag: str) -> None:
    none: dict[str, str] = {}
    with pytest.raises(IllegalMessageError) as caught:
        check_tags(batch_of(["ok", None, tag], [none] * 3), 40)
    assert f"tags: {tag!r} in row 42 of the partition: consumers filter by" in str(caught.value)
    assert "use another tag" in str(caught.value)
    with pytest.raises(IllegalMessageError, match=r"properties\['TAGS'\]: .* in row 1 of"):
        check_tags(batch_of([None] * 2, [{"a": "||"}, {"TAGS": tag}]), 0)
    assert not can_be_subscribed(tag)


@pytest.mark.parametrize("tag", ["a", "a|b", "|", "a b", "**", "", "a*", "метка"])
def test_tags_that_a_filter_matches_are_accepted(tag: str) -> None:
    check_tags(batch_of([tag, None], [{"TAGS": tag}, {"b": " ||"}]), 0)


def test_a_store_keeps_any_tag(tmp_path: Path) -> None:
    """RocketMQ's stores do so, too: reading and copying must not change a tag."""
    with Store.open(tmp_path) as store:
        store.put(Message("T", b"b", tags="a||b"))
        store.wait_dispatched()
        assert [m.tags for m in store.read("T")] == ["a||b"]
