"""The names of brokers: those that the user gives, those of the table, or those of folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from firetrail.errors import ConfigError
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress, NewestMessage
from firetrail.pipeline.tables.messages.table_sources import SourcePlan, TableSource

HasMessage = Callable[[TableSource, str, NewestMessage], bool]
"""Whether a source has the newest message that a table has of a broker, in its place."""


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


def check_different_logs(
    plans: Iterable[SourcePlan],
    topic: str,
    before: Mapping[str, BrokerProgress],
    after: Mapping[str, BrokerProgress],
    has_message: HasMessage,
) -> None:
    """Raise ConfigError if a broker that is new in the table is another one under a second name.

    Args:
        plans: The sources of a run, of different brokers.
        topic: The topic.
        before: The progress of each broker of the table before the run.
        after: The progress of the brokers of the run after it.
        has_message: Asks a source for a message of the topic.
    """
    for source in [plan.source for plan in plans]:
        for name, progress in {**before, **after}.items():
            new = {source.broker, name} - before.keys()
            if name == source.broker or progress.anchor is None or not new:
                continue
            if has_message(source, topic, progress.anchor):
                kept = source.broker if source.broker in before else name
                raise ConfigError(
                    "source",
                    str(source),
                    f"the brokers {name} and {source.broker} have the same log, and each row would "
                    f"be there twice; give both places one name, as {kept}={source.place}",
                )


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
