"""Topics and groups that are created, changed and deleted.

The promise: an acknowledged change is in the files. The topic or group exists with its last
settings, or does not exist if it was deleted. A change without an answer may have happened or not.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.crash.files_check import Raw
from tests.crash.oracle import Violation
from tests.torture.clients.use import Use, config_of

from firetrail.client import Admin
from firetrail.remoting.messages.bodies import SubscriptionGroupConfig

NAMES = 12
GONE = 0
"""Marks a deleted topic or group, in place of its number of queues."""
FILES = {
    "topic": ("topics.json", "topicConfigTable", "readQueueNums"),
    "group": ("subscriptionGroup.json", "subscriptionGroupTable", "retryQueueNums"),
}
"""By kind: the file, its table, and the field that is changed."""


class Administering(Use):
    """An administrator that changes topics and groups one after the other."""

    async def begin(self, resources: AsyncExitStack) -> None:
        self._possible: dict[tuple[str, str], set[int]] = {}
        """By kind and name: the numbers of queues that it may have."""
        self.answered = 0
        self._admin = await resources.enter_async_context(Admin(self._load.namesrv))
        self._load.begin(self._load.forever(self._change, self._load.sending))

    async def _change(self) -> None:
        await asyncio.sleep(0.05)
        kind = self._source.choice(list(FILES))
        name = f"A-{kind}-{self._source.randrange(NAMES)}"
        queues = self._source.choice((GONE, 1, 2, 3))
        possible = self._possible.setdefault((kind, name), {GONE})
        possible.add(queues)
        if queues == GONE:
            await (self._admin.delete_topic if kind == "topic" else self._admin.delete_group)(name)
        elif kind == "topic":
            await self._admin.create_topic(name, queues=queues)
        else:
            await self._admin.create_group(SubscriptionGroupConfig(name, retry_queue_nums=queues))
        self.answered += 1
        possible.clear()
        possible.add(queues)

    def figures(self) -> dict[str, int]:
        return {"changes of topics and groups": self.answered}

    def missing(self) -> Sequence[object]:
        """Return nothing: these clients wait for no messages."""
        return ()

    def look(self, store: Path, records: Sequence[Raw]) -> None:
        """Check that the files contain every acknowledged change."""
        found = {
            kind: config_of(store, file).get(table, {}) for kind, (file, table, _) in FILES.items()
        }
        for (kind, name), possible in self._possible.items():
            entry = found[kind].get(name)
            queues = GONE if entry is None else entry[FILES[kind][2]]
            if queues not in possible:
                raise Violation(f"I1: {kind} {name} has {queues} queues, not {possible}")
