"""The hashes of lists of tags that are kept: how many, how long, and how much memory."""

import pytest
from tests.broker.filter.kept_bytes import kept_bytes

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter import message_selector
from firetrail.broker.filter.message_selector import CACHED_MAX, LISTS_MAX, parse_filter
from firetrail.format.values.javahash import java_hash
from firetrail.remoting.messages.bodies import BY_TAG


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    message_selector._by_tags.cache_clear()


def parsed(text: str) -> frozenset[int] | None:
    return parse_filter(BrokerConfig(), text, BY_TAG).tags


def test_a_limited_number_of_lists_is_kept() -> None:
    for number in range(LISTS_MAX + 10):
        parsed(f"tag{number}")
    assert message_selector._by_tags.cache_info().currsize == LISTS_MAX == 1024
    for number in (0, LISTS_MAX + 9):  # the oldest has made room, the newest is there
        parsed(f"tag{number}")
    assert message_selector._by_tags.cache_info().hits == 1


def test_long_lists_are_not_kept() -> None:
    longest, longer = "x" * CACHED_MAX, "x" * (CACHED_MAX + 1)
    assert parsed(longer) == frozenset({java_hash(longer)})
    assert message_selector._by_tags.cache_info().currsize == 0
    assert parsed(longest) == frozenset({java_hash(longest)})
    assert message_selector._by_tags.cache_info().currsize == 1


def test_kept_lists_have_a_limited_size() -> None:
    def parse_one(number: int) -> None:
        text = "||".join(chr(0x4E00 + number + each) for each in range(CACHED_MAX // 3))
        parsed(text)

    sample = 8
    assert kept_bytes(parse_one, sample) * LISTS_MAX // sample < 50 << 20
