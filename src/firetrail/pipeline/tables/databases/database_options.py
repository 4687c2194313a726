"""The options of a database, and those that a database and its tables keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firetrail.errors import ConfigError
from firetrail.pipeline.options import names_in
from firetrail.pipeline.tables.databases.message_routes import (
    CHOICES,
    ENVELOPE,
    PRIMARY_KEY,
    RoutingRules,
)
from firetrail.pipeline.tables.files.table_manifest import DATABASE, MEMBER
from firetrail.pipeline.tables.table_options import TableOptions, decoder_spec

_PRIMARY = "primary_key"


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """The options of a run, which :func:`~firetrail.pipeline.database` describes."""

    by: str | None = None
    include: str | Sequence[str] | None = None
    exclude: str | Sequence[str] | None = None
    table_prefix: str | None = None
    table: TableOptions = field(default_factory=TableOptions)
    """Those of all tables."""

    @property
    def of_tables(self) -> TableOptions:
        """The options with which the tables themselves, which have no sources, are written."""
        return replace(self.table, source_options=None)

    def fixed(self, known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the options that a database keeps.

        Args:
            known: Those of an existing database; None for a new one.

        Raises:
            ConfigError: An option is wrong, or differs from that of the database.
        """
        if self.table.schema is not None:
            reason = "is for a table alone; a database infers the columns of each of its tables"
            raise ConfigError("schema", self.table.schema, reason)
        if self.table.catalog is not None:
            reason = "is for a table alone; tables of a database are found by their folders"
            raise ConfigError("catalog", self.table.catalog, reason)
        asked = {
            "by": self.by,
            "include": _names("include", self.include),
            "exclude": _names("exclude", self.exclude),
            "table_prefix": self.table_prefix,
        }
        if known is None and self.by is None:
            raise ConfigError("database", None, f"is required: {CHOICES}")
        base = {"include": [], "exclude": [], "table_prefix": ""} | dict(
            {} if known is None else known[DATABASE]
        )
        for name, value in asked.items():
            if known is not None and value not in (None, base[name]):
                shown = "database" if name == "by" else name
                made = f"the database was made with {base[name]!r}"
                raise ConfigError(shown, value, f"{made}, which cannot be changed")
        base |= {name: value for name, value in asked.items() if value is not None}
        of_tables = None if known is None else {**known, "upsert": base["upsert"]}
        options = self.table.fixed(of_tables)
        options.pop(DATABASE, None)
        base["upsert"], options["upsert"] = options["upsert"], []
        options[DATABASE] = base
        routing_rules(options).check()
        return options


def _names(option: str, given: str | Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    try:
        return list(names_in(given if isinstance(given, str) else ",".join(given)))
    except ValueError:
        allowed = "must be names of tables, with * for any text"
        raise ConfigError(option, str(given), allowed) from None


def routing_rules(options: Mapping[str, Any]) -> RoutingRules:
    """Return how the messages of a database find their tables."""
    chosen = options[DATABASE]
    return RoutingRules(
        chosen["by"],
        decoder_spec(options),
        tuple(chosen["include"]),
        tuple(chosen["exclude"]),
        takes_primary_keys(options),
    )


def takes_primary_keys(options: Mapping[str, Any]) -> bool:
    """Whether the key of each table is the primary key that CDC events name."""
    chosen = options[DATABASE]
    return bool(chosen["by"] == ENVELOPE and chosen["upsert"] == [PRIMARY_KEY])


def member_options(options: Mapping[str, Any], folder: str, key: Sequence[str]) -> dict[str, Any]:
    """Return the options that a table of a database keeps.

    Args:
        options: Those of the database.
        folder: The folder of the table in it.
        key: The columns of its key.
    """
    own = {MEMBER: folder, _PRIMARY: takes_primary_keys(options)}
    return {**options, "upsert": list(key), DATABASE: own}


def has_primary_key(options: Mapping[str, Any]) -> bool:
    """Whether the key of a table of a database is the primary key that its events name."""
    return bool(options[DATABASE][_PRIMARY])
