"""Writes ``docs/configuration.md`` from the settings table.

``python -m firetrail.store.config_page docs/configuration.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from firetrail.store.broker_conf import UNUSED
from firetrail.store.config import SETTINGS
from firetrail.store.settings import Setting

INTRO = """\
# Configuration

<!-- Made by `python -m firetrail.store.config_page docs/configuration.md` from the table in
     src/firetrail/store/config.py. Change the table, not this page. -->

Every setting has its default; a store is opened with those that differ.

```python
from firetrail.store.config import FlushMode, StoreConfig

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

These keys of RocketMQ 4.9 and 5.x are known, and reported as `ignored`. `*` stands for any
characters, `[…]` for one of those in it.

"""


def page() -> str:
    """The text of the page."""
    sections = [INTRO]
    for group, settings in groupby(SETTINGS.values(), key=lambda setting: setting.group):
        rows = "".join(_row(setting) for setting in settings)
        head = "| setting | in `broker.conf` | default | |\n|---|---|---|---|\n"
        sections.append(f"## {group.title}\n\n{group.intro}\n\n{head}{rows}")
    sections.append(UNUSED_INTRO + "".join(_unused()))
    return "\n".join(sections)


def _row(setting: Setting) -> str:
    keys = "<br>".join(f"`{key}`" for key in setting.keys) or "(Firetrail only)"
    allowed = f" Allowed: {setting.kind.allowed}." if setting.kind.restricted else ""
    shown = setting.kind.show(setting.default)
    return f"| `{setting.name}` | {keys} | {shown} | {setting.doc}{allowed} |\n"


def _unused() -> Iterator[str]:
    for reason, patterns in UNUSED.items():
        keys = ", ".join(f"`{pattern}`" for pattern in patterns.split())
        yield f"- *{reason}*: {keys}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
