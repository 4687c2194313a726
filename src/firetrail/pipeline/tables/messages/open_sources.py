"""The sources of a run: places, patterns of folders and name servers, open while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from firetrail.errors import ConfigError
from firetrail.format.names import name_server
from firetrail.pipeline.logger import LOGGER
from firetrail.pipeline.options import OptionTable
from firetrail.pipeline.source.source_options import OPTIONS, ReadOptions, parse_options
from firetrail.pipeline.tables.messages.broker_names import named_sources
from firetrail.pipeline.tables.messages.broker_progress import BrokerProgress, NewestMessage
from firetrail.pipeline.tables.messages.folder_pattern import is_pattern, matching
from firetrail.pipeline.tables.messages.live_topic import LiveTopic
from firetrail.pipeline.tables.messages.table_sources import (
    SourcePlan,
    TableSource,
    check_exists,
    files_have,
    has_topic,
    parse_source,
    plan_files,
)

SOURCE_OPTIONS = ("credentialsFile", "group", "retryTimeoutMs")
"""The options of the Spark source that apply to name servers here."""
_OPTIONS = OptionTable([option for option in OPTIONS if option.name in SOURCE_OPTIONS])


class OpenSources:
    """The sources that a user named; used as a context manager.

    Args:
        given: The sources.
        options: Options of the Spark source for name servers. Default: none.

    Raises:
        ConfigError: An option is not one of SOURCE_OPTIONS, or there is no name server.
        NotAStoreError: A folder is neither a store nor an archive.
        LakeError: There is no archive at a URL.
    """

    def __init__(
        self, given: Sequence[str | Path], options: Mapping[str, str] | None = None
    ) -> None:
        self._given = [parse_source(str(each)) for each in given]
        self._options = _OPTIONS.named(options or {})
        self._opened: dict[str, LiveTopic] = {}
        self._stack = ExitStack()
        for source in self._given:
            if name_server(source.place) is not None:
                self.read_options(source.place, "any")
            elif not is_pattern(source.place):
                check_exists(source)
        self._check_options()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.clear()
        self._stack.close()

    def _check_options(self) -> None:
        for name, value in self._options.items():
            if all(name_server(source.place) is None for source in self._given):
                raise ConfigError(name, value, "applies to namesrv=HOST:PORT; leave it out")

    def read_options(self, place: str, topic: str) -> ReadOptions:
        """Return the options with which the Spark source reads a topic of a name server."""
        given = {"namesrv": name_server(place) or "", "subscribe": topic, **self._options}
        if "credentialsFile" in given:
            given["credentialsFile"] = str(Path(given["credentialsFile"]).absolute())
        return parse_options(given)

    def found(self, topic: str, brokers: Mapping[str, BrokerProgress]) -> list[TableSource]:
        """Return the places of single brokers, each with the name of its broker.

        Args:
            topic: The topic.
            brokers: What the table has.

        Raises:
            NotAStoreError: Nothing matches a pattern.
            ConfigError: There is no such topic, or it is not clear which broker a source is.
            LakeError: A broker no longer has the topic.
            OutageError: Brokers or name servers do not become available.
        """
        found: list[TableSource] = []
        for source in self._given:
            if name_server(source.place) is not None:
                live = self._live(source.place, topic, brokers)
                found += live.sources(source, brokers)
            elif is_pattern(source.place):
                found += _with_topic(source.place, matching(source), topic, brokers)
            else:
                found.append(source)
        named = named_sources(found, list(brokers))
        if self._opened:
            self._report_away(named, brokers)
        return named

    def _live(self, place: str, topic: str, brokers: Iterable[str]) -> LiveTopic:
        if place not in self._opened:
            live = LiveTopic(self.read_options(place, topic), topic)
            self._opened[place] = self._stack.enter_context(live)
            live.look(brokers)
        return self._opened[place]

    def _report_away(self, found: Iterable[TableSource], brokers: Iterable[str]) -> None:
        for name in sorted({*brokers} - {source.broker for source in found}):
            LOGGER.warning(
                "%s: not registered; the table has messages of it, and the next run continues with "
                "it once it is there",
                name,
            )

    def plan(
        self,
        source: TableSource,
        topic: str,
        known: BrokerProgress,
        *,
        split_bytes: int | None,
        allow_gap: bool,
    ) -> SourcePlan:
        """Return the parts of a source with the messages that a table does not have.

        Raises:
            LakeError: The source is not the one that the table was made from.
            DataLostError: Messages were deleted before they were read, unless ``allow_gap``.
            ConfigError: The source has no such topic.
            NotAStoreError: The source is neither a store nor an archive.
            OutageError: A broker does not become available.
        """
        if not source.member:
            return plan_files(source, topic, known, split_bytes=split_bytes, allow_gap=allow_gap)
        live = self._opened[source.place]
        return live.plan(source, known, split_bytes=split_bytes, allow_gap=allow_gap)

    def has_message(self, source: TableSource, topic: str, anchor: NewestMessage) -> bool:
        """Whether a source has the newest message of a broker in a table, in its place."""
        if source.member:
            return self._opened[source.place].has_message(source, anchor)
        return files_have(source, topic, anchor)


def _with_topic(
    pattern: str, matches: Sequence[TableSource], topic: str, brokers: Mapping[str, BrokerProgress]
) -> list[TableSource]:
    """Return the matches that have the topic, or messages in the table; others may get it later."""
    found = [each for each in matches if each.broker in brokers or has_topic(each, topic)]
    if not found:
        raise ConfigError("topic", topic, f"none of the folders that match {pattern} has it")
    return found
