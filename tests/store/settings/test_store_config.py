"""The settings table, from Python and from ``broker.conf``."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from firetrail.errors import ConfigError
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import Host
from firetrail.store.settings.store_config import SETTINGS, BrokerRole, FlushMode, StoreConfig

ROCKETMQ_DEFAULTS = {
    "mappedFileSizeCommitLog": "1073741824",
    "storePathCommitLog": "",
    "readOnlyCommitLogStorePaths": "",
    "mappedFileSizeConsumeQueue": "6000000",
    "enableConsumeQueueExt": "false",
    "mappedFileSizeConsumeQueueExt": "50331648",
    "messageIndexEnable": "true",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "warmMapedFileEnable": "false",
    "listenPort": "10911",
    "brokerRole": "ASYNC_MASTER",
    "maxMessageSize": "4194304",
    "enableLmq": "false",
    "enabledAppendPropCRC": "false",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "osPageCacheBusyTimeOutMills": "1000",
    "flushDiskType": "ASYNC_FLUSH",
    "syncFlushTimeout": "5000",
    "flushIntervalCommitLog": "500",
    "flushCommitLogLeastPages": "4",
    "flushCommitLogThoroughInterval": "10000",
    "flushIntervalConsumeQueue": "1000",
    "flushConsumeQueueLeastPages": "2",
    "flushConsumeQueueThoroughInterval": "60000",
    "transientStorePoolEnable": "false",
    "transientStorePoolSize": "5",
    "fastFailIfNoBufferInStorePool": "false",
    "commitIntervalCommitLog": "200",
    "commitCommitLogLeastPages": "4",
    "commitCommitLogThoroughInterval": "200",
    "checkCRCOnRecover": "true",
    "fileReservedTime": "72",
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
    "cleanFileForciblyEnable": "true",
    "cleanResourceInterval": "10000",
    "deleteFileBatchMax": "10",
    "deleteCommitLogFilesInterval": "100",
    "destroyMapedFileIntervalForcibly": "120000",
    "maxTransferBytesOnMessageInMemory": "262144",
    "maxTransferCountOnMessageInMemory": "32",
    "maxTransferBytesOnMessageInDisk": "65536",
    "maxTransferCountOnMessageInDisk": "8",
    "accessMessageInMemoryMaxRatio": "40",
    "maxFilterMessageSize": "16000",
    "offsetCheckInSlave": "false",
    "maxMsgsNumBatch": "64",
    "defaultQueryMaxNum": "32",
    "minInSyncReplicas": "1",
    "enableAutoInSyncReplicas": "false",
    "slaveTimeout": "3000",
    "haMaxGapNotInSync": "268435456",
}
"""The values in the configuration objects of RocketMQ 4.9.8 and 5.3.4."""

# RocketMQ lacks these settings, has no key for them in broker.conf, or has another default:
# its SYNC_MASTER of 5.x waits for no replica unless inSyncReplicas is set.
FIRETRAIL_ONLY = {
    *("delete_archived_only", "in_sync_replicas", "index_tags", "lock_memory"),
    *("repair_wait_ms", "replica_retention_bytes", "scrub_bytes_per_second", "verify_reads"),
}

OTHER_TEXT: dict[type, str] = {
    FlushMode: "SYNC_FLUSH",
    BrokerRole: "SLAVE",
    DelayLevels: "1s 2d",
    Host: "[::1]:9",
    tuple: "0;23",
    float: "0.88",
}
"""A value for each type that is no setting's default."""


def other_text(name: str) -> str:
    if name == "min_in_sync_replicas":  # the only number that cannot be halved
        return "2"
    if name == "disk_clean_forcibly_ratio":  # the only ratio that cannot be 0.88
        return "0.80"
    default = SETTINGS[name].default
    if isinstance(default, bool):
        return str(not default).lower()
    return str(default // 2) if isinstance(default, int) else OTHER_TEXT[type(default)]


def test_defaults_are_rocketmqs() -> None:
    loaded = StoreConfig.from_mapping(ROCKETMQ_DEFAULTS)
    assert loaded.config == StoreConfig()
    assert loaded.remarks == ()
    unlisted = {s.name for s in SETTINGS.values() if not ROCKETMQ_DEFAULTS.keys() & set(s.keys)}
    assert unlisted == FIRETRAIL_ONLY, (
        "add a new setting of RocketMQ to ROCKETMQ_DEFAULTS with its default in RocketMQ, and a"
        " setting that RocketMQ does not have, or has without a key, to FIRETRAIL_ONLY"
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_read_by_its_name_and_keys(name: str) -> None:
    text = other_text(name)
    by_name = StoreConfig.from_mapping({name: text}).config
    changed = [n for n in SETTINGS if getattr(by_name, n) != SETTINGS[n].default]
    assert changed == [name]
    for key in SETTINGS[name].keys if name != "store_host" else ():
        assert StoreConfig.from_mapping({key: text}).config == by_name


def test_values_of_a_broker_conf_are_typed() -> None:
    config = StoreConfig.from_mapping(
        {
            "brokerIP1": "fe80:0::1",
            "listenPort": "10999",
            "flushDiskType": "SYNC_FLUSH",
            "deleteWhen": "16; 04;",
            "diskMaxUsedSpaceRatio": "60",
            "accessMessageInMemoryMaxRatio": "0.25",
            "messageDelayLevel": "1s 2m",
            "messageIndexEnable": " FALSE ",
        }
    ).config
    assert config.store_host == Host("fe80::1", 10999)
    assert config.flush is FlushMode.SYNC
    assert config.delete_when == (4, 16)
    assert (config.disk_max_used_ratio, config.in_memory_ratio) == (0.6, 0.25)
    assert config.delay_levels == DelayLevels((1_000, 120_000))
    assert config.index_enabled is False


def test_current_spelling_wins_over_the_old_one_and_the_python_name_over_both() -> None:
    values = {
        "commit_log_file_size": str(3 << 29),
        "mappedFileSizeCommitLog": str(1 << 29),
        "mapedFileSizeCommitLog": str(1 << 28),
    }
    sizes = []
    while values:
        sizes.append(StoreConfig.from_mapping(values).config.commit_log_file_size)
        values.pop(next(iter(values)))
    assert sizes == [3 << 29, 1 << 29, 1 << 28]


def test_it_is_frozen_slotted_hashable_and_pickles() -> None:
    config = StoreConfig(delete_when=(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.flush_interval_ms = 1  # type: ignore[misc]
    assert not hasattr(config, "__dict__")
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({config, StoreConfig(delete_when=(2, 1))}) == 1


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("flushIntervalCommitLog", "0", "must be a whole number of ms from 1 to 2147483647"),
        ("flushIntervalCommitLog", "500ms", "must be a whole number of ms"),
        ("flushIntervalCommitLog", "", "must be a whole number of ms"),
        ("maxHashSlotNum", "9999999999", "must be a whole number from 1 to"),
        ("mappedFileSizeConsumeQueue", "2147483641", "rounded up to a multiple of 20"),
        ("fileReservedTime", "72 # hours", "a comment needs a line of its own"),
        ("messageIndexEnable", "yes", "must be true or false"),
        ("flushDiskType", "SYNC", "must be ASYNC_FLUSH or SYNC_FLUSH"),
        ("brokerRole", "MASTER", "must be ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        ("diskMaxUsedSpaceRatio", "75%", "must be a fraction from 0.10 to 0.95"),
        ("deleteWhen", "4am", "must be hours from 0 to 23"),
        ("deleteWhen", "24", "must be hours from 0 to 23"),
        ("messageDelayLevel", "1s 5x", "'5x' is not a number with a unit s, m, h or d"),
        ("brokerIP1", "broker-a", "'broker-a' is not an IPv4 or IPv6 address"),
        ("listenPort", "65536", "must be a whole number from 0 to 65535"),
        ("store_host", "10.0.0.1", "'10.0.0.1' is not ip:port or [ipv6]:port"),
    ],
)
def test_a_wrong_value_names_line_key_value_and_what_is_allowed(
    key: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        StoreConfig.from_properties(f"# a broker\n{key} = {text}\n")
    assert (raised.value.key, raised.value.value) == (key, text)
    assert str(raised.value).startswith(f"line 2: {key} = {text!r}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flush_interval_ms": "500"}, "flush_interval_ms = '500': must be a whole number of ms"),
        ({"flush_interval_ms": True}, "flush_interval_ms = True: must be a whole number"),
        ({"write_buffer_pool": 1}, "write_buffer_pool = 1: must be true or false"),
        ({"flush": "SYNC_FLUSH"}, "must be FlushMode.ASYNC or FlushMode.SYNC"),
        ({"disk_max_used_ratio": 75}, "disk_max_used_ratio = 75: must be a fraction from 0.10"),
        ({"delete_when": (24,)}, "delete_when = (24,): must be hours from 0 to 23"),
        ({"delete_when": "04"}, "delete_when = '04': must be hours from 0 to 23"),
        ({"delay_levels": "1s"}, "must be a DelayLevels"),
        ({"store_host": "127.0.0.1:1"}, "must be a Host(ip, port)"),
        ({"store_host": Host("nowhere", 1)}, "'nowhere' is not an IPv4 or IPv6 address"),
        ({"store_host": Host("::1", 65536)}, "65536 is not in 0..65535"),
        (
            {"commit_log_file_size": 1 << 20},
            "max_message_size = 4194304: a log file of commit_log_file_size = 1048576 bytes has",
        ),
        (
            {"index_slots": 500_000_000},
            "index_entries = 20000000: with index_slots = 500000000 at most 7374180",
        ),
        (
            {"disk_warning_ratio": 0.5},
            "disk_clean_forcibly_ratio = 0.85: at most disk_warning_ratio = 0.5",
        ),
        (
            {"write_buffer_pool": True, "flush": FlushMode.SYNC},
            "write_buffer_pool = True: needs ASYNC_FLUSH and a master",
        ),
        ({"write_buffer_pool": True, "role": BrokerRole.SLAVE}, "needs ASYNC_FLUSH and a master"),
    ],
)
def test_values_from_python_are_checked(changes: dict[str, Any], message: str) -> None:
    for make in (StoreConfig, StoreConfig().replace):
        with pytest.raises(ConfigError) as raised:
            make(**changes)
        assert message in str(raised.value)


def test_replace_checks_the_settings() -> None:
    config = StoreConfig(role=BrokerRole.SLAVE).replace(consume_queue_file_size=1_999)
    assert config == StoreConfig(role=BrokerRole.SLAVE, consume_queue_file_size=2_000)
    with pytest.raises(ConfigError, match=r"flush_intervall_ms = 5: no such setting; did you mean"):
        config.replace(flush_intervall_ms=5)
    with pytest.raises(ConfigError, match="write_buffer_pool"):
        config.replace(write_buffer_pool=True)


def test_sizes_of_existing_files_bring_the_largest_message_down() -> None:
    config = StoreConfig().for_files(commit_log_file_size=4096, index_slots=100, index_entries=400)
    assert (config.commit_log_file_size, config.index_slots) == (4096, 100)
    assert config.max_message_size == 4096 - 8 - 136
    assert config.max_record_size == 4096 - 8
    assert StoreConfig().for_files(consume_queue_file_size=40).max_message_size == 4 << 20


def test_a_record_may_be_longer_than_the_largest_message() -> None:
    assert StoreConfig().max_record_size == (4 << 20) + (64 << 10)


def test_a_broker_conf_as_people_have_it(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(
        "\ufeff# 集群\nbrokerClusterName = DefaultCluster\nbrokerName=broker-a\n"
        "brokerIP1=192.168.1.2\nnamesrvAddr=a:9876;b:9876\r\n"
        "mapedFileSizeCommitLog=1073741824\nmapedFileSizeConsumeQueue=300001\n"
        "storePathRootDir=/data/store\nabortFile=/data/store/abort\n"
        "diskMaxUsedSpaceRatio=98\nmaxMessageSize=65536\nfileReservdTime=48\n"
        "brokerRole=SYNC_MASTER\nflushDiskType=SYNC_FLUSH\ntransientStorePoolEnable=true\n".encode()
    )
    loaded = StoreConfig.from_properties(path)
    assert loaded.config == StoreConfig(
        store_host=Host("192.168.1.2", 10911),
        consume_queue_file_size=300_020,
        disk_max_used_ratio=0.95,
        max_message_size=65536,
        role=BrokerRole.SYNC_MASTER,
        flush=FlushMode.SYNC,
    )
    assert [str(remark) for remark in loaded.unknown] == [
        f"{path} line 12: fileReservdTime is not a key of RocketMQ or Firetrail;"
        " did you mean fileReservedTime?"
    ]
    assert [str(remark) for remark in loaded.adjusted] == [
        f"{path} line 7: mapedFileSizeConsumeQueue = 300001 is taken as 300,020 bytes",
        f"{path} line 10: diskMaxUsedSpaceRatio = 98 is taken as 0.95",
        f"{path} line 15: transientStorePoolEnable is taken as false:"
        " needs ASYNC_FLUSH and a master",
    ]
    ignored = {remark.key: remark.detail for remark in loaded.ignored}
    assert ignored.keys() == {
        "brokerClusterName",
        "brokerName",
        "namesrvAddr",
        "storePathRootDir",
        "abortFile",
    }
    assert ignored["storePathRootDir"].startswith("has no effect: the store is in the folder")
    assert ignored["brokerName"] == "has no effect: it belongs to the broker"


def test_a_file_that_rocketmq_accepts_is_accepted() -> None:
    loaded = StoreConfig.from_properties(
        "mappedFileSizeCommitLog=4096\ndiskSpaceWarningLevelRatio=40\nbrokerRole=SLAVE"
    )
    assert loaded.config.max_message_size == 3952
    assert loaded.config.disk_clean_forcibly_ratio == 0.40
    assert [remark.key for remark in loaded.adjusted] == [
        "maxMessageSize",
        "diskSpaceCleanForciblyRatio",
    ]
