"""The modules that a message passes from the socket to the log and back, traced in a broker.

``FIRETRAIL_PURE=1 python tests/broker/walk.py`` prints them as JSON. A client in the form of
RocketMQ 4.9's sends a message to a store with SYNC_FLUSH while another one's pull is waiting. The
profiler sees calls of Python functions only, so the kernels have to be uncompiled.
"""

import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Any

from firetrail.broker import BackgroundBroker, BrokerConfig
from firetrail.store.settings.store_config import FlushMode, StoreConfig

WARM, MEASURED = 3, 5
SEND, PULL = 310, 11
PROPERTIES = "UNIQ_KEY\x01A0\x02KEYS\x01k\x02TAGS\x01t\x02"
OTHER_THREADS = ("firetrail-housekeeper", "firetrail-allocator")
"""Threads whose work does not belong to any message."""
OTHER_WORK = "firetrail.pace.periodic"
"""Runs the periodic work of the broker's services."""


class Recorder:
    """Notes the modules of the package whose functions are called while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("firetrail.") and not _is_other_work(frame):
                self.modules.add(module)


def _is_other_work(frame: FrameType | None) -> bool:
    if threading.current_thread().name.startswith(OTHER_THREADS):
        return True
    while frame is not None and frame.f_globals.get("__name__") != OTHER_WORK:
        frame = frame.f_back
    return frame is not None


class StockClient:
    """Speaks the remoting protocol without Firetrail's own client."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._file = self._socket.makefile("rb")

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        head = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399}
        head |= {"serializeTypeCurrentRPC": "JSON", "extFields": dict(fields)}
        encoded = json.dumps(head).encode()
        sizes = struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded))
        self._socket.sendall(sizes + encoded + body)

    def answer(self) -> dict[str, Any]:
        """Return the header of the next response."""
        (size,) = struct.unpack(">i", self._file.read(4))
        frame = self._file.read(size)
        head: dict[str, Any] = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
        return head

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def send_fields() -> dict[str, str]:
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
    fields |= {"g": str(time.time_ns() // 1_000_000), "i": PROPERTIES, "j": "0"}
    return fields | {"k": "false", "m": "false"}


def pull_fields(offset: int) -> dict[str, str]:
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "subVersion": "0"}
    return fields | {"suspendTimeoutMillis": "15000", "subscription": "*", "expressionType": "TAG"}


def walk() -> dict[str, list[str]]:
    """Return the modules that most messages pass, and those that the first one passed besides."""
    recorder = Recorder()
    threading.setprofile(recorder)
    config = StoreConfig(flush=FlushMode.SYNC, commit_log_file_size=8 << 20)
    passed: Counter[str] = Counter()
    with BackgroundBroker(None, BrokerConfig(), config) as broker:
        producer, consumer = StockClient(broker.address), StockClient(broker.address)
        first: set[str] = set()
        for number in range(WARM + MEASURED):
            if number:
                while broker.store.max_offset("T", 0) < number:
                    time.sleep(0.001)
                consumer.tell(PULL, pull_fields(number))
                time.sleep(0.05)  # until the broker holds it
            recorder.modules = set()
            recorder.is_on = True
            producer.tell(SEND, send_fields(), b"x" * 100)
            assert producer.answer()["code"] == 0
            if number:
                assert consumer.answer()["code"] == 0
            recorder.is_on = False
            if number == 0:
                first = recorder.modules
            elif number >= WARM:
                passed.update(recorder.modules)
        producer.close()
        consumer.close()
    usual = {module for module, count in passed.items() if 2 * count > MEASURED}
    return {"every": sorted(usual), "first": sorted(first - usual)}


if __name__ == "__main__":
    json.dump(walk(), sys.stdout, indent=1)
