"""SIGHUP: live settings, certificates and the log file are read again."""

import logging
from pathlib import Path

import pytest
from tests.broker.brokers import SMALL

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.cli.servers.reload import FileReload
from firetrail.errors import ConfigError
from firetrail.format.files.java_properties import parse_properties
from firetrail.namesrv import NameServer, NameServerConfig
from firetrail.namesrv.name_server_config import SETTINGS
from firetrail.settings.file_changes import changes_between


async def test_live_settings_of_a_broker_take_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=72\nlongPollingEnable=false\nlistenPort=0\n")
    config = BrokerConfig(long_polling=False)
    store = SMALL.replace(file_reserved_hours=72)
    async with Broker.running(tmp_path / "store", config, store) as broker:
        reload = FileReload(conf, None, broker.take_changes)
        assert await reload() == ""
        conf.write_text("fileReservedTime=48\nlistenPort=1\nlog_level=debug\n")
        assert await reload() == (
            "in effect now: file_reserved_hours, log_level, long_polling; "
            "these changes need a restart: listenPort"
        )
        assert broker.store.config.file_reserved_hours == 48
        assert broker.config.long_polling  # its line is gone, so the default holds
        assert logging.getLogger("firetrail").level == logging.DEBUG
        assert f"{conf}: restart the server: listenPort" in caplog.text
        conf.write_text("fileReservedTime=24\nlistenPorts=x\n")
        with pytest.raises(ConfigError, match="did you mean listenPort"):
            await reload()
        assert broker.store.config.file_reserved_hours == 48


def test_live_settings_of_a_name_server_take_effect(tmp_path: Path) -> None:
    server = NameServer(NameServerConfig(listen_port=0))
    before = parse_properties("listenPort=0")
    now = parse_properties("listenPort=1\nenableAllTopicList=false")
    changes = server.take_changes(before, now)
    assert (changes.live, changes.restart) == ({"all_topic_list": False}, ["listenPort"])
    assert not server._state.config.all_topic_list


def test_equal_files_have_no_changes() -> None:
    entries = parse_properties("listenPort=1\nunknown=2")
    changes = changes_between(entries, parse_properties(" listenPort = 1 "), SETTINGS)
    assert changes == ({}, []) and str(changes) == ""
