"""The filter of a consumer, and reading the matching messages of a queue."""

from functools import lru_cache
from typing import NamedTuple

from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.filter.consumer_filters import ConsumerFilters
from firetrail.broker.filter.sql92 import SqlFilter, parse
from firetrail.errors import ConfigError, FormatError, RequestError
from firetrail.format.record import decode_message
from firetrail.remoting.messages.bodies import is_tag_filter
from firetrail.remoting.wire.codes import ResponseCode
from firetrail.settings.settings_table import Live
from firetrail.store.broker_store import BrokerStore
from firetrail.store.reads.reader import tag_hashes
from firetrail.store.results import GetResult, GetStatus

SCANNED_MAX = 800
"""Maximum number of messages that one request with a property filter examines."""
COST_MAX = 20_000
"""Maximum product of the messages that one request examines and the terms of its filter: some 40 ms
of the event loop."""
TAGS_MAX = 32 << 10
"""Maximum length of a list of tags."""
CACHED_MAX = 1 << 10
"""Maximum length of a list of tags whose hashes are cached."""
LISTS_MAX = 1024
"""Maximum number of lists of tags whose hashes are cached: at most about 50 MiB."""

_FOUND = GetStatus.FOUND
_NO_MATCH = GetStatus.NO_MATCHED_MESSAGE


class MessageFilter(NamedTuple):
    """The filter of a consumer: by hashes of tags, by properties, or none."""

    tags: frozenset[int] | None = None
    properties: SqlFilter | None = None
    group: str = ""
    """The group whose registered filter it is; empty for the filter of a single request."""


ALL = MessageFilter()


def parse_filter(config: BrokerConfig, text: str, kind: str | None) -> MessageFilter:
    """Return the filter of an expression; RequestError if it is invalid or not allowed."""
    if is_tag_filter(kind):
        check_tags(text)
        try:
            return _by_tags(text) if len(text) <= CACHED_MAX else _hashed(text)
        except ConfigError as error:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    if not config.property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind:.20}; "
            "set enablePropertyFilter=true",
        )
    try:
        return MessageFilter(None, parse(text))
    except FormatError as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


class MessageSelector:
    """Reads the messages of queues that match a filter."""

    def __init__(
        self, store: BrokerStore, config: Live[BrokerConfig], filters: ConsumerFilters | None = None
    ) -> None:
        """Prepare to read from a store.

        Args:
            store: The store.
            config: The settings of the broker.
            filters: The registered filters, if their bitmaps are stored with the messages.
        """
        self._store = store
        self._live = config
        self.filters = filters

    def parsed(self, text: str, kind: str | None) -> MessageFilter:
        """Return the filter of an expression, as the present settings allow."""
        return parse_filter(self._live.current, text, kind)

    def get(
        self, topic: str, queue_id: int, offset: int, count: int, selection: MessageFilter
    ) -> GetResult:
        """Return at most ``count`` matching messages of a queue, starting at ``offset``."""
        if selection.properties is None:
            return self._store.reads.get_hashed(topic, queue_id, offset, count, selection.tags)
        end = offset + min(SCANNED_MAX, max(COST_MAX // selection.properties.terms, 1))
        bits = None
        if self.filters is not None and selection.group:
            bits = self.filters.bits(topic, selection.group, selection.properties.text)
        while True:
            result = self._store.reads.get_hashed(topic, queue_id, offset, count, None, bits)
            if result.status is not _FOUND:
                return result
            matching = []
            for number, buffer in enumerate(result.buffers):
                try:
                    properties = decode_message(buffer).properties
                except FormatError:  # its properties cannot be read
                    self._store.reads.note_damaged(topic, queue_id, offset, number, None, bits)
                    continue
                if selection.properties.matches(properties):
                    matching.append(buffer)
            offset = result.next_offset
            if matching or offset >= min(end, result.max_offset):
                return GetResult(
                    _FOUND if matching else _NO_MATCH,
                    offset,
                    result.min_offset,
                    result.max_offset,
                    matching,
                    sum(map(len, matching)),
                    result.suggest_slave,
                )


def check_tags(text: str) -> None:
    """Raise RequestError if a list of tags is too long."""
    if len(text) > TAGS_MAX:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the list of tags has {len(text)} characters; at most {TAGS_MAX} are allowed. "
            "Subscribe to all tags (*), or use a SQL92 filter",
        )


def _hashed(text: str) -> MessageFilter:
    hashes = tag_hashes(text)
    return ALL if hashes is None else MessageFilter(hashes)


_by_tags = lru_cache(maxsize=LISTS_MAX)(_hashed)
"""Keeps the most recent lists of tags."""
