"""The settings of the audit log, for brokers, name servers and proxies."""

from dataclasses import dataclass

from firetrail.settings.settings_table import Flag, Group, Whole

AUDIT = Group(
    "Audit log",
    "A broker, name server or proxy with access control writes an"
    " [audit log](guide/security.md#audit-log) of logins, administration and denied requests:"
    " `audit/audit.log`, and `audit/strangers.log` for senders that are not authenticated. The"
    " sizes and rates hold for each of the two.",
)


@dataclass(frozen=True, kw_only=True)  # no slots: of several bases, only one can have them
class AuditSettings:
    """The limits of an audit log."""

    audit_log: bool = AUDIT(
        True, "", Flag(), "Write an audit log, if signatures are required (`authentication`)."
    )
    audit_file_bytes: int = AUDIT(
        16 << 20,
        "",
        Whole(64 << 10, unit="bytes"),
        "Size from which on the next file of the log is begun.",
    )
    audit_files: int = AUDIT(
        10, "", Whole(1, 1_000), "Number of files that are kept; the oldest are deleted."
    )
    audit_rate: int = AUDIT(
        20,
        "",
        Whole(1, 10_000),
        "Denied requests, and logins, per second that have a line of their own. The others are"
        " counted. Administration has ten times this rate.",
    )
