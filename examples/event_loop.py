"""Many coroutines put at once, each acknowledged when its message is on the disk.

With SYNC_FLUSH all who wait share one sync of the disk: a thousand puts take a few of them. And an
arrival listener hands new messages to the loop, for coroutines that wait for them.
"""

import asyncio
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from firetrail import Arrival, FlushMode, Message, Store, StoreConfig

COUNT = 1000


async def main() -> None:
    """Put from many coroutines, count the arrivals in another."""
    config = StoreConfig(flush=FlushMode.SYNC)
    with TemporaryDirectory() as folder, Store.open(folder, config) as store:
        all_arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def arrived(arrivals: Sequence[Arrival]) -> None:
            """Called in the store's thread: be quick."""
            if any(arrival.topic == "readings" for arrival in arrivals):
                loop.call_soon_threadsafe(check)

        def check() -> None:
            """Called in the loop."""
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
