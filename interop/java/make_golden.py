"""Write the 5.x golden stores: make_golden.py DIRECTORY (creates v5-clean, v5-crashed, v5-propcrc).

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
    """One spec line with the hosts, flag and born time that all golden stores share."""
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
    """One of each: IPv6 in three combinations, delay, transactions, empty, batch, v2 record."""
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


if __name__ == "__main__":
    main()
