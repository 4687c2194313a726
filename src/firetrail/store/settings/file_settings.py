"""The settings of a store's files: the first part of the table in ``store_config``."""

from dataclasses import dataclass

from firetrail.format import layout
from firetrail.format.files.index import DEFAULT_ENTRIES, DEFAULT_SLOTS
from firetrail.format.values.integers import INT32_MAX
from firetrail.settings.settings_table import Folders, Whole
from firetrail.store.settings.config_groups import FILES, FLAG, GIB, MIB
from firetrail.store.settings.config_rules import MOST_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """The settings with which the files of a store are created."""

    commit_log_file_size: int = FILES(
        1 * GIB,
        "mappedFileSizeCommitLog mapedFileSizeCommitLog",
        Whole(256, unit="bytes"),
        "Length of a commit-log file.",
    )
    commit_log_paths: tuple[str, ...] = FILES(
        (),
        "storePathCommitLog",
        Folders(),
        "Folders of the commit log, which get new files in turn; a relative path is below the"
        " store. Default: those in the store's `firetrail.log-paths`, or else `commitlog`.",
    )
    read_only_log_paths: tuple[str, ...] = FILES(
        (),
        "readOnlyCommitLogStorePaths",
        Folders(),
        "Folders of the commit log that get no new files.",
    )
    consume_queue_file_size: int = FILES(
        300_000 * layout.UNIT.size,
        "mappedFileSizeConsumeQueue mapedFileSizeConsumeQueue",
        Whole(layout.UNIT.size, unit="bytes", step=layout.UNIT.size),
        "Length of a consume-queue file, rounded up to whole units of 20 bytes.",
    )
    extended_queues: bool = FILES(
        False,
        "enableConsumeQueueExt",
        FLAG,
        "Write an extended unit per message, with a bitmap of the SQL92 filters that it matches.",
    )
    extension_file_size: int = FILES(
        48 * MIB,
        "mappedFileSizeConsumeQueueExt",
        Whole(64, INT32_MAX, unit="bytes"),
        "Length of a file of extended units.",
    )
    index_enabled: bool = FILES(
        True, "messageIndexEnable", FLAG, "Build index files, which find messages by key."
    )
    index_slots: int = FILES(
        DEFAULT_SLOTS, "maxHashSlotNum", Whole(1, MOST_SLOTS), "Hash slots of an index file."
    )
    index_entries: int = FILES(
        DEFAULT_ENTRIES, "maxIndexNum", Whole(2), "Entries of an index file; the first is unused."
    )
    index_tags: bool = FILES(
        False,
        "",
        FLAG,
        "Add tags to the index as well, as RocketMQ 5.5 does. If an existing index already shows"
        " whether it contains tags, that choice is kept.",
    )
    warm_up: bool = FILES(
        False,
        "warmMapedFileEnable",
        FLAG,
        "Touch every page of a commit-log file when it is created, before it is needed.",
    )
    lock_memory: bool = FILES(
        False, "", FLAG, "Keep the active commit-log file and the write buffers in memory (mlock)."
    )
