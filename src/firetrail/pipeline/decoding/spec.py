"""The description of a decoder: the options of the user, which travel to the workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import Enum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.decoded import Bodies, BodyDecoder, TableName
from firetrail.pipeline.decoding.json_decoder import JsonDecoder
from firetrail.pipeline.decoding.json_values import Evolution, JsonRules, NumberUnit
from firetrail.pipeline.decoding.table_schema import EMPTY, TableSchema
from firetrail.pipeline.decoding.text_decoder import TEXT_SCHEMA, TextDecoder
from firetrail.pipeline.options import Option, OptionTable, Parsed
from firetrail.settings.settings_table import Flag, OneOf

Schemas = TableSchema | Mapping[TableName, TableSchema]
"""The known columns: of the one table, or, for events of several tables, of each that is known."""


class BodyFormat(Enum):
    """The formats of bodies."""

    JSON = "json"
    TEXT = "text"


def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name, such as ``Asia/Shanghai``; raise ValueError for another."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(str(error)) from error


OPTIONS = OptionTable(
    (
        Option("format", "format", OneOf(BodyFormat)),
        Option("newColumns", "new_columns", OneOf(Evolution)),
        Option("numberUnit", "number_unit", OneOf(NumberUnit)),
        Option("timeZone", "zone", Parsed(time_zone, "must be a time zone, such as Asia/Shanghai")),
        Option("tombstones", "tombstones", Flag()),
    )
)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """The options of a decoder. Objects can be pickled.

    Args:
        format: The format of the bodies.
        new_columns: The treatment of keys of JSON without a column. Default: ``add``, they become
            columns.
        number_unit: The unit of times that are numbers in JSON. Default: None, they are rejected.
        zone: The zone of times that name none. Default: UTC.
        tombstones: Whether an empty body deletes the row of the message's key. Default: False,
            it is a reject, or an empty text.
    """

    format: BodyFormat
    new_columns: Evolution = Evolution.ADD
    number_unit: NumberUnit | None = None
    zone: tzinfo = UTC
    tombstones: bool = False

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> "DecoderSpec":
        """Return the spec for options by name; raise ConfigError for wrong ones.

        Args:
            given: The options. ``format`` is required.
        """
        values = OPTIONS.values(OPTIONS.named(given))
        if "format" not in values:
            allowed = ", ".join(choice.value for choice in BodyFormat)
            raise ConfigError("format", None, f"is required: {allowed}")
        return cls(**values)

    def own_schema(self) -> TableSchema | None:
        """Return the schema that the options alone determine; None if messages are needed."""
        return TEXT_SCHEMA if self.format is BodyFormat.TEXT else None

    def decoder(self, schemas: Schemas = EMPTY) -> BodyDecoder:
        """Return the decoder, in the process that uses it.

        Args:
            schemas: The known columns. Default: ``EMPTY``, so that all are new.
        """
        if self.format is BodyFormat.TEXT:
            return TextDecoder(tombstones=self.tombstones)
        schema = schemas if isinstance(schemas, TableSchema) else EMPTY
        rules = JsonRules(self.new_columns, self.zone, self.number_unit)
        return JsonDecoder(schema, rules, tombstones=self.tombstones)

    def infer(self, sample: Bodies) -> dict[TableName | None, TableSchema]:
        """Return the schemas that a sample of bodies shows, by table.

        Formats without tables have the one key None.
        """
        return {part.table: part.schema for part in self.decoder().decode(sample).parts}
