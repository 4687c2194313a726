"""The settings of a proxy in a process of its own: limits, and the audit log."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from firetrail.format.files.java_properties import Entry
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.conf_file import read_settings, refuse_typos
from firetrail.settings.log_settings import LogSettings
from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.settings.settings_table import Setting, table
from firetrail.tls.tls_config import refuse_misplaced

NO_KEY = "is not a setting of the proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig(ServerLimitSettings, AuditSettings, LogSettings):
    """The settings of a proxy, as keyword arguments. An instance never changes.

    Args:
        max_connections, connections_per_address, connection_rate_per_address,
        request_rate_per_address, byte_rate_per_address, connections_per_user,
        request_rate_per_user, byte_rate_per_user, limit_loopback, buffered_bytes, stranger_bytes:
            Limits for clients, see ``docs/configuration.md``.
        audit_log, audit_file_bytes, audit_files, audit_rate: The audit log, see there.
        log_level: The least severe level that is logged. Default: INFO.

    Raises:
        ConfigError: A value is invalid.
    """

    def __post_init__(self) -> None:
        for declared in fields(self):
            SETTINGS[declared.name].checked(getattr(self, declared.name))

    @classmethod
    def from_entries(cls, entries: Mapping[str, Entry]) -> tuple[Self, list[str]]:
        """Return the settings in a file, and remarks about keys that have no effect.

        Args:
            entries: The keys and values of the file.

        Raises:
            ConfigError: A value is invalid, or a setting belongs into the file of TLS.
        """
        refuse_misplaced(entries)
        reading = read_settings(SETTINGS, entries, {}, NO_KEY)
        refuse_typos(reading.unknown)
        return cls(**reading.values), [str(remark) for remark in reading.remarks]


SETTINGS: Mapping[str, Setting] = table(ProxyConfig)
"""The table: every setting by its Python name."""
