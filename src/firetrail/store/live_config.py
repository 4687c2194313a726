"""Settings of a store that can be changed while it is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firetrail.errors import ConfigError
from firetrail.store.config import StoreConfig

LIVE = frozenset(
    [
        "max_message_size",
        "sync_flush_timeout_ms",
        "flush_interval_ms",
        "flush_least_pages",
        "flush_thorough_interval_ms",
        "consume_queue_flush_least_pages",
        "consume_queue_flush_thorough_interval_ms",
        "commit_interval_ms",
        "commit_least_pages",
        "commit_thorough_interval_ms",
        "file_reserved_hours",
        "delete_when",
        "disk_max_used_ratio",
        "disk_clean_forcibly_ratio",
        "disk_warning_ratio",
        "clean_forcibly",
        "clean_interval_ms",
        "delete_batch_max",
        "delete_interval_ms",
        "destroy_forcibly_after_ms",
        "max_transfer_bytes_in_memory",
        "max_transfer_count_in_memory",
        "max_transfer_bytes_on_disk",
        "max_transfer_count_on_disk",
        "max_filter_bytes",
        "max_query_count",
        "default_query_count",
        "offset_check_in_slave",
    ]
)


def check_changes(config: StoreConfig, changes: Mapping[str, Any]) -> StoreConfig:
    """Return the changed settings; raise ConfigError for changes that need a closed store."""
    for name, value in changes.items():
        if name not in LIVE:
            raise ConfigError(name, value, "cannot be changed while the store is open")
    changed = config.replace(**changes)
    if config.write_buffer_pool and changed.max_record_size > config.max_record_size:
        raise ConfigError(
            "max_message_size",
            changed.max_message_size,
            f"at most {config.max_message_size}, the size of the write buffers; reopen the store",
        )
    return changed
