"""Log lines about unexpected errors, for all servers and handlers.

A peer that can cause an error must not be able to fill the disk, so lines are limited by kind.
"""

from __future__ import annotations

import logging

from firetrail.pace.limited_log import LimitedLog
from firetrail.system import SYSTEM

_LIMITED = LimitedLog(logging.getLogger(__name__), SYSTEM.clock.monotonic)


def log_unexpected(text: str, error: BaseException, kind: str = "") -> None:
    """Log an error with its traceback, unless there were many of its kind.

    Args:
        text: The part that failed, as a clause.
        error: The error. Its type is part of the kind.
        kind: The kind, if the text differs from line to line. Default: the text.
    """
    _LIMITED.log(logging.ERROR, f"{kind or text} {type(error).__name__}", text, error)
