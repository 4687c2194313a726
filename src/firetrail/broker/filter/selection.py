"""Which messages a consumer wants, and the next of them in a queue."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from firetrail.broker.config import BrokerConfig
from firetrail.broker.filter.sql92 import SqlFilter, parse
from firetrail.errors import FormatError, RequestError
from firetrail.format.record import decode_message
from firetrail.remoting.bodies import BY_TAG
from firetrail.remoting.codes import ResponseCode
from firetrail.store.broker_store import BrokerStore
from firetrail.store.reader import tag_hashes
from firetrail.store.results import GetResult, GetStatus

SCANNED_MAX = 800
"""Messages that one request with a filter over properties looks at."""

_FOUND = GetStatus.FOUND
_NO_MATCH = GetStatus.NO_MATCHED_MESSAGE


class Selection(NamedTuple):
    """Which messages a consumer wants: by hashes of tags, by properties, or all."""

    tags: frozenset[int] | None = None
    properties: SqlFilter | None = None


ALL = Selection()


def parsed(config: BrokerConfig, text: str, kind: str | None) -> Selection:
    """What an expression says; RequestError if it is none, or is not allowed."""
    if kind in (None, "", BY_TAG):
        return _by_tags(text)
    if not config.property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind:.20}; "
            "set enablePropertyFilter=true",
        )
    try:
        return Selection(None, parse(text))
    except FormatError as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


class MessageSelector:
    """Reads queues for those who want some of their messages."""

    def __init__(self, store: BrokerStore, config: BrokerConfig) -> None:
        self._store = store
        self._config = config

    def parsed(self, text: str, kind: str | None) -> Selection:
        """What an expression says; RequestError if it is none, or is not allowed."""
        return parsed(self._config, text, kind)

    def get(
        self, topic: str, queue_id: int, offset: int, count: int, wanted: Selection
    ) -> GetResult:
        """Up to ``count`` wanted messages of a queue from ``offset`` on."""
        if wanted.properties is None:
            return self._store.get_hashed(topic, queue_id, offset, count, wanted.tags)
        end = offset + SCANNED_MAX
        while True:
            result = self._store.get_hashed(topic, queue_id, offset, count)
            if result.status is not _FOUND:
                return result
            chosen = []
            for number, buffer in enumerate(result.buffers):
                try:
                    properties = decode_message(buffer).properties
                except FormatError:  # it has no properties
                    self._store.note_damaged(topic, queue_id, offset, number)
                    continue
                if wanted.properties.matches(properties):
                    chosen.append(buffer)
            offset = result.next_offset
            if chosen or offset >= min(end, result.max_offset):
                return GetResult(
                    _FOUND if chosen else _NO_MATCH,
                    offset,
                    result.min_offset,
                    result.max_offset,
                    chosen,
                    sum(map(len, chosen)),
                    result.suggest_slave,
                )


@lru_cache(maxsize=4096)
def _by_tags(text: str) -> Selection:
    return Selection(tag_hashes(text)) if text.strip() else ALL
