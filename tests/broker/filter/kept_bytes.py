"""The memory that calls do not free, for tests of caches."""

import gc
import tracemalloc
from collections.abc import Callable


def kept_bytes(call: Callable[[int], object], count: int) -> int:
    """Call ``call`` with each number below ``count``; return the bytes that are kept after that."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            call(number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
