"""Work that is done again and again, whatever becomes of it once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from firetrail.errors import FiretrailError

AFTER_ERROR_S = 1.0


async def repeat(step: Callable[[], float], trouble: str, log: logging.Logger) -> None:
    """Take ``step``, which says after how many seconds it wants to be taken again, for ever.

    If it fails, ``trouble`` and why is logged, and it is tried again.
    """
    while True:
        try:
            pause = step()
        except FiretrailError as error:
            log.error("%s: %s", trouble, error)
            pause = AFTER_ERROR_S
        except Exception:  # nobody has foreseen it
            log.exception("%s", trouble)
            pause = AFTER_ERROR_S
        await asyncio.sleep(pause)
