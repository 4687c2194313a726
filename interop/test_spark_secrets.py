"""A Spark application with credentials in its environment: its event log shows no secret.

The event log contains all that the web interface and the history server show: the environment, the
command line of the driver, settings and plans. ``tests/pipeline/wire/test_access.py`` is about
credentials in a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.helpers import small_config

from firetrail.auth.credentials import Credentials
from firetrail.broker.background import BackgroundBroker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.client import Access, Message, Producer

NEEDS_JAVA = False
CANARY = "canary-of-the-environment"
ADMIN = Credentials("admin", CANARY)
QUERY = "select string(body) as body from messages"
WAIT_S = 120


async def send(namesrv: str) -> None:
    async with Producer(namesrv, access=Access(ADMIN)) as producer:
        await producer.send(Message("T", b"one"))


def test_the_event_log_of_an_application_shows_no_secret(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    config = BrokerConfig(authentication=True, authorization=True, init_user=ADMIN)
    with BackgroundBroker(tmp_path / "store", config, small_config(log=1 << 16)) as broker:
        asyncio.run(send(broker.namesrv))
        command = [sys.executable, "-m", "firetrail", "pipeline", "sql"]
        command += [f"namesrv={broker.namesrv}", QUERY, "--json", "--master", "local[2]"]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        keys = {"FIRETRAIL_ACCESS_KEY": "admin", "FIRETRAIL_SECRET_KEY": CANARY}
        done = subprocess.run(
            command, env=os.environ | keys, capture_output=True, text=True, timeout=WAIT_S
        )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"body": "one"}], done.stderr
    log = "".join(path.read_text() for path in events.rglob("events_*"))
    kinds = {json.loads(line)["Event"].rpartition(".")[2] for line in log.splitlines()}
    assert {"SparkListenerEnvironmentUpdate", "SparkListenerSQLExecutionStart"} <= kinds
    assert "sun.java.command" in log, "the command line of the driver"
    assert CANARY not in log + done.stdout + done.stderr
