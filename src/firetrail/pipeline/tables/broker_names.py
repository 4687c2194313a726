"""The names of brokers: those that the user gives, those of the table, or those of folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrail.errors import ConfigError
from firetrail.pipeline.tables.table_sources import TableSource


def named_sources(sources: Sequence[TableSource], known: Sequence[str]) -> list[TableSource]:
    """Return the sources, each with the name of its broker.

    One source without a name continues a table with one broker. Otherwise the name is that of the
    folder.

    Args:
        sources: The sources, as the user named them.
        known: The brokers of the table.

    Raises:
        ConfigError: It is not clear which broker a source belongs to.
    """
    if len(sources) == 1 and not sources[0].broker and len(known) == 1:
        return [sources[0]._replace(broker=known[0])]
    found = [
        source if source.broker else source._replace(broker=_folder_name(source.place))
        for source in sources
    ]
    for source, given in zip(found, sources, strict=True):
        twice = not given.broker and sum(other.broker == source.broker for other in found) > 1
        if twice or (not given.broker and known and source.broker not in known):
            names = f"; the table has {', '.join(known)}" if known else ""
            raise ConfigError(
                "source", source.place, f"name its broker, as BROKER={source.place}{names}"
            )
    return found


def stages_of(sources: Sequence[TableSource]) -> Iterator[list[TableSource]]:
    """Yield groups of sources with different brokers; places of one broker follow in order."""
    left = list(sources)
    while left:
        stage: dict[str, TableSource] = {}
        for source in left:
            stage.setdefault(source.broker, source)
        yield list(stage.values())
        chosen = {id(source) for source in stage.values()}
        left = [source for source in left if id(source) not in chosen]


def _folder_name(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2] or "broker"
