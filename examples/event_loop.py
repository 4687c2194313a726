"""Many coroutines put messages at the same time; each put returns when its message is on disk.

With SYNC_FLUSH, all waiting puts share one sync: a thousand puts need only a few. An arrival
listener notifies the event loop of new messages, for coroutines that wait for them.
"""

import asyncio
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from firetrail import Arrival, FlushMode, Message, Store, StoreConfig

COUNT = 1000


async def main() -> None:
    """Put from many coroutines, and wait until all messages have arrived."""
    config = StoreConfig(flush=FlushMode.SYNC)
    with TemporaryDirectory() as folder, Store.open(folder, config) as store:
        all_arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def arrived(arrivals: Sequence[Arrival]) -> None:
            """Run in the store's thread; must be quick."""
            if any(arrival.topic == "readings" for arrival in arrivals):
                loop.call_soon_threadsafe(check)

        def check() -> None:
            """Run in the event loop."""
            if store.max_offset("readings") == COUNT:
                all_arrived.set()

        store.on_arrival(arrived)
        started = time.perf_counter()
        puts = (store.put_async(Message("readings", b"%d" % n)) for n in range(COUNT))
        results = await asyncio.gather(*puts)
        seconds = time.perf_counter() - started
        print(f"{len(results)} messages on the disk after {seconds:.3f} s")
        await asyncio.wait_for(all_arrived.wait(), timeout=10)
        print(f"and {store.max_offset('readings')} can be read")


asyncio.run(main())
