"""``firetrail settings``, at a cluster that ``firetrail up`` has started."""

from typing import Any

from tests.cli.conftest import Firetrail


def test_settings_are_shown_and_changed(ask: Any, firetrail: Firetrail, namesrv: str) -> None:
    assert ask("settings", "show", "log_level", "--json").json == {
        "broker-a": {"log_level": "INFO"}
    }
    rows = ask("settings", "set", "log_level=warning").out.splitlines()
    assert rows[0].split() == ["BROKER", "KEY", "VALUE"]
    assert rows[1].split() == ["broker-a", "log_level", "WARNING"]
    ask("settings", "set", "log_level=info")
    assert "fileReservedTime" in ask("settings", "show").out
    result = firetrail("settings", "-n", namesrv, "show", "fileReservedTimes")
    assert result.code != 0
    assert "has no setting fileReservedTimes; did you mean fileReservedTime?" in result.err
    result = firetrail("settings", "-n", namesrv, "set", "brokerName=other")
    assert result.code == 2
    assert "brokerName cannot be changed while the broker runs" in result.err
    result = firetrail("settings", "-n", namesrv, "set", "log_level=loud")
    assert result.code == 2
    assert "DEBUG" in result.err
