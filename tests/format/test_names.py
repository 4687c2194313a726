"""File names and topic names, both ways."""

from datetime import datetime
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError, IllegalMessageError
from firetrail.format import names
from firetrail.format.names import (
    check_topic,
    index_name,
    is_folder_name,
    parse_index_name,
    parse_queue_id,
    parse_segment_name,
    queue_folder,
    segment_name,
)


def test_segment_name_has_20_digits() -> None:
    assert segment_name(0) == "00000000000000000000"
    assert segment_name(1073741824) == "00000000001073741824"


@given(st.integers(0, names.OFFSET_MAX))
def test_segment_name_round_trip(offset: int) -> None:
    assert len(segment_name(offset)) == 20
    assert parse_segment_name(segment_name(offset)) == offset


@pytest.mark.parametrize("offset", [-1, names.OFFSET_MAX + 1])
def test_segment_name_out_of_range(offset: int) -> None:
    with pytest.raises(FormatError, match=f"segment start at offset 0: {offset} is not in"):
        segment_name(offset)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0000000000000000000",
        "000000000000000000000",
        "0000000000000000000x",
        "-0000000000000000001",
        "00000000000000000 00",
        "\u0660" * 20,
        "9" * 20,  # beyond int64
        "00000000000000000000.tmp",
    ],
)
def test_not_a_segment_name(name: str) -> None:
    assert parse_segment_name(name) is None


def test_index_name_of_the_golden_store() -> None:
    created = datetime(2026, 11, 15, 6, 58, 56, 335_000)
    assert index_name(created) == "20261115065856335"
    assert parse_index_name("20261115065856335") == created


@given(st.datetimes())
def test_index_name_round_trip(created: datetime) -> None:
    name = index_name(created)
    assert len(name) == 17
    assert parse_index_name(name) == created.replace(microsecond=created.microsecond // 1000 * 1000)


@pytest.mark.parametrize(
    "name", ["", "2026111506585633", "20261315065856335", "20261115065856x35", "202611150658563350"]
)
def test_not_an_index_name(name: str) -> None:
    assert parse_index_name(name) is None


def test_folders_of_queues_are_named_as_by_java() -> None:
    assert queue_folder("T1", 0) == "consumequeue/T1/0"
    assert queue_folder("%RETRY%group+topic", 3) == "consumequeue/%RETRY%group+topic/3"


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0b", "x" * 256, "é" * 128]
)
def test_queue_folder_never_leaves_the_store(topic: str) -> None:
    assert not is_folder_name(topic)
    with pytest.raises(IllegalMessageError, match=r"topic: .* cannot be the name of a folder"):
        queue_folder(topic, 0)


@given(st.text(min_size=1, max_size=20))
def test_a_folder_name_is_one_part_of_a_path(name: str) -> None:
    if is_folder_name(name):
        assert PurePosixPath("root", name).parts == ("root", name)


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_a_queue_id_out_of_range_is_refused(queue_id: int) -> None:
    with pytest.raises(IllegalMessageError, match=f"queue id: {queue_id} is not in 0..2147483647"):
        queue_folder("T1", queue_id)


@given(st.integers(0, names.QUEUE_ID_MAX))
def test_queue_id_round_trip(queue_id: int) -> None:
    assert parse_queue_id(str(queue_id)) == queue_id


@pytest.mark.parametrize("name", ["", "01", "-1", "x", "1x", "2147483648", "9" * 5000, "\u0663"])
def test_other_names_are_not_queue_ids(name: str) -> None:
    assert parse_queue_id(name) is None


@pytest.mark.parametrize(
    "topic", ["T1", "a-b_c|d%e", "x" * 127, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250]
)
def test_valid_topics_are_accepted(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("", "topic: is empty"),
        ("a/b", "topic: 'a/b' has a character other than letters, digits and % | _ -"),
        ("../../topic2020", "has a character other than"),
        ("a\\b", "has a character other than"),
        ("a.b", "has a character other than"),
        ("a\n", "has a character other than"),
        ("é", "has a character other than"),
        ("x" * 128, "has 128 bytes, the limit is 127"),
        ("%RETRY%" + "x" * 249, "has 256 bytes, the limit is 255"),
        ("%DLQ%" + "x" * 251, "has 256 bytes, the limit is 255"),
    ],
)
def test_invalid_topics_are_refused_with_the_rule(topic: str, rule: str) -> None:
    with pytest.raises(IllegalMessageError) as caught:
        check_topic(topic)
    assert rule in str(caught.value)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=300))
def test_a_good_topic_is_a_good_folder(topic: str) -> None:
    try:
        check_topic(topic)
    except IllegalMessageError:
        return
    assert is_folder_name(topic)


@pytest.mark.parametrize(
    ("topic", "retries", "dead_letters"),
    [
        (names.retry_topic("g"), "g", None),
        (names.dead_letter_topic("g"), None, "g"),
        (names.pop_retry_topic("T", "g"), "g_T", None),
        (names.pop_retry_topic_v2("T", "g"), "g", None),
        ("g", None, None),
        ("", None, None),
    ],
)
def test_topics_that_belong_to_a_group(
    topic: str, retries: str | None, dead_letters: str | None
) -> None:
    assert names.group_of_retries(topic) == retries
    assert names.group_of_dead_letters(topic) == dead_letters


@pytest.mark.parametrize("name", ["T", "x" * 127, "", "x" * 128, "a b", "T\n", "%RETRY%g"])
def test_topics_of_clients_are_topics(name: str) -> None:
    """Only the topics of a group may be longer."""
    if names.is_topic(name):
        check_topic(name)
    else:
        with pytest.raises(IllegalMessageError):
            check_topic(name)


def test_a_topic_of_a_group_may_be_longer() -> None:
    long = "%RETRY%" + "x" * 248
    check_topic(long)
    assert not names.is_topic(long)


@pytest.mark.parametrize(("topic", "group"), [("T", "g"), ("%RETRY%g", "g"), ("T", ""), ("", "g")])
def test_keys_of_groups_in_topics(topic: str, group: str) -> None:
    assert names.parse_group_key(names.group_key(topic, group)) == (topic, group)


def test_a_key_without_a_group() -> None:
    assert names.parse_group_key("T") == ("T", "")
