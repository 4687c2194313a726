"""``firetrail check-config``: all errors of a file at once."""

from pathlib import Path

import pytest
from tests.cli.conftest import Firetrail


def test_a_good_file_may_have_keys_without_effect(firetrail: Firetrail, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=10911\nflushDiskType=SYNC_FLUSH\nsendMessageThreadPoolNums=8\n")
    result = firetrail("check-config", conf)
    assert result.code == 0
    remark, last = result.out.splitlines()
    assert remark.startswith(f"remark: {conf} line 3: sendMessageThreadPoolNums has no effect")
    assert last == f"{conf}: ok"


def test_all_errors_are_reported(firetrail: Firetrail, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "haListenPort=many\n"
        "flushDiskTyp=SYNC_FLUSH\n"
        "brokerId=x\n"
        "duplicationEnable=true\n"
        "somethingNewOfRocketMQ=1\n"
    )
    result = firetrail("check-config", conf, "--json")
    assert result.code == 1
    found = result.json
    assert (found["file"], found["ok"]) == (str(conf), False)
    texts = "\n".join(found["errors"])
    assert len(found["errors"]) == 4
    assert f"{conf} line 1: haListenPort = 'many'" in texts
    assert f"{conf} line 2: flushDiskTyp is not a key" in texts
    assert f"{conf} line 3: brokerId = 'x'" in texts
    assert "duplicationEnable" in texts
    (remark,) = found["remarks"]
    assert remark.startswith(f"{conf} line 5: somethingNewOfRocketMQ is not a key")
    assert firetrail("check-config", conf).out.endswith(f"{conf}: 4 errors\n")


@pytest.mark.parametrize(
    ("server", "good", "bad"),
    [
        ("namesrv", "listenPort=9876", "listenport=9876"),
        ("proxy", "max_connections=100", "max_conections=100"),
    ],
)
def test_files_of_other_servers(
    firetrail: Firetrail, tmp_path: Path, server: str, good: str, bad: str
) -> None:
    conf = tmp_path / "server.conf"
    for text, code in ((good, 0), (bad, 1)):
        conf.write_text(text)
        assert firetrail("check-config", conf, "--for", server).code == code


def test_a_rule_between_settings(firetrail: Firetrail, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SLAVE\n")
    result = firetrail("check-config", conf)
    assert result.code == 1
    assert "0 is the id of the master" in result.out


def test_a_file_that_is_missing(firetrail: Firetrail, tmp_path: Path) -> None:
    result = firetrail("check-config", tmp_path / "none.conf")
    assert result.code == 2
    assert "none.conf: no such file or folder" in result.err
