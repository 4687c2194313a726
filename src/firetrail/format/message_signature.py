"""The signature of :class:`~firetrail.format.kernels.draft.Message`.

A compiled class has no signature, but ``help()``, notebooks and IDEs ask for one. A test compares
this signature with the source of the class.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from firetrail.format.hosts import Host


def _message(
    topic: str,
    body: bytes | bytearray | memoryview,
    tags: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    queue_id: int = 0,
    delay_level: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_time: int | None = None,
    born_host: Host | None = None,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    raw_properties: bytes | None = None,
    wait_for_flush: bool = True,
) -> None: ...


MESSAGE_SIGNATURE = inspect.signature(_message)
