"""Messages to store, and the records that must then be in the log.

A message is a line of the peer's spec (interop/java/README.md), for either side. The expected
record is computed here from the line, except for the values that only the store knows: position,
queue offset and store time, which it reports for every put.
"""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Iterable
from typing import Any

from interop.peer import Json

RETRY_TOPIC = "%RETRY%" + "a-consumer-group-with-a-long-name_" * 3 + "a_topic_with_a_long_name_too"
LONGEST_TOPIC = "T" * 127
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
MAX_DELAY_LEVEL = 18
PREPARED, COMMIT, ROLLBACK, TRANSACTION = 0x4, 0x8, 0xC, 0xC
BORN_V6, STORE_V6 = 0x10, 0x20
MAGIC_V1, MAGIC_V2 = 0xDAA320A7, 0xDAA320AB
CRC_ROOM = 20

STORE_V4, STORE_V6_HOST = "192.168.1.2:10911", "[2001:db8:0:1::2]:10911"
BORN_V4, BORN_V6_HOST = "10.1.2.3:50001", "[2001:db8::7]:50001"


def encoded(body: bytes) -> str:
    """Return a body in the form that it has in JSON."""
    return base64.b64encode(body).decode()


def message(topic: str, body: str | bytes = b"", **fields: Any) -> Json:
    """Return a line with the hosts and born time that messages have unless ``fields`` differ."""
    content = body.encode() if isinstance(body, str) else body
    return {
        "topic": topic,
        "body": encoded(content),
        "flag": 7,
        "born_time": 1600000000123,
        "born_host": BORN_V4,
        "store_host": STORE_V4,
        **fields,
    }


def plain(number: int, topic: str = "T1", queues: int = 2, **fields: Any) -> Json:
    """Return an ordinary message: a tag out of three, two keys, a unique key."""
    return message(
        topic,
        f"hello {number}",
        queue_id=number % queues,
        properties={
            "KEYS": f"k{number} common",
            "TAGS": f"Tag{number % 3}",
            "UNIQ_KEY": f"C0A8010200002A9F{number:016X}",
        },
        **fields,
    )


def specials() -> list[Json]:
    """Return one of every record variant that 4.9 and 5.x both know."""
    tags = {"TAGS": "TagA"}
    half = {"KEYS": "half"}
    hosts = [
        message("T6", f"{store} {born}", born_host=born, store_host=store, properties=tags)
        for store in (STORE_V4, STORE_V6_HOST)
        for born in (BORN_V4, BORN_V6_HOST)
    ]
    packed = zlib.compress(b"a body that a client has compressed " * 8)
    items = [
        {"body": encoded(b"item %d" % i), "flag": i, "properties": {"KEYS": f"b{i}", **tags}}
        for i in range(3)
    ]
    uneven = [
        {"body": ""},
        {"body": encoded("тело".encode()), "properties": {"TAGS": "метка", "KEYS": "ключ😀"}},
    ]
    return [
        *hosts,
        message("TC", packed, sys_flag=0x1, properties={"KEYS": "packed"}),
        message("TC", packed, sys_flag=0x301, properties={"KEYS": "packed-zlib"}),
        message("TD", "later", queue_id=1, properties={"DELAY": "3", "KEYS": "delayed"}),
        message("TD", "much later", queue_id=2, properties={"DELAY": "40", **tags}),
        message("TD", "bare", properties={"DELAY": "1"}),
        message("TH", "prepared", sys_flag=PREPARED, properties={**half, "TRAN_MSG": "true"}),
        message("TH", "not yet", sys_flag=PREPARED, properties={"KEYS": "late", "DELAY": "2"}),
        message("TH", "rolled back", sys_flag=ROLLBACK, prepared_offset=1234, properties=half),
        message("TH", "committed", sys_flag=COMMIT, prepared_offset=1234, properties=half),
        message("TH", "both", sys_flag=COMMIT, prepared_offset=99, properties={"DELAY": "2"}),
        message("TE"),
        message("TE", "no properties, tried again", reconsume_times=2, flag=-1),
        message("TE", properties={"KEYS": "nothing"}),
        message("TU", "中文 body", properties={"TAGS": "中文", "KEYS": "ключ"}),
        message("TU", "😀", properties={"TAGS": "метка😀", "KEYS": "ключ😀 k-é", "ünï": "çødé"}),
        {**message("TB", queue_id=1), "batch": items, "properties": {"CLUSTER": "DefaultCluster"}},
        {**message("TB"), "batch": uneven},
        {**message("TB", born_host=BORN_V6_HOST), "batch": items[:1]},
        message(LONGEST_TOPIC, "the longest topic of a v1 record", properties=tags),
        message("%DLQ%group", "dead", properties={"KEYS": "dead", "UNIQ_KEY": "A" * 32}),
    ]


def long_retry() -> list[Json]:
    """Return a record of version 2, which 4.9 does not know and would truncate the log at."""
    return [
        message(RETRY_TOPIC, "again", reconsume_times=1, properties={"KEYS": "v2", "TAGS": "TagR"})
    ]


def stored_by(host: str, lines: Iterable[Json]) -> list[Json]:
    """Return the lines with the address of one store, as Firetrail stores them."""
    return [{**line, "store_host": host} for line in lines]


def mixed(seed: int, count: int, extra: Iterable[Json] = ()) -> list[Json]:
    """``count`` messages of random sizes, with ``extra`` ones strewn in between.

    No two seeds share a key other than ``common``.
    """
    rng = random.Random(seed)
    lines = []
    for number in range(seed * 10_000, seed * 10_000 + count):
        line = plain(number)
        line["body"] = encoded(rng.randbytes(rng.randrange(120)))
        lines.append(line)
    for special in extra:
        lines.insert(rng.randrange(len(lines) + 1), special)
    return lines


def stored(line: Json, result: Json, writer: str, crc: bool = False) -> list[Json]:
    """Return the records that ``line`` must have become, in the form of ``firetrail dump --json``.

    ``result`` is what the store said about the put, ``writer`` is v4, v5 or firetrail. Checksums
    of whole records (``crc``) count in sizes; the property that holds them is left out.
    """
    assert result["status"] == "PUT_OK", (line, result)
    if "batch" not in line:
        return [_record(line, result, line, _properties(line), result["size"])]
    records = []
    place = dict(result)
    for item in line["batch"]:
        own = {"flag": 0, **item}
        own["properties"] = dict(item.get("properties", {}))
        if writer != "v5":  # 5.5.1 no longer adds those of the batch
            own["properties"] |= line.get("properties", {})
        size = _size(line, own, writer, crc)
        records.append(_record(line, place, own, own["properties"], size))
        place["physical_offset"] += size
        place["queue_offset"] += 1
    assert place["physical_offset"] == result["physical_offset"] + result["size"]
    assert len(records) == result["messages"]
    return records


def _properties(line: Json) -> dict[str, str]:
    """Return the properties of a single message, as the store completes them."""
    properties = dict(line.get("properties", {}))
    if _delay(line):
        properties |= {
            "DELAY": str(_delay(line)),
            "REAL_TOPIC": line["topic"],
            "REAL_QID": str(line.get("queue_id", 0)),
        }
    return properties


def _delay(line: Json) -> int:
    """Return the effective delay level; a message that is not visible yet is not delayed."""
    if line.get("sys_flag", 0) & TRANSACTION in (PREPARED, ROLLBACK):
        return 0
    return min(int(line.get("properties", {}).get("DELAY", 0)), MAX_DELAY_LEVEL)


def _size(line: Json, item: Json, writer: str, crc: bool) -> int:
    """Length of the record of a batch item."""
    properties = item["properties"]
    text = sum(len(f"{name}{value}".encode()) + 2 for name, value in properties.items())
    if writer == "v4" and text:
        text -= 1  # 4.9.8 leaves the last separator out
    hosts = sum(12 for host in (line["born_host"], line["store_host"]) if host.startswith("["))
    body = len(base64.b64decode(item["body"]))
    return 91 + hosts + body + len(line["topic"]) + text + (CRC_ROOM if crc else 0)


def _record(line: Json, place: Json, own: Json, properties: dict[str, str], size: int) -> Json:
    body = base64.b64decode(own["body"])
    topic, queue_id, delay = line["topic"], line.get("queue_id", 0), 0
    if "batch" not in line and (delay := _delay(line)):
        topic, queue_id = SCHEDULE_TOPIC, delay - 1
    sys_flag = line.get("sys_flag", 0)
    sys_flag |= BORN_V6 if line["born_host"].startswith("[") else 0
    sys_flag |= STORE_V6 if line["store_host"].startswith("[") else 0
    visible = sys_flag & TRANSACTION in (0, COMMIT)
    return {
        "physical_offset": place["physical_offset"],
        "size": size,
        "magic": MAGIC_V2 if len(topic) > 127 else MAGIC_V1,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": place["queue_offset"] if visible else 0,
        "sys_flag": sys_flag,
        "flag": own["flag"],
        "born_time": line["born_time"],
        "born_host": line["born_host"],
        "store_time": place["store_time"],
        "store_host": line["store_host"],
        "reconsume_times": line.get("reconsume_times", 0),
        "prepared_offset": line.get("prepared_offset", 0),
        "body_crc": zlib.crc32(body) & 0x7FFFFFFF,
        "properties": properties,
        "body": own["body"],
    }
