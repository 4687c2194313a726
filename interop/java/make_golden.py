"""The generator of the 5.x golden stores: make_golden.py DIRECTORY.

It creates v5-clean, v5-crashed, v5-propcrc and v5-light-crashed.

The stores under tests/golden were made once with this script. Running it again gives stores with
other timestamps, so it is kept as the record of how they came about, not run by any test.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = Path(__file__).with_name("run.sh")
RETRY_TOPIC = "%RETRY%" + "a-consumer-group-with-a-long-name_" * 3 + "a_topic_with_a_long_name_too"

Line = dict[str, object]


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def message(topic: str, body: str, **fields: object) -> Line:
    """Return one spec line with the hosts, flag and born time that all golden stores share."""
    return {
        "topic": topic,
        "body": b64(body),
        "flag": 7,
        "born_time": 1600000000123,
        "born_host": "10.1.2.3:50001",
        "store_host": "192.168.1.2:10911",
        **fields,
    }


def plain(number: int) -> Line:
    return message(
        "T1",
        f"hello {number}",
        queue_id=number % 2,
        properties={
            "KEYS": f"k{number} common",
            "TAGS": f"Tag{number % 3}",
            "UNIQ_KEY": f"C0A8010200002A9F{number:016X}",
        },
    )


def specials() -> list[Line]:
    """Return one of each: three combinations with IPv6, delay, transactions, empty, batch, v2."""
    six_born, six_store = "[2001:db8::7]:50001", "[2001:db8:0:1::2]:10911"
    tags = {"TAGS": "TagA"}
    item = [
        {"body": b64(f"item {i}"), "flag": i, "properties": {"KEYS": f"b{i}", "TAGS": "TagB"}}
        for i in range(3)
    ]
    return [
        message("T6", "both six", born_host=six_born, store_host=six_store, properties=tags),
        message("T6", "born six", born_host=six_born, properties=tags),
        message("T6", "store six", store_host=six_store, properties=tags),
        message("TD", "later", queue_id=1, properties={"DELAY": "3", "KEYS": "delayed"}),
        message("TH", "prepared", sys_flag=4, properties={"KEYS": "half", "TRAN_MSG": "true"}),
        message(
            "TH", "rolled back", sys_flag=12, prepared_offset=1234, properties={"KEYS": "half"}
        ),
        message("TH", "committed", sys_flag=8, prepared_offset=1234, properties={"KEYS": "half"}),
        message("TE", ""),
        message("TE", "no properties, tried again", reconsume_times=2),
        message("TU", "中文 body", properties={"TAGS": "中文", "KEYS": "ключ"}),
        {**message("TB", ""), "batch": item, "properties": {"CLUSTER": "DefaultCluster"}},
        {**message("TB", ""), "batch": [{"body": b64("bare item")}]},
        message(
            RETRY_TOPIC, "retry", reconsume_times=1, properties={"KEYS": "long", "TAGS": "TagR"}
        ),
    ]


def light(number: int, queues: list[str], topic: str = "mqtt", **fields: object) -> Line:
    """Return a message that names light queues."""
    properties = {"KEYS": f"k{number}", "TAGS": f"Tag{number % 3}"}
    if queues:
        properties["INNER_MULTI_DISPATCH"] = ",".join(queues)
    return message(topic, f"light {number}", properties=properties, **fields)


def lights() -> list[Line]:
    """Light queues, with what Java leaves out of them and what it numbers in its own way."""
    a, b, c = "%LMQ%a", "%LMQ%b", "%LMQ%c"
    ordinary = [light(i, [[a], [a, b], []][i % 3], queue_id=i % 2) for i in range(30)]
    delayed = light(32, [a])
    delayed["properties"] = {"INNER_MULTI_DISPATCH": a, "DELAY": "1"}
    return [
        *ordinary,
        light(30, [a], "%RETRY%g"),  # not in the light queue
        light(31, [a], "rmq_sys_x"),  # nor are these
        delayed,
        light(33, [b, c], sys_flag=4),  # prepared: counted there, but no unit
        light(34, [b, c], sys_flag=8, prepared_offset=1234),
        light(35, [a], "RMQ_SYS_TRANS_HALF_TOPIC"),
        light(36, ["%LMQ%x/y", b]),  # only the second one can be a folder
        light(37, [a, a]),  # counted twice, one unit
        light(38, [a]),
    ]


def write(store: Path, lines: list[Line], *options: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as spec:
        spec.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        spec.flush()
        command = [str(RUN), "v5", "write", str(store), "--spec", spec.name, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [result for result in results if result["status"] != "PUT_OK"]
    if failed or len(results) != len(lines) or done.returncode not in (0, 9):
        sys.exit(f"{store}: exit {done.returncode}, {len(results)} of {len(lines)} put, {failed}")


def main() -> None:
    root = Path(sys.argv[1])
    sizes = ("--queue-size", "400", "--slots", "20", "--entries", "64", "--flush", "sync")
    first, second = [plain(i) for i in range(30)], [plain(i) for i in range(30, 48)]
    write(root / "v5-clean", first + specials() + second, "--log-size", "4096", *sizes)
    write(root / "v5-crashed", first + specials() + second, "--log-size", "1024", "--kill", *sizes)
    crc = ("--log-size", "4096", "--prop-crc")
    write(root / "v5-propcrc", first[:6] + specials(), *crc, *sizes)
    write(root / "v5-light-crashed", lights(), "--log-size", "4096", "--lmq", "--kill", *sizes)


if __name__ == "__main__":
    main()
