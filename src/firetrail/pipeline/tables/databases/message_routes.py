"""The tables to which the messages of a topic belong: by CDC envelope, by tag, or by a column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pyarrow as pa

from firetrail.errors import ConfigError
from firetrail.format.layout import COMPRESSED
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.decoder_spec import BodyFormat, DecoderSpec
from firetrail.pipeline.decoding.events.change_decoder import ChangeRules, EventAdapter
from firetrail.pipeline.decoding.schema.arrow_types import folded_name
from firetrail.pipeline.decoding.schema.table_schema import EMPTY
from firetrail.pipeline.decoding.values.json_values import parse_object
from firetrail.pipeline.decoding.values.text_values import BodyError, quoted_value
from firetrail.pipeline.tables.messages.reject_reasons import COMPRESSED as COMPRESSED_REASON

ENVELOPE, TAG, COLUMN = "envelope", "tag", "column:"
"""What names the table of a message; the name of the column follows the last of these."""
CHOICES = "envelope (of CDC events), tag, or column:NAME"
PRIMARY_KEY = "pk"
"""The key of tables of CDC events that means the primary key that the events name."""
_FORMATS = (BodyFormat.CANAL, BodyFormat.MAXWELL, BodyFormat.DEBEZIUM)


class MessageRoute(NamedTuple):
    """The table of a message."""

    table: TableName | None
    """None if it belongs to none."""
    reason: str = ""
    """Why it is rejected. One without a table and without a reason is skipped."""
    key: tuple[str, ...] = ()
    """The primary key that the message names."""
    is_statement: bool = False
    """Whether it only declares columns."""


_SKIPPED = MessageRoute(None)


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """The choices of the user.

    Args:
        by: What names the table: ENVELOPE, TAG, or COLUMN and the name of a column.
        spec: The decoder.
        include: Patterns of the names of tables, with ``*``; messages of others are skipped.
            Default: (), which takes all.
        exclude: Patterns of tables whose messages are skipped. Default: ().
        with_keys: Whether the primary keys that messages name are needed. Default: False.
    """

    by: str
    spec: DecoderSpec
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    with_keys: bool = False

    @property
    def nested(self) -> bool:
        """Whether tables are within databases."""
        return self.by == ENVELOPE

    def check(self) -> None:
        """Raise ConfigError if the decoder and what names the table do not go together."""
        is_cdc = self.spec.format in _FORMATS
        if self.by not in (ENVELOPE, TAG) and self.by.removeprefix(COLUMN) in ("", self.by):
            raise ConfigError("database", self.by, f"must be {CHOICES}")
        if self.nested != is_cdc:
            name = self.spec.format.value
            reason = "must be envelope" if is_cdc else "needs canal, maxwell or debezium"
            raise ConfigError("database", self.by, f"{reason}: the decoder is {name}")
        if self.spec.tables:
            reason = "is for a table alone; choose tables with --include"
            raise ConfigError("tables", ",".join(self.spec.tables), reason)
        own = None if self.nested else self.spec.own_schema()
        if self.by.startswith(COLUMN) and own is not None:
            column = self.by.removeprefix(COLUMN)
            if own.own_name(column) is None:
                reason = f"the messages have no such column; they have {', '.join(own.names)}"
                raise ConfigError("database", column, reason)

    def takes(self, table: TableName) -> bool:
        """Whether messages of a table are not skipped; of one without a name, its database."""
        if not ChangeRules(tables=self.include).takes(table):
            return False
        return not any(fnmatchcase(str(table), each) for each in self.exclude)


class MessageRouter:
    """Finds the tables of messages.

    Args:
        rules: The choices of the user.
    """

    def __init__(self, rules: RoutingRules) -> None:
        self._rules = rules
        self._adapter: EventAdapter | None = rules.spec.event_adapter()
        self._column = rules.by.removeprefix(COLUMN)

    def routes(self, batch: pa.RecordBatch) -> list[MessageRoute]:
        """Return the tables of messages.

        Args:
            batch: The messages, with the columns ``body``, ``tags``, ``keys`` and ``sys_flag``.
        """
        if self._rules.by == TAG:
            return [self._named(tag, "the tag") for tag in batch.column("tags").to_pylist()]
        broken = [bool(flag & COMPRESSED) for flag in batch.column("sys_flag").to_pylist()]
        bodies = batch.column("body").to_pylist()
        if self._adapter is not None:
            keys = batch.column("keys").to_pylist()
            found: Iterable[MessageRoute] = map(self._event, bodies, keys)
        elif self._rules.spec.format is BodyFormat.JSON:
            found = map(self._object, bodies)
        else:
            found = self._rows(bodies)
        return [
            MessageRoute(None, COMPRESSED_REASON) if bad else route
            for bad, route in zip(broken, found, strict=True)
        ]

    def _named(self, name: str | None, what: str) -> MessageRoute:
        if not name:
            return MessageRoute(None, f"{what} that names the table is missing or empty")
        table = TableName("", name)
        return MessageRoute(table) if self._rules.takes(table) else _SKIPPED

    # -- columns ------------------------------------------------------------------------------

    def _object(self, body: bytes | None) -> MessageRoute:
        try:
            value = parse_object(body or b"")
            names = [name for name in value if folded_name(name) == folded_name(self._column)]
            if len(names) > 1:
                raise BodyError(f"several columns are named {self._column}")
            return self._valued(value[names[0]] if names else None)
        except BodyError as error:
            return MessageRoute(None, str(error) if body else "the body is empty")

    def _valued(self, value: Any) -> MessageRoute:
        if isinstance(value, list | dict):
            return MessageRoute(None, f"column {self._column}: {quoted_value(value)} is not a name")
        if isinstance(value, bool):
            value = str(value).lower()
        text = None if value is None else str(value)
        return self._named(text, f"the column {self._column}")

    def _rows(self, bodies: Sequence[bytes | None]) -> Iterator[MessageRoute]:
        """Yield the tables of messages by the rows that the decoder makes of them."""
        spec = replace(self._rules.spec, tombstones=False)
        decoded = spec.decoder(spec.own_schema() or EMPTY).decode(bodies)
        reasons = {reject.message: reject.reason for reject in decoded.rejects}
        found: dict[int, set[Any]] = {}
        for part in decoded.parts:
            own = part.schema.own_name(self._column)
            rows = part.rows.num_rows
            values = [None] * rows if own is None else part.rows.column(own).to_pylist()
            for message, value in zip(part.messages.to_pylist(), values, strict=True):
                found.setdefault(message, set()).add(value)
        for at in range(len(bodies)):
            values_of = found.get(at, {None})
            if at in reasons:
                yield MessageRoute(None, reasons[at])
            elif len(values_of) > 1:
                yield MessageRoute(None, f"its rows have several values of {self._column}")
            else:
                yield self._valued(next(iter(values_of)))

    # -- CDC events ---------------------------------------------------------------------------

    def _event(self, body: bytes | None, keys: Sequence[str] | None) -> MessageRoute:
        """Return the table of an event; empty bodies, heartbeats and the like are skipped."""
        assert self._adapter is not None
        if not body:
            return _SKIPPED
        try:
            value = parse_object(body)
            table = self._adapter.table(value)
            if table is not None and not self._rules.takes(table):
                return _SKIPPED
            if table is None or not table.table:
                self._adapter.event(value)
                return _SKIPPED
            return self._keyed(table, value, keys) if self._rules.with_keys else MessageRoute(table)
        except BodyError as error:
            return MessageRoute(None, str(error))

    def _keyed(
        self, table: TableName, value: dict[str, Any], keys: Sequence[str] | None
    ) -> MessageRoute:
        assert self._adapter is not None
        try:
            event = self._adapter.event(value)
        except BodyError as error:
            return MessageRoute(table, str(error))
        if event is None:
            return _SKIPPED
        key = event.key or (_debezium_key(keys) if event.changes else ())
        return MessageRoute(table, "", key, not event.changes)


def _debezium_key(keys: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of Debezium's key, which its sink for RocketMQ writes as the message's."""
    try:
        value = json.loads(" ".join(keys or ()))
    except ValueError:
        return ()
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    return tuple(value) if isinstance(value, dict) else ()
