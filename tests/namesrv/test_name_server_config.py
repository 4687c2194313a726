"""RocketMQ's ``namesrv.conf``."""

import pytest

from firetrail.errors import ConfigError, MisspeltKeyError
from firetrail.format.files.java_properties import parse_properties
from firetrail.namesrv import NameServerConfig
from firetrail.namesrv.name_server_config import SETTINGS


def read(text: str) -> tuple[NameServerConfig, list[str]]:
    return NameServerConfig.from_entries(parse_properties(text, "namesrv.conf"))


def test_known_keys_are_read() -> None:
    config, remarks = read("listenPort = 9877\nkvConfigPath=kv.json\norderMessageEnable=true")
    assert config == NameServerConfig(
        listen_port=9877, kv_config_path="kv.json", order_message_enable=True
    )
    assert not remarks


def test_written_settings_are_read_back() -> None:
    config = NameServerConfig(bind_address="0.0.0.0", all_topic_list=False)
    assert read(config.to_properties()) == (config, [])


def test_keys_without_effect_are_reported() -> None:
    _, remarks = read("rocketmqHome=x\nserverWorkerThreads=8\nlistenThreads=1")
    assert remarks == [
        "namesrv.conf line 1: rocketmqHome has no effect: kvConfigPath sets the location of the "
        "only file",
        "namesrv.conf line 2: serverWorkerThreads has no effect: it tunes threads or buffers that "
        "only the Java name server has",
        "namesrv.conf line 3: listenThreads is not a key of RocketMQ's name server",
    ]


def test_a_misspelt_key_is_refused() -> None:
    message = (
        "^namesrv.conf line 1: listenport is not a key of RocketMQ's name server; did you mean "
        r"listenPort\? Correct the key, or remove the line$"
    )
    with pytest.raises(MisspeltKeyError, match=message):
        read("listenport=1")


@pytest.mark.parametrize("text", ["listenPort=x", "listenPort=65536", "listenPort=-1"])
def test_invalid_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^namesrv\.conf line 1: listenPort = .*: must be a"):
        read(text)


def test_invalid_flags_are_refused() -> None:
    with pytest.raises(ConfigError, match="true or false"):
        read("orderMessageEnable=yes")


def test_a_bad_value_from_python_is_refused() -> None:
    with pytest.raises(ConfigError, match="listen_port = 65536: must be a whole number from 0"):
        NameServerConfig(listen_port=65536)


def test_only_live_settings_change_and_the_old_object_stays_as_it_is() -> None:
    config = NameServerConfig()
    changed = config.changed(parse_properties("orderMessageEnable=true"))
    assert (config.order_message_enable, changed.order_message_enable) == (False, True)
    with pytest.raises(ConfigError, match=r"only log_level, order.* can be changed by request"):
        config.changed(parse_properties("listenPort=1"))


def test_live_settings_are_those_that_tests_change_by_request() -> None:
    """The tests of the server send UPDATE_NAMESRV_CONFIG."""
    known = {"order_message_enable", "return_order_topics", "all_topic_list", "log_level"}
    assert {each.name for each in SETTINGS.values() if each.live} == known
