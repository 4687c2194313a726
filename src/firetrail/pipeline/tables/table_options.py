"""The options of a table, and those that a table keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firetrail.errors import ConfigError
from firetrail.pipeline.decoding.body_decoder import TableName
from firetrail.pipeline.decoding.decoder_spec import (
    OPTIONS,
    TABLES,
    BodyFormat,
    DecoderSpec,
    lasting_options,
)
from firetrail.pipeline.decoding.events.change_decoder import ChangeRules
from firetrail.pipeline.decoding.schema.arrow_types import folded_name
from firetrail.pipeline.options import each_once
from firetrail.pipeline.tables.files.format_rules import TableFormat
from firetrail.pipeline.tables.files.table_columns import PREFIX
from firetrail.pipeline.tables.keyed.keys import BUCKETS, check_buckets
from firetrail.pipeline.tasks import OnPlan


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a run, which :func:`~firetrail.pipeline.table` describes."""

    format: str | None = None
    catalog: str | None = None
    decoder: str | None = None
    decoder_options: Mapping[str, str] | None = None
    schema: str | None = None
    prefix: str | None = None
    message_columns: bool | None = None
    upsert: str | Sequence[str] | None = None
    history: bool | None = None
    buckets: int | None = None
    keep_hours: int | None = None
    strict: bool = False
    allow_gap: bool = False
    split_bytes: int | None = None
    source_options: Mapping[str, str] | None = None
    on_plan: OnPlan = lambda tasks: None

    def fixed(self, known: Mapping[str, Any] | None, source_table: str = "") -> dict[str, Any]:
        """Return the options that a table keeps.

        Args:
            known: Those of an existing table; None for a new one.
            source_table: The table of a database whose rows it has. Default: "", it has none.

        Raises:
            ConfigError: An option differs from that of the table.
        """
        kind = TableFormat.named(str((known or {}).get("format") or self.format or "delta"))
        asked = {
            "format": None if self.format is None else TableFormat.named(self.format).value,
            "catalog": None if self.catalog is None else check_catalog(self.catalog),
            "decoder": self.decoder,
            "decoder_options": self._decoder_options(known, source_table),
            "prefix": None if self.prefix is None else kind.check_prefix(self.prefix),
            "message_columns": self.message_columns,
            "upsert": self._key(),
            "history": self.history,
            "buckets": None if self.buckets is None else check_buckets(self.buckets),
        }
        base = {
            "format": TableFormat.DELTA.value,
            "catalog": "",
            "decoder": BodyFormat.JSON.value,
            "decoder_options": {},
            "prefix": PREFIX,
            "message_columns": True,
            "upsert": [],
            "history": False,
            "buckets": BUCKETS,
            **(known or {}),
        }
        for name, value in asked.items():
            if name != "decoder_options" and known and not _is_same(value, base[name]):
                shown = base[name]
                reason = f"the table was made with {shown!r}, which cannot be changed"
                raise ConfigError(name, value, reason)
        kept = {**base, **{name: value for name, value in asked.items() if value is not None}}
        if known:
            kept["upsert"] = known["upsert"]  # perhaps in another case
        if kept["upsert"] and not kept["message_columns"]:
            raise ConfigError(
                "message_columns",
                False,
                "an upsert needs them: they have the position of each version",
            )
        if kept["history"] and not kept["upsert"]:
            raise ConfigError(
                "history", True, "needs a key, whose versions are kept: give --upsert, too"
            )
        _check_format(kept)
        return kept

    def _decoder_options(
        self, table: Mapping[str, Any] | None, source_table: str
    ) -> dict[str, str] | None:
        """Return the options of the decoder, of which an existing table can only choose a table."""
        if self.decoder_options is None:
            return None
        given = lasting_options(OPTIONS.named(self.decoder_options))
        if table is None:
            return given
        known = OPTIONS.named(table["decoder_options"])
        for name, value in given.items():
            if value == known.get(name):
                continue
            if name == TABLES.name:
                _check_choice(known.get(name), value, source_table)
                continue
            made = f"with {known[name]!r}" if name in known else "without it"
            raise ConfigError(name, value, f"the table was made {made}, which cannot be changed")
        return known | given

    def _key(self) -> list[str] | None:
        if self.upsert is None:
            return None
        names = self.upsert.split(",") if isinstance(self.upsert, str) else self.upsert
        try:
            return list(each_once(names, folded_name))
        except ValueError:
            raise ConfigError("upsert", self.upsert, "must be the names of columns") from None


def _is_same(value: Any, known: Any) -> bool:
    """Whether an option is not given, or is that of a table; columns may be in another case."""
    if isinstance(value, list):
        return list(map(folded_name, value)) == list(map(folded_name, known))
    return value in (None, known)


def _check_format(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if a format cannot do what other options ask for."""
    kind = TableFormat(options["format"])
    if kind is TableFormat.PARQUET and options["upsert"]:
        reason = "a Parquet table only gains rows; choose the format delta or iceberg"
        raise ConfigError("upsert", options["upsert"], reason)
    if kind is not TableFormat.ICEBERG and options["catalog"]:
        raise ConfigError("catalog", options["catalog"], "needs the format iceberg")


def check_catalog(name: str) -> str:
    """Return the name of a table in a catalog; raise ConfigError unless it has three parts."""
    if len(parts := name.split(".")) < 3 or not all(parts):
        raise ConfigError("catalog", name, "must be CATALOG.NAMESPACE.TABLE")
    return name


def _check_choice(known: str | None, value: str, source_table: str) -> None:
    """Raise ConfigError unless a table has all rows that it would have with another choice.

    That is so if both choices take the one table whose rows it has, or if there was no choice.
    """
    if source_table:
        if not ChangeRules(tables=TABLES.parse(value)).takes(TableName("", source_table)):
            reason = f"the table has rows of {source_table}, which this choice does not take"
            raise ConfigError(TABLES.name, value, f"{reason}; begin a new table")
    elif known is not None:
        reason = f"the table was made with {known!r}, which has left out messages"
        raise ConfigError(TABLES.name, value, f"{reason}; begin a new table")


def decoder_spec(options: Mapping[str, Any]) -> DecoderSpec:
    """Return the decoder for the options that a table keeps."""
    given = {"format": options["decoder"], **options["decoder_options"]}
    return DecoderSpec.from_options(given, key=options["upsert"])
