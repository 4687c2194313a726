"""The commit of a run of a database: all of its tables, or none.

A run writes and syncs the files of all tables under hidden names, and then one file,
``_firetrail/commits.json``, with the next manifest of each table and of the database. From then on
the run is certain to be completed, by itself or by the next one: each table publishes its manifest
unless it has it already, and the database follows last. The progress of the sources is only in the
manifest of the database, so every message is in its table once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firetrail.errors import LakeError
from firetrail.pipeline.lakes.lake_manifest import FOLDER
from firetrail.pipeline.tables.databases.route_task import SPOOL
from firetrail.pipeline.tables.files.table_manifest import (
    MEMBER,
    PendingCommit,
    TableManifest,
    decode_pending,
)
from firetrail.pipeline.tables.runs.publication import Publication
from firetrail.system import SYSTEM

COMMITS = f"{FOLDER}/commits.json"
_VERSION = 1


@dataclass(frozen=True)
class DatabaseCommit:
    """What a run publishes.

    Args:
        tables: The commits of tables by their folders, relative to that of the database.
        home: That of the database itself, with the messages that belong to no table.
    """

    tables: Mapping[str, PendingCommit]
    home: PendingCommit

    def encode(self) -> bytes:
        """Return the content of the file."""
        tables = {folder: json.loads(each.encode()) for folder, each in self.tables.items()}
        home = json.loads(self.home.encode())
        return json.dumps({"version": _VERSION, "tables": tables, "home": home}).encode()

    @classmethod
    def decode(cls, content: bytes, place: str) -> DatabaseCommit:
        """Decode the file; ``place`` names it in errors."""
        try:
            found = json.loads(content)
            if found["version"] != _VERSION:
                raise LakeError(f"{place}: was written by another version; upgrade Firetrail")
            tables = {
                str(folder): decode_pending(json.dumps(each).encode(), place)
                for folder, each in found["tables"].items()
            }
            return cls(tables, decode_pending(json.dumps(found["home"]).encode(), place))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LakeError(
                f"{place}: is not the commit of a database ({error!r}); restore it from a backup"
            ) from error


def member_publication(home: Publication, folder: str) -> Publication:
    """Return the publication of a table by its folder in a database."""
    return Publication(f"{home.lake.place}/{folder}")


def publish_all(home: Publication, commit: DatabaseCommit) -> dict[str, Publication]:
    """Publish a commit, and return the tables by their folders."""
    members = {folder: member_publication(home, folder) for folder in commit.tables}
    for folder, member in members.items():
        member.sync_names(commit.tables[folder])
    home.sync_names(commit.home)
    _sync_parents(home, members)
    home.lake.replace(COMMITS, commit.encode())
    _complete(home, commit, members)
    return members


def settle_database(home: Publication) -> TableManifest | None:
    """Complete a run that was killed, remove its leftovers, and return the manifest.

    A killed retry of one of the tables is completed, too.

    Raises:
        LakeError: Somebody else changed one of the tables that the run has written.
    """
    content = home.lake.read(COMMITS)
    if content is not None:
        commit = DatabaseCommit.decode(content, home.lake.show(COMMITS))
        members = {folder: member_publication(home, folder) for folder in commit.tables}
        _complete(home, commit, members)
    remove_spool(home)
    manifest = home.settle()
    for table in manifest.tables if manifest is not None else ():
        member = member_publication(home, table.folder)
        if member.has_pending:
            member.settle()
    return manifest


def remove_spool(home: Publication) -> None:
    """Remove the sorted messages of a run."""
    folder = Path(home.lake.path(SPOOL))
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        home.lake.remove(f"{SPOOL}/{path.name}")


def database_of(place: str) -> tuple[str, str] | None:
    """Return the folder of a database, and that of a table in it, for the place of either.

    The second one is empty for the database itself. For other places None is returned.
    """
    publication = Publication(place)
    manifest = publication.manifest()
    if manifest is None or manifest.database is None:
        return None
    folder = str(manifest.database.get(MEMBER, ""))
    own = publication.lake.place
    return (own.removesuffix(f"/{folder}"), folder) if folder else (own, "")


def _complete(home: Publication, commit: DatabaseCommit, members: dict[str, Publication]) -> None:
    """Publish what is not published yet; a table that cannot be does not hold up the others."""
    failures: list[LakeError] = []
    for folder, member in members.items():
        try:
            _publish_once(member, commit.tables[folder])
        except LakeError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    _publish_once(home, commit.home)
    home.lake.remove(COMMITS)


def _publish_once(publication: Publication, pending: PendingCommit) -> None:
    known = publication.manifest()
    if known is None or known.sequence < pending.manifest.sequence:
        publication.publish(pending)


def _sync_parents(home: Publication, members: Mapping[str, Publication]) -> None:
    """Make the names of the folders of tables durable."""
    root = Path(home.lake.place)
    folders = {root, root.parent}
    for member in members.values():
        path = Path(member.lake.place).parent
        while path != root.parent:
            folders.add(path)
            path = path.parent
    for folder in sorted(folders):
        SYSTEM.files.sync_folder(folder)
