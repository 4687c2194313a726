"""Writes ``docs/configuration.md`` from the settings tables of store, broker and name server.

``python -m firetrail.cli.config_page docs/configuration.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from firetrail.broker import config as broker_config
from firetrail.broker.config import NOTHING_TO_SET
from firetrail.namesrv import config as namesrv_config
from firetrail.settings.conf_file import BROKERS, UNUSED
from firetrail.settings.table import Setting
from firetrail.store import config as store_config

INTRO = """\
# Configuration

<!-- Made by `python -m firetrail.cli.config_page docs/configuration.md` from the tables in
     src/firetrail/store/config.py, broker/config.py and namesrv/config.py. Change the tables, not
     this page. -->

Settings of the [store](#files), the [broker](#broker-identity) and the
[name server](#name-server). Every setting has its default. `firetrail up -c broker.conf` and
`firetrail broker -c broker.conf` take those that differ from RocketMQ's file, for broker and store
alike; `firetrail namesrv -c namesrv.conf` does the same for a name server.

*live* marks what `mqadmin updateBrokerConfig` (or `updateNamesrvConfig`) changes without a restart.

From Python, a store is opened with a `StoreConfig`, a broker is also given a `BrokerConfig`:

```python
from firetrail import FlushMode, StoreConfig

config = StoreConfig(flush=FlushMode.SYNC, file_reserved_hours=48)
larger = config.replace(max_message_size=8 << 20)

loaded = StoreConfig.from_mapping({"flushDiskType": "SYNC_FLUSH", "fileReservedTime": "48"})
assert loaded.config == config
```

`StoreConfig.from_properties(Path("broker.conf"))` reads a file of RocketMQ. Beside RocketMQ's keys
it understands the names in the first column, and those win. It returns the settings as `config`,
and with them what should not be passed over in silence:

- `unknown`: keys that neither RocketMQ nor Firetrail has, with the name that was probably meant;
- `adjusted`: values that RocketMQ corrects instead of refusing them, such as a ratio outside its
  bounds (given from Python, they are errors);
- `ignored`: keys of RocketMQ that have no effect on this store, and why.

A value that cannot be understood is an error which names the line, the key, the value and what is
allowed. In a file a ratio is a whole number of percents (`75`) or has a decimal point (`0.75`);
numbers have no unit: sizes are in bytes, times in the unit that the name of the setting ends with.
"""

UNUSED_INTRO = """\
## Keys without effect

These keys of RocketMQ 4.9 and 5.x are known, and reported as `ignored`; those in the tables above
excepted. `*` stands for any characters, `[…]` for one of those in it.

"""
UNUSED_BY_NAME_SERVER = "\nIn `namesrv.conf`:\n\n"
HEAD = "| setting | in `{file}` | default | live | |\n|---|---|---|---|---|\n"


def page() -> str:
    """The text of the page."""
    sections = [INTRO]
    for file, settings in (
        ("broker.conf", store_config.SETTINGS),
        ("broker.conf", broker_config.SETTINGS),
        ("namesrv.conf", namesrv_config.SETTINGS),
    ):
        for group, lines in groupby(settings.values(), key=lambda setting: setting.group):
            rows = "".join(_row(setting) for setting in lines)
            head = HEAD.format(file=file)
            sections.append(f"## {group.title}\n\n{group.intro}\n\n{head}{rows}")
    unused = {reason.replace(BROKERS, NOTHING_TO_SET): keys for reason, keys in UNUSED.items()}
    sections.append(
        UNUSED_INTRO
        + "".join(_unused(unused))
        + UNUSED_BY_NAME_SERVER
        + "".join(_unused(namesrv_config.UNUSED))
    )
    return "\n".join(sections)


def _row(setting: Setting) -> str:
    keys = "<br>".join(f"`{key}`" for key in setting.keys) or "(Firetrail only)"
    allowed = f" Allowed: {setting.kind.allowed}." if setting.kind.restricted else ""
    shown = setting.kind.show(setting.default)
    live = "live" if setting.live else ""
    return f"| `{setting.name}` | {keys} | {shown} | {live} | {setting.doc}{allowed} |\n"


def _unused(table: Mapping[str, str]) -> Iterator[str]:
    for reason, patterns in table.items():
        keys = ", ".join(f"`{pattern}`" for pattern in patterns.split())
        yield f"- *{reason}*: {keys}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
