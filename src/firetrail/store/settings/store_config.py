"""The store's settings: one table, read from Python or from RocketMQ's ``broker.conf``.

Each field of :class:`StoreConfig` gives the Python name, type, default, key in ``broker.conf``,
kind of value and a one-line explanation; its base has the fields about files.
:mod:`firetrail.cli.config_page` generates ``docs/configuration.md`` from it. Defaults are
RocketMQ's, except where the line says otherwise.
"""

# ruff: noqa: RUF009  (the calls in the class body create fields, one value for each instance)

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from firetrail.errors import ConfigError
from firetrail.format import layout
from firetrail.format.files.java_properties import Entry, parse_properties
from firetrail.format.values.delay import DEFAULT_DELAY_LEVELS, DelayLevels
from firetrail.format.values.hosts import Host
from firetrail.format.values.integers import INT32_MAX
from firetrail.settings.conf_file import Remark, read_settings
from firetrail.settings.settings_table import (
    Address,
    Delays,
    Hours,
    OneOf,
    Ratio,
    Setting,
    Whole,
    table,
)
from firetrail.store.settings.config_groups import (
    BYTES,
    BYTES_OR_0,
    DAMAGE,
    FLAG,
    FLUSH,
    GIB,
    KIB,
    LOG_BYTES,
    MESSAGES,
    MIB,
    MS,
    MS_OR_0,
    PAGES,
    POOL,
    PUT,
    READ,
    RECOVERY,
    REPLICATION,
    RETENTION,
)
from firetrail.store.settings.config_rules import (
    RECORD_SLACK,
    BrokerRole,
    FlushMode,
    body_room,
    conflicts,
    relocated,
)
from firetrail.store.settings.file_settings import FileSettings
from firetrail.system import SYSTEM, System
from firetrail.text import did_you_mean

__all__ = ["SETTINGS", "BrokerRole", "FlushMode", "LoadedConfig", "StoreConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(FileSettings):
    """The settings of a store, each a keyword argument; all are checked, and none changes later.

    ``docs/configuration.md`` describes every setting with its default. Raises ConfigError for an
    invalid value, and for valid values that contradict each other.
    """

    store_host: Host = PUT(
        Host("127.0.0.1", 10911),
        "brokerIP1 listenPort",
        Address(port_key="listenPort"),
        "Address in every record and message id. RocketMQ's default is the machine's address.",
    )
    role: BrokerRole = PUT(
        BrokerRole.ASYNC_MASTER,
        "brokerRole",
        OneOf(BrokerRole),
        "A `SYNC_MASTER` acknowledges a message when replicas have it; a `SLAVE` refuses puts and"
        " copies the log of a master. With `etcd_endpoints`, the default is SYNC_MASTER.",
    )
    light_queues: bool = PUT(
        False, "enableLmq", FLAG, "Also put messages into the light queues (`%LMQ%…`) they name."
    )
    max_message_size: int = PUT.live(
        4 * MIB,
        "maxMessageSize",
        Whole(1, INT32_MAX - RECORD_SLACK, unit="bytes"),
        "Longest body, and longest encoded batch; a whole record may be 64 KiB longer.",
    )
    property_crc: bool = PUT(
        False,
        "enabledAppendPropCRC",
        FLAG,
        "Append a checksum of the whole record to the properties; 20 bytes per message.",
    )
    delay_levels: DelayLevels = PUT(
        DelayLevels.parse(DEFAULT_DELAY_LEVELS),
        "messageDelayLevel",
        Delays(),
        "Delay of each delay level, level 1 first.",
    )
    page_cache_busy_ms: int = PUT(
        1_000,
        "osPageCacheBusyTimeOutMills",
        MS,
        "A put that has to wait longer than this for the lock is refused as busy.",
    )

    flush: FlushMode = FLUSH(
        FlushMode.ASYNC, "flushDiskType", OneOf(FlushMode), "Whether a put waits for the disk."
    )
    sync_flush_timeout_ms: int = FLUSH.live(
        5_000,
        "syncFlushTimeout",
        MS,
        "How long a put waits for the disk. After that, its status is `FLUSH_DISK_TIMEOUT`.",
    )
    flush_interval_ms: int = FLUSH.live(
        500, "flushIntervalCommitLog", MS, "Pause between syncs of the log."
    )
    flush_least_pages: int = FLUSH.live(
        4,
        "flushCommitLogLeastPages",
        PAGES,
        "Sync the log only if at least this many pages of 4 KiB are new; 0 always syncs.",
    )
    flush_thorough_interval_ms: int = FLUSH.live(
        10_000,
        "flushCommitLogThoroughInterval",
        MS_OR_0,
        "Sync the log after this time, even if fewer than `flush_least_pages` pages are new.",
    )
    consume_queue_flush_interval_ms: int = FLUSH(
        1_000, "flushIntervalConsumeQueue", MS, "Pause between syncs of the consume queues."
    )
    consume_queue_flush_least_pages: int = FLUSH.live(
        2,
        "flushConsumeQueueLeastPages",
        PAGES,
        "Sync a consume queue only if at least this many pages of 4 KiB are new; 0 always syncs.",
    )
    consume_queue_flush_thorough_interval_ms: int = FLUSH.live(
        60_000,
        "flushConsumeQueueThoroughInterval",
        MS_OR_0,
        "Sync every consume queue after this time, and write the checkpoint.",
    )

    write_buffer_pool: bool = POOL(
        False, "transientStorePoolEnable", FLAG, "Collect messages in memory buffers."
    )
    write_buffer_count: int = POOL(
        5,
        "transientStorePoolSize",
        Whole(1),
        "Number of buffers. Each has 8 MiB, or the size of the longest record.",
    )
    fail_fast_without_buffer: bool = POOL(
        False,
        "fastFailIfNoBufferInStorePool",
        FLAG,
        "Refuse puts while all buffers are in use, instead of committing the buffers at once.",
    )
    commit_interval_ms: int = POOL.live(
        200, "commitIntervalCommitLog", MS, "Pause between commits."
    )
    commit_least_pages: int = POOL.live(
        4,
        "commitCommitLogLeastPages",
        PAGES,
        "Commit only if at least this many pages of 4 KiB are new; 0 always commits.",
    )
    commit_thorough_interval_ms: int = POOL.live(
        200,
        "commitCommitLogThoroughInterval",
        MS_OR_0,
        "Commit everything after this time, even if fewer than `commit_least_pages` pages are new.",
    )

    check_crc_on_recover: bool = RECOVERY(
        True, "checkCRCOnRecover", FLAG, "Verify the checksum of every body that is scanned."
    )

    file_reserved_hours: int = RETENTION.live(
        72,
        "fileReservedTime",
        Whole(0, unit="hours"),
        "Age at which a commit-log file expires, counted from its last modification.",
    )
    delete_when: tuple[int, ...] = RETENTION.live(
        (4,), "deleteWhen", Hours(), "Hours of the local day in which expired files are deleted."
    )
    disk_max_used_ratio: float = RETENTION.live(
        0.75,
        "diskMaxUsedSpaceRatio",
        Ratio(0.10, 0.95),
        "Above this ratio, expired files are deleted at any hour.",
    )
    disk_clean_forcibly_ratio: float = RETENTION.live(
        0.85,
        "diskSpaceCleanForciblyRatio",
        Ratio(0.30, 0.85),
        "While usage is above this ratio, files are deleted one by one, expired or not. RocketMQ"
        " deletes ten at once.",
    )
    disk_warning_ratio: float = RETENTION.live(
        0.90,
        "diskSpaceWarningLevelRatio",
        Ratio(0.35, 0.90),
        "Above this ratio, puts are refused until usage is below `disk_clean_forcibly_ratio`.",
    )
    clean_forcibly: bool = RETENTION.live(
        True,
        "cleanFileForciblyEnable",
        FLAG,
        "Allow the deletion of files that have not expired; without it a full disk stops puts.",
    )
    clean_interval_ms: int = RETENTION.live(
        10_000, "cleanResourceInterval", MS, "Pause between cleanup rounds."
    )
    delete_batch_max: int = RETENTION.live(
        10,
        "deleteFileBatchMax",
        Whole(1, unit="files"),
        "Maximum number of files deleted per round.",
    )
    delete_interval_ms: int = RETENTION.live(
        100,
        "deleteCommitLogFilesInterval",
        MS_OR_0,
        "Pause between two deletions, which are expensive on some file systems.",
    )
    delete_archived_only: bool = RETENTION(
        False,
        "",
        FLAG,
        "Delete only files that `firetrail pipeline archive` has copied to every lake it writes to,"
        " however full the disk is. Before the first run of the job, delete none.",
    )
    destroy_forcibly_after_ms: int = RETENTION.live(
        120_000,
        "destroyMapedFileIntervalForcibly",
        MS_OR_0,
        "How long a deleted file remains available to readers that still use it.",
    )

    in_sync_replicas: int = REPLICATION.live(
        2, "inSyncReplicas", Whole(1), "Number of copies to wait for. RocketMQ's default is 1."
    )
    auto_in_sync_replicas: bool = REPLICATION.live(
        False, "enableAutoInSyncReplicas", FLAG, "Wait only for the replicas that are connected."
    )
    min_in_sync_replicas: int = REPLICATION.live(
        1, "minInSyncReplicas", Whole(1), "Minimum number of copies with `auto_in_sync_replicas`."
    )
    slave_timeout_ms: int = REPLICATION.live(
        3000, "slaveTimeout", MS, "How long a put waits for replicas."
    )
    max_gap_not_in_sync: int = REPLICATION.live(
        256 * MIB,
        "haMaxGapNotInSync haSlaveFallbehindMax",
        BYTES,
        "A replica that is further behind does not count as connected.",
    )
    replica_retention_bytes: int = REPLICATION.live(
        64 * GIB,
        "",
        LOG_BYTES,
        "Expired files that a connected replica needs are kept if it is at most this far behind."
        " A disk above `disk_clean_forcibly_ratio` overrides this.",
    )

    max_transfer_bytes_in_memory: int = READ.live(
        256 * KIB,
        "maxTransferBytesOnMessageInMemory",
        BYTES,
        "Maximum bytes per get, for messages that are likely in memory.",
    )
    max_transfer_count_in_memory: int = READ.live(
        32,
        "maxTransferCountOnMessageInMemory",
        MESSAGES,
        "Maximum messages per get, for messages that are likely in memory.",
    )
    max_transfer_bytes_on_disk: int = READ.live(
        64 * KIB,
        "maxTransferBytesOnMessageInDisk",
        BYTES,
        "Maximum bytes per get, for older messages, which are likely only on disk.",
    )
    max_transfer_count_on_disk: int = READ.live(
        8,
        "maxTransferCountOnMessageInDisk",
        MESSAGES,
        "Maximum messages per get, for older messages, which are likely only on disk.",
    )
    in_memory_ratio: float = READ(
        0.40,
        "accessMessageInMemoryMaxRatio",
        Ratio(),
        "Fraction of the machine's memory that is assumed to hold the newest messages.",
    )
    max_filter_bytes: int = READ.live(
        16_000,
        "maxFilterMessageSize",
        Whole(layout.UNIT.size, unit="bytes"),
        "Maximum bytes of the consume queue that one get examines, 20 per message. A get that asks"
        " for more messages than that examines as many as it asks for.",
    )
    offset_check_in_slave: bool = READ.live(
        False,
        "offsetCheckInSlave",
        FLAG,
        "Let a slave answer a get outside the queue with the offset to continue from, as a master"
        " does.",
    )
    max_query_count: int = READ.live(
        64, "maxMsgsNumBatch", MESSAGES, "Maximum number of messages per query by key."
    )
    default_query_count: int = READ.live(
        32,
        "defaultQueryMaxNum",
        MESSAGES,
        "Maximum number of messages per query by key that does not name a maximum.",
    )

    verify_reads: bool = DAMAGE.live(
        True, "", FLAG, "Check the checksum of every record before consumers get it."
    )
    repair_wait_ms: int = DAMAGE.live(
        30_000,
        "",
        MS_OR_0,
        "How long consumers wait at a damaged message for its repair from a replica or the master."
        " After that, and if there is no other broker, they skip it.",
    )
    scrub_bytes_per_second: int = DAMAGE.live(
        8 * MIB,
        "",
        BYTES_OR_0,
        "How fast a broker reads its log in the background to find damaged records; 0 turns it"
        " off.",
    )

    def __post_init__(self) -> None:
        values = {}
        for setting in SETTINGS.values():
            values[setting.name] = setting.checked(getattr(self, setting.name))
            object.__setattr__(self, setting.name, values[setting.name])
        for conflict in conflicts(values):
            raise ConfigError(conflict.name, values[conflict.name], conflict.detail)

    @property
    def max_record_size(self) -> int:
        """The longest record: a file must hold it and the mark of its end."""
        return min(
            self.max_message_size + RECORD_SLACK, self.commit_log_file_size - layout.BLANK.size
        )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the settings in ``changes``; all settings are checked again."""
        for name, value in changes.items():
            if name not in SETTINGS:
                raise ConfigError(name, value, f"no such setting{did_you_mean(name, SETTINGS)}")
        return dataclasses.replace(self, **changes)

    def for_files(self, **sizes: int) -> Self:
        """Return these settings for a store whose existing files have the given ``sizes``.

        If ``max_message_size`` exceeds what a log file can hold, it is lowered to that.
        """
        room = body_room(sizes.get("commit_log_file_size", self.commit_log_file_size))
        return self.replace(max_message_size=min(self.max_message_size, room), **sizes)

    @property
    def corrects_offsets(self) -> bool:
        """Whether readers at an offset that a queue does not have are moved to one that it has.

        A slave does so only with ``offset_check_in_slave``, because it may lag behind.
        """
        return self.role is not BrokerRole.SLAVE or self.offset_check_in_slave

    @classmethod
    def from_properties(
        cls, source: str | os.PathLike[str], system: System = SYSTEM
    ) -> LoadedConfig:
        """Return the settings in a ``broker.conf``, with defaults for those that it lacks.

        Python names of settings are accepted beside RocketMQ's keys and take precedence. A file
        that RocketMQ accepts is accepted: a value that the Java store would correct is corrected
        and listed in ``adjusted``.

        Args:
            source: The file as a ``Path``, or its content as a string.
            system: Reads the file. Default: that of the machine.
        """
        if isinstance(source, os.PathLike):
            # UTF-8 matters only in comments: all values are ASCII.
            text = system.files.read(Path(source)).decode("utf-8", "replace")
            return _load(parse_properties(text, os.fspath(source)))
        if source and not any(mark in source for mark in "=: \t\r\n"):
            raise ConfigError(
                "source", source, "is not the content of a broker.conf; pass a Path for a file"
            )
        return _load(parse_properties(source))

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> LoadedConfig:
        """Return the settings in ``values``, with keys and values as in ``broker.conf``."""
        return _load({key: Entry(value) for key, value in values.items()})

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> LoadedConfig:
        """Return the settings in parsed ``entries``, which may include settings of the broker."""
        return _load(entries)


SETTINGS: Mapping[str, Setting] = table(StoreConfig)
"""Every setting by its Python name, in the order of the reference page."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Settings that were read, with remarks on the other keys and values of the file."""

    config: StoreConfig
    unknown: tuple[Remark, ...]
    """Keys that neither RocketMQ nor Firetrail has, most likely misspelt."""
    ignored: tuple[Remark, ...]
    """Keys of RocketMQ that have no effect on this store."""
    adjusted: tuple[Remark, ...]
    """Values that were corrected."""

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """All remarks, the most important first."""
        return self.unknown + self.adjusted + self.ignored


_ROOT_KEY = "storePathRootDir"


def _load(entries: Mapping[str, Entry]) -> LoadedConfig:
    reading = read_settings(SETTINGS, entries)
    values = {name: setting.default for name, setting in SETTINGS.items()} | reading.values
    if _ROOT_KEY in entries:
        for name in ("commit_log_paths", "read_only_log_paths"):
            values[name] = relocated(entries[_ROOT_KEY].text, values[name])

    def written_as(name: str) -> str:
        setting = SETTINGS[name]
        written = (key for key in reversed(setting.names_in_file) if key in entries)
        return next(written, setting.key)

    for name, nearest, detail in conflicts(values, written_as):
        values[name] = nearest
        key = written_as(name)
        place = entries[key].place if key in entries else ""
        shown = SETTINGS[name].kind.show(nearest)
        reading.adjusted.append(Remark(key, f"is taken as {shown}: {detail}", place))
    return LoadedConfig(
        StoreConfig(**values),
        unknown=tuple(reading.unknown),
        ignored=tuple(reading.ignored),
        adjusted=tuple(reading.adjusted),
    )
