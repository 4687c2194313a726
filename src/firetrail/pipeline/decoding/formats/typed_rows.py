"""The decoder of formats whose bodies are one row each, with declared types: Avro and Protobuf."""

from abc import ABC, abstractmethod

from firetrail.pipeline.decoding.body_decoder import (
    Bodies,
    BodyDecoder,
    Decoded,
    Operation,
    Reject,
    TableName,
    body_list,
)
from firetrail.pipeline.decoding.events.change_decoder import (
    ChangeEvent,
    ChangeRow,
    ChangeRules,
    Readers,
    RowBuilder,
)
from firetrail.pipeline.decoding.formats.json_decoder import NO_BODY
from firetrail.pipeline.decoding.schema.table_schema import TableSchema
from firetrail.pipeline.decoding.values.json_values import DecodingRules, converter
from firetrail.pipeline.decoding.values.text_values import BodyError

_NO_TABLE = TableName("", "")


class TypedFormat(ABC):
    """A format of bodies."""

    empty_is_row = False
    """Whether an empty body is a row, unless it deletes."""

    @abstractmethod
    def row(self, body: bytes) -> tuple[ChangeRow, Readers]:
        """Return the row of a body, and its declared columns; raise BodyError if it has none."""

    @abstractmethod
    def readers(self) -> Readers | None:
        """Return the columns that are known without a body; None if there are none."""


class RowDecoder(BodyDecoder):
    """Rows of typed bodies.

    Args:
        body_format: The format.
        schema: The known columns.
        rules: The choices of the user.
        tombstones: Whether an empty body deletes the row of the message's key.
    """

    def __init__(
        self,
        body_format: TypedFormat,
        schema: TableSchema,
        rules: DecodingRules,
        *,
        tombstones: bool,
    ) -> None:
        self._format = body_format
        self._schema = schema
        self._rules = ChangeRules(rules)
        self._tombstones = tombstones

    def decode(self, bodies: Bodies) -> Decoded:
        changes = RowBuilder(self._schema, converter, self._rules)
        rejects: list[Reject] = []
        for at, body in enumerate(body_list(bodies)):
            try:
                if body or (self._format.empty_is_row and not self._tombstones):
                    row, readers = self._format.row(body or b"")
                    change = Operation.UPSERT, row, None
                    changes.add(at, ChangeEvent(_NO_TABLE, (change,), readers))
                elif self._tombstones:
                    changes.add(at, ChangeEvent(_NO_TABLE, ((Operation.DELETE, {}, None),)))
                else:
                    raise BodyError(NO_BODY)
            except BodyError as error:
                rejects.append(Reject(at, str(error)))
        part = changes.rows(None, rejects)
        rejects.sort(key=lambda reject: reject.message)
        return Decoded((part,), tuple(rejects))
