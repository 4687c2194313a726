"""A loop that repeats a step forever and survives its failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from firetrail.errors import FiretrailError
from firetrail.replication.reminders import Reminders

AFTER_ERROR_S = 1.0


async def repeat(step: Callable[[], float], trouble: str, log: logging.Logger) -> None:
    """Call ``step`` forever; it returns how many seconds to wait before the next call.

    If it fails, the error is logged after the words of ``trouble``, and the step is retried. The
    same error is logged again at growing intervals.
    """
    reminders = Reminders(asyncio.get_running_loop().time)
    while True:
        try:
            pause = step()
            reminders.forget()
        except FiretrailError as error:
            if reminders.is_due(str(error)):
                log.error("%s: %s", trouble, error)
            pause = AFTER_ERROR_S
        except Exception:  # unexpected, so the traceback is logged
            log.exception("%s", trouble)
            pause = AFTER_ERROR_S
        await asyncio.sleep(pause)
