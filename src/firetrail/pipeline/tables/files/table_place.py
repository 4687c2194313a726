"""The folders in which a new table may be."""

from pathlib import Path

from firetrail.errors import ConfigError
from firetrail.format.names import COMMIT_LOG
from firetrail.pipeline.lakes.lake_manifest import MANIFEST
from firetrail.pipeline.tables.files.table_manifest import REJECTED

REJECTED_SUFFIX = "__rejected"
"""The end of the name of the table of rejected messages."""


def suffix_of(table: str) -> str:
    """Return what is added to the name of MAIN for one of the tables."""
    return REJECTED_SUFFIX if table == REJECTED else ""


def is_of_rejected(name: str) -> bool:
    """Return whether a name is that of a table of rejected messages, in any case of letters."""
    return name.casefold().endswith(REJECTED_SUFFIX)


def check_new_place(place: str) -> None:
    """Raise ConfigError if a folder is within a store, a table or an archive, or is for rejects."""
    path = Path(place).resolve()
    if is_of_rejected(path.name):
        reason = f"names that end in {REJECTED_SUFFIX} are those of tables of rejected messages"
        raise ConfigError("to", place, f"{reason}; choose another name")
    for parent in path.parents:
        inside = {
            "a store": parent / COMMIT_LOG,
            "a table or an archive": parent / MANIFEST,
            "a Delta table": parent / "_delta_log",
            "an Iceberg table": parent / "metadata" / "version-hint.text",
        }
        for what, sign in inside.items():
            if sign.exists():
                raise ConfigError(
                    "to", place, f"is in {parent}, which is {what}; choose another folder"
                )
