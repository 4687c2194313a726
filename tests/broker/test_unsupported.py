"""Unsupported features in the settings and the folder of a Java broker."""

from pathlib import Path

import pytest
from tests.broker.brokers import talking

from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import load_entries
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.unsupported import NAMES, REFUSED_SETTINGS, check, refused_settings
from firetrail.errors import ConfigError, MisspeltKeyError, UnsupportedError
from firetrail.format.files.java_properties import parse_properties


def refused(conf: str) -> list[str]:
    return [each.name for each in load_entries(parse_properties(conf, "b.conf")).refused]


@pytest.mark.parametrize(
    "line",
    [
        "duplicationEnable = TRUE",
        "enableControllerMode=true",
        "enableDLegerCommitLog=true",
        "enableSlaveActingMaster=true",
        "duplicationEnable=true",
        "storeType=defaultRocksDB",
    ],
)
def test_settings_that_would_only_seem_to_work_are_refused(line: str) -> None:
    assert refused(line) == [line.partition("=")[0].strip()]


@pytest.mark.parametrize(
    "line", ["brokerRole=SYNC_MASTER", "aclEnable=true", "storeType=default", ""]
)
def test_settings_without_an_unsupported_feature_are_accepted(line: str) -> None:
    assert refused(line) == []


def test_the_refusal_names_the_setting_and_the_flag(caplog: pytest.LogCaptureFixture) -> None:
    conf = parse_properties("enableControllerMode=true\nduplicationEnable=true", "b.conf")
    found = refused_settings(conf)
    with pytest.raises(UnsupportedError) as caught:
        check(found, ["duplicationEnable"])
    said = str(caught.value)
    start = (
        "b.conf line 1: enableControllerMode=true: Firetrail does not support this; no controller"
    )
    assert start in said
    assert said.endswith("to start without it: --ignore-unsupported enableControllerMode")
    check(found, NAMES)
    assert "WARNING: b.conf line 1: enableControllerMode=true is IGNORED" in caplog.text
    assert "messages are not replicated" in caplog.text


def remarks(conf: str) -> list[str]:
    return [str(each) for each in load_entries(parse_properties(conf, "b.conf")).remarks]


def test_refused_settings_are_not_reported_as_ignored() -> None:
    refusable = [
        f"{key}={value}" for key, (values, _) in REFUSED_SETTINGS.items() for value in values[:1]
    ]
    assert remarks("\n".join(refusable)) == []
    assert len(remarks("duplicationEnable=false\nstoreType=default\nstorePathRootDir=/a")) == 3


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("authenticatonEnabled", "authenticationEnabled"),
        ("authorisationEnabled", "authorizationEnabled"),
    ],
)
def test_a_misspelt_switch_of_access_control_is_refused(key: str, meant: str) -> None:
    with pytest.raises(MisspeltKeyError) as caught:
        remarks(f"{key}=true")
    assert str(caught.value) == (
        f"b.conf line 1: {key} is not a key of RocketMQ or Firetrail; did you mean {meant}? "
        "Correct the key, or remove the line"
    )


def test_the_vip_port_cannot_be_set() -> None:
    (remark,) = remarks("fastListenPort=10909")
    assert remark == (
        "b.conf line 1: fastListenPort is not a key of RocketMQ or Firetrail; the port for clients "
        "with vipChannelEnabled is always two below listenPort, and vip_channel=false switches it "
        "off"
    )
    assert not load_entries(parse_properties("vip_channel=false", "b.conf")).broker.vip_channel


def test_keys_without_effect_name_what_is_not_supported() -> None:
    (remark,) = load_entries(parse_properties("messageIndexSafe=x", "b.conf")).remarks
    assert str(remark) == (
        "b.conf line 1: messageIndexSafe has no effect: the store has no setting for this"
    )


def test_the_id_of_a_master_is_0(tmp_path: Path) -> None:
    conf = parse_properties("brokerName=b\nbrokerId=1", "b.conf")
    with pytest.raises(ConfigError) as caught:
        load_entries(conf)
    assert str(caught.value) == (
        "b.conf line 2: brokerId = 1: the id of a master is 0, and clients send only to masters; "
        "remove the key, and give each broker its own brokerName"
    )
    with pytest.raises(ConfigError, match="the id of a master is 0"):
        Broker(tmp_path, BrokerConfig(broker_id=1))
    with pytest.raises(ConfigError, match="0 is the id of the master; give each slave"):
        load_entries(parse_properties("brokerRole=SLAVE"))
    assert refused("brokerRole=SLAVE\nbrokerId=1") == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("consumequeue/CURRENT", "rocksdb"),
        ("config/topics/CURRENT", "rocksdb"),
        ("dledger-n0/data/00000000000000000000", "dledger"),
    ],
)
async def test_rocksdb_and_dledger_files_are_refused(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.touch()

    with pytest.raises(UnsupportedError, match=f"--ignore-unsupported {name}"):
        async with talking(tmp_path):
            pass
