"""Files of settings: corrections name the key that was written, and misspelt keys are found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from firetrail.errors import ConfigError
from firetrail.settings.conf_file import why_unused
from firetrail.store.settings.config_rules import Conflict
from firetrail.store.settings.store_config import SETTINGS, StoreConfig


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("mappedFileSizeCommitLog=1048576", "mappedFileSizeCommitLog"),
        ("mapedFileSizeCommitLog=1048576", "mapedFileSizeCommitLog"),
        ("commit_log_file_size=1048576", "commit_log_file_size"),
    ],
)
def test_a_correction_names_the_key_that_was_written(lines: str, key: str) -> None:
    (remark,) = StoreConfig.from_properties(lines).adjusted
    assert str(remark) == (
        "maxMessageSize is taken as 1,048,432 bytes: "
        f"a log file of {key} = 1048576 bytes has room for 1048432"
    )


def test_a_rule_may_correct_a_setting_that_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def conflicts(values: dict[str, Any], _: object = None) -> list[Conflict]:
        unlocked = Conflict("lock_memory", False, "needs the write-buffer pool")
        return [unlocked] if values["lock_memory"] or not values["index_enabled"] else []

    monkeypatch.setattr("firetrail.store.settings.store_config.conflicts", conflicts)
    monkeypatch.setattr(StoreConfig, "__post_init__", lambda _: None)
    taken = "lock_memory is taken as false: needs the write-buffer pool"
    loaded = StoreConfig.from_properties("lock_memory=true")
    assert [str(remark) for remark in loaded.adjusted] == [f"line 1: {taken}"]
    loaded = StoreConfig.from_properties("messageIndexEnable=false")
    assert [str(remark) for remark in loaded.adjusted] == [taken]


def test_the_name_of_a_file_is_not_mistaken_for_its_content() -> None:
    with pytest.raises(ConfigError, match="pass a Path for a file"):
        StoreConfig.from_properties("conf/broker.conf")
    assert StoreConfig.from_properties("").config == StoreConfig()


@pytest.mark.parametrize(
    "key",
    [
        "haListenPort",
        "storeType",
        "dLegerGroup",
        "timerWheelEnable",
        "useReentrantLockWhenPutMessage",
        "messageIndexSafe",
        "sendMessageThreadPoolNums",
        "serverWorkerThreads",
    ],
)
def test_ignored_keys_of_rocketmq_differ_from_misspelt_ones(key: str) -> None:
    loaded = StoreConfig.from_mapping({key: "1"})
    assert [remark.key for remark in loaded.ignored] == [key]
    assert not loaded.unknown


def test_no_key_in_use_counts_as_unused() -> None:
    keys = [key for setting in SETTINGS.values() for key in setting.names_in_file]
    assert [key for key in keys if why_unused(key)] == []


@given(st.sampled_from([key for s in SETTINGS.values() for key in s.keys]), st.data())
def test_a_letter_left_out_is_found(key: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(key) - 1))
    misspelt = key[:at] + key[at + 1 :]
    assume(all(misspelt not in setting.keys for setting in SETTINGS.values()))
    loaded = StoreConfig.from_mapping({misspelt: "1"})
    assert "did you mean" in str(loaded.unknown[0])
