"""The setting of the log, for brokers, name servers and proxies."""

import logging
from dataclasses import dataclass
from enum import Enum

from firetrail.settings.settings_table import Group, OneOf

LOG = Group(
    "Log",
    "`--log-level` of the command that starts the server takes precedence at the start. The other"
    " options of the log are arguments of that command.",
)


class LogLevel(Enum):
    """The severity from which events are logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"

    def apply(self) -> None:
        """Use this level from now on; other libraries keep theirs."""
        logging.getLogger("firetrail").setLevel(self.value)


@dataclass(frozen=True, kw_only=True)  # no slots: of several bases, only one can have them
class LogSettings:
    """The settings of the log."""

    log_level: LogLevel = LOG.live(  # noqa: RUF009  (it creates a field, one value for each)
        LogLevel.INFO,
        "",
        OneOf(LogLevel),
        "Least severe level that is logged: DEBUG, INFO, WARNING or ERROR.",
    )
