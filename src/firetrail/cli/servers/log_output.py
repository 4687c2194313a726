"""The log of a server: its level, format and destination."""

import argparse
import json
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TypeVar

from firetrail.settings.log_settings import LogLevel, LogSettings
from firetrail.system import SYSTEM
from firetrail.text import printable

LEVELS = tuple(level.value.lower() for level in LogLevel)
SIZE_DEFAULT, KEEP_DEFAULT = "64M", 5
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LogConfig = TypeVar("LogConfig", bound=LogSettings)

_TEXT = "%(asctime)s %(levelname)-7s %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the logging options of the commands that run servers."""
    group = parser.add_argument_group("log")
    group.add_argument(
        "--log-level",
        choices=LEVELS,
        help="least severe level that is logged (default: log_level in FILE, or info)",
    )
    group.add_argument(
        "--log-json", action="store_true", help="log one JSON object per line instead of text"
    )
    group.add_argument(
        "--log-file",
        metavar="FILE",
        type=Path,
        help="log to this file, and rotate it (default: standard error)",
    )
    group.add_argument(
        "--log-size",
        metavar="SIZE",
        type=size,
        default=SIZE_DEFAULT,
        help="rotate the file at this size, such as 500K or 1G (default: %(default)s)",
    )
    group.add_argument(
        "--log-keep",
        metavar="N",
        type=int,
        choices=range(1, 1000),
        default=KEEP_DEFAULT,
        help="keep N rotated files; FILE.1 is the newest (default: %(default)s)",
    )


def size(text: str) -> int:
    """Parse an argument that is a number of bytes."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})([KMG]?)", text)
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[match[2]]


def set_up(args: argparse.Namespace) -> None:
    """Configure logging from the arguments; other libraries log only warnings."""
    logging.basicConfig(handlers=[handler_of(args)], level=logging.WARNING)
    with_level(args, LogSettings()).log_level.apply()


def with_level(args: argparse.Namespace, config: LogConfig) -> LogConfig:
    """Return settings with the level that the arguments ask for; it takes precedence."""
    if args.log_level is None:
        return config
    return replace(config, log_level=LogLevel(args.log_level.upper()))


def handler_of(args: argparse.Namespace) -> logging.Handler:
    """Return the handler that the arguments ask for."""
    handler: logging.Handler = logging.StreamHandler()
    if args.log_file is not None:
        handler = PrivateFileHandler(
            args.log_file, maxBytes=args.log_size, backupCount=args.log_keep, encoding="utf-8"
        )
    handler.setFormatter(JsonLines() if args.log_json else TextLines(_TEXT))
    return handler


def reopen() -> None:
    """Open the log file again, which another program may have renamed."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrivateFileHandler):
            handler.reopen()


class PrivateFileHandler(RotatingFileHandler):
    """Writes a log that only the owner of the process can read: it has names and addresses."""

    def reopen(self) -> None:
        """Close the file, and open the one that has its name now; create it if there is none."""
        self.acquire()
        try:
            if self.stream is not None:
                self.stream.close()
            self.stream = self._open()
        finally:
            self.release()

    def _open(self) -> TextIOWrapper:
        """Open the file, or create it; a file that others can read becomes private."""
        path, files = Path(self.baseFilename), SYSTEM.files
        files.close(files.open(path, writable=True, create=True))
        if path.is_file() and not files.is_private(path):  # not a device or a pipe
            files.make_private(path)
        return super()._open()


class TextLines(logging.Formatter):
    """Formats log records as lines of text.

    Control characters are escaped: names of clients must not forge lines or control a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its traceback."""
        return printable(super().formatMessage(record))


class JsonLines(logging.Formatter):
    """Formats log records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = datetime.fromtimestamp(record.created, UTC)
        found = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)
