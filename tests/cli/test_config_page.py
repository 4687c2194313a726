"""The reference page is generated from the settings tables."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from firetrail.broker import broker_config
from firetrail.cli.config_page import page
from firetrail.namesrv.name_server_config import NameServerConfig
from firetrail.settings.audit_settings import AuditSettings
from firetrail.settings.log_settings import LogSettings
from firetrail.settings.server_limits import ServerLimitSettings
from firetrail.store.settings import store_config
from firetrail.tls import tls_config

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m firetrail.cli.config_page docs/configuration.md"
    )


def test_the_page_has_an_entry_for_every_setting() -> None:
    names = re.findall(r"^- \*\*`(\w+)`\*\*", page(), re.MULTILINE)
    shared_kinds = (ServerLimitSettings, AuditSettings, LogSettings)
    shared = {field.name for kind in shared_kinds for field in fields(kind)}
    of_name_server = [f.name for f in fields(NameServerConfig) if f.name not in shared]
    expected = [*store_config.SETTINGS, *broker_config.SETTINGS, *of_name_server]
    assert names == [*expected, *tls_config.SETTINGS]


def test_the_page_fits_into_100_columns() -> None:
    assert not [line for line in page().splitlines() if len(line) > 100]


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)
    exec(example, {})


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    command = [sys.executable, "-m", "firetrail.cli.config_page"]
    subprocess.run([*command, str(target)], check=True)
    assert target.read_text(encoding="utf-8") == page()
    usage = subprocess.run(command, capture_output=True, text=True, check=False)
    assert usage.returncode == 1
    assert "docs/configuration.md" in usage.stderr
