"""The targets of a replay: a store that is not in use, or brokers.

A target takes commits with increasing numbers and knows the last one. A store records the number as
part of the commit, so no message is copied twice. Brokers cannot do that, so the number is recorded
in the folder of the source after the commit::

    firetrail.replayed.<id>    {"target": "namesrv=…", "replayed_to": <number>}

A replay that is killed between the two sends one commit again. Consumers can recognize the
duplicates by the property ``REPLAY_ORIGIN``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from firetrail.client.administration.admin import Admin
from firetrail.client.producers.producer import Producer
from firetrail.errors import StoreError
from firetrail.format.batch import decode_batch, encode_batch
from firetrail.format.names import REPLAYED_PREFIX
from firetrail.pipeline.options import GROUP
from firetrail.pipeline.wire.loop import Loop
from firetrail.pipeline.wire.request_retry import RequestRetry, no_broker
from firetrail.pipeline.wire.sender import CONNECT, OutgoingBatch, find_queues, send_in_order
from firetrail.remoting.messages.bodies import MessageQueue
from firetrail.remoting.wire.codes import Permission
from firetrail.store.bulk import BulkAppend, committed_numbers
from firetrail.store.bulk_journal import Ticket
from firetrail.store.settings.store_config import StoreConfig
from firetrail.system import SYSTEM


class ReplayPiece(NamedTuple):
    """Copies for one queue: the items of a client batch, all compressed in the same way or not."""

    topic: str
    queue_id: int
    items: bytes
    sys_flag: int


class Target(Protocol):
    """Receives the copies."""

    commit_bytes: int
    commit_messages: int

    def done(self) -> int:
        """Return the number of the last commit; -1 if there is none."""

    def anchors(self) -> dict[str, int]:
        """Return the records that identify the source, as physical offsets by SHA-256."""

    def note_anchor(self, sha256: str, offset: int) -> None:
        """Record a record that identifies the source."""

    def commit(self, number: int, pieces: Iterable[ReplayPiece]) -> bool:
        """Store all pieces and the number; return False if this number is already committed."""

    def is_home(self, store_host: str) -> bool:
        """Whether the broker at ``store_host`` is one of the target."""


class StoreTarget:
    """A store that is not in use: commits are atomic, and none is applied twice."""

    commit_bytes = 64 << 20
    commit_messages = 100_000

    def __init__(self, root: Path, config: StoreConfig, name: str) -> None:
        self.root = root
        self._config = config
        self._name = name

    def done(self) -> int:
        """Return the number that the store has recorded."""
        return committed_numbers(self.root, self._config).get(self._name, -1)

    def anchors(self) -> dict[str, int]:
        """Return the anchors among the store's writer ids, whose numbers are their offsets."""
        prefix = self._anchor("")
        numbers = committed_numbers(self.root, self._config)
        return {
            name.removeprefix(prefix): number
            for name, number in numbers.items()
            if name.startswith(prefix)
        }

    def note_anchor(self, sha256: str, offset: int) -> None:
        """Record an anchor as a writer id, in a commit without messages."""
        with BulkAppend(self.root, self._config, Ticket(self._anchor(sha256), offset)) as bulk:
            bulk.commit()

    def _anchor(self, sha256: str) -> str:
        return f"{self._name} of the store with {sha256}"

    def commit(self, number: int, pieces: Iterable[ReplayPiece]) -> bool:
        """Append the pieces in one commit."""
        with BulkAppend(self.root, self._config, Ticket(self._name, number)) as bulk:
            if bulk.done:
                return False
            for piece in pieces:
                bulk.add(*piece)
            bulk.commit()
        return True

    def is_home(self, store_host: str) -> bool:
        """Return False: whether the source is the target is known from their folders."""
        return False


class BrokerTarget(AbstractContextManager["BrokerTarget"]):
    """Brokers, where a message is visible as soon as it is sent.

    The messages of a queue are sent to one queue, in order. The queues of the topic are numbered by
    broker name and queue id, and the source's queue id selects one, modulo their number.
    """

    commit_bytes = 4 << 20
    commit_messages = 10_000

    def __init__(self, namesrv: str, source: Path, name: str) -> None:
        self._namesrv = namesrv
        self._target = f"namesrv={namesrv}"
        known = hashlib.sha256(repr((name, self._target)).encode()).hexdigest()[:16]
        self._mark = source / f"{REPLAYED_PREFIX}{known}"
        self._files = SYSTEM.files
        self._loop = Loop()
        self._producer = Producer(namesrv, GROUP, retries=1)
        self._retry = RequestRetry(namesrv, need=Permission.WRITE)
        self._homes: set[str] = set()

    def __enter__(self) -> Self:
        self._loop.__enter__()
        try:
            self._loop.run(self._open())
            self._note(self.done())  # fails before anything is sent if the folder is not writable
        except BaseException:
            self.__exit__()
            raise
        return self

    async def _open(self) -> None:
        async def find_homes() -> set[str]:
            async with Admin(self._namesrv) as admin:
                homes = {*(await admin.masters()).values()}
            if not homes:  # without them, a source that is also the target is not recognized
                raise no_broker()
            return homes

        await self._retry.ask(self._producer.open, CONNECT)
        self._homes = await self._retry.ask(find_homes, CONNECT)

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._producer.close())
        self._loop.__exit__()

    def done(self) -> int:
        """Return the number that is recorded in the folder of the source."""
        try:
            return int(json.loads(self._files.read(self._mark))["replayed_to"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._mark}: is not the progress of a replay; remove the file to start the "
                "replay from the beginning"
            ) from error

    def anchors(self) -> dict[str, int]:
        """Return none: progress is recorded in the source itself, so it needs no identification."""
        return {}

    def note_anchor(self, sha256: str, offset: int) -> None:
        """Do nothing, see :meth:`anchors`."""

    def _note(self, number: int) -> None:
        content = json.dumps({"target": self._target, "replayed_to": number}).encode()
        try:
            self._files.replace(self._mark, content)
        except OSError as error:
            raise StoreError(
                f"{self._mark}: cannot record the progress of the replay: {error.strerror}; make "
                "the folder writable, or replay a copy of the store"
            ) from error

    def commit(self, number: int, pieces: Iterable[ReplayPiece]) -> bool:
        """Send the pieces, then record the number."""
        self._loop.run(self._send(list(pieces)))
        self._note(number)
        return True

    async def _send(self, pieces: list[ReplayPiece]) -> None:
        batches: dict[MessageQueue, list[OutgoingBatch]] = {}
        for piece in pieces:
            queues = await find_queues(self._producer, piece.topic, self._retry)
            batch = batches.setdefault(queues[piece.queue_id % len(queues)], [])
            if piece.sys_flag:
                single = (encode_batch([item]) for item in decode_batch(piece.items))
                batch += [OutgoingBatch(piece.topic, items, piece.sys_flag) for items in single]
            else:
                batch.append(OutgoingBatch(piece.topic, piece.items))
        await send_in_order(self._producer, batches, self._retry)

    def is_home(self, store_host: str) -> bool:
        """Whether ``store_host`` is the address of one of the brokers."""
        return store_host in self._homes
