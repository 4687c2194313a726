"""The generator of the lists of request codes in ``docs/compatibility.md``.

``python -m firetrail.cli.compatibility_page docs/compatibility.md``
"""

import re
import sys
from itertools import groupby
from pathlib import Path
from textwrap import fill

from firetrail.remoting.messages.requests import REQUESTS, RequestSpec, RequestTarget

_WIDTH = 100
_LISTS = re.compile(r"(?<=\n<!-- requests -->\n\n)(- .*\n(  .*\n)*)*")
_TITLES = {
    RequestTarget.BROKER: "Brokers, slaves included",
    RequestTarget.NAME_SERVER: "Name servers",
    RequestTarget.CLIENT: "Clients of a broker",
    RequestTarget.NOBODY: "Not supported",
}


def with_lists(page: str) -> str:
    """Return the page with lists of all request codes, by who answers them.

    Args:
        page: The page, which has a comment where the lists begin.

    Raises:
        ValueError: It has none.
    """
    rows = sorted(REQUESTS.values(), key=lambda row: (*_order(row), row.code))
    lists = "".join(_list(title, list(of)) for title, of in groupby(rows, key=_title))
    written, count = _LISTS.subn(lists, page)
    if count != 1:
        raise ValueError("the page lacks the comment <!-- requests --> above the lists; restore it")
    return written


def _order(row: RequestSpec) -> tuple[int, int]:
    return list(RequestTarget).index(row.target), -1 if row.on_slave is None else row.on_slave.code


def _title(row: RequestSpec) -> str:
    if row.on_slave is None:
        return _TITLES[row.target]
    return f"Brokers; slaves refuse with code {row.on_slave.code}"


def _list(title: str, rows: list[RequestSpec]) -> str:
    codes = ", ".join(f"{row.code:d}\xa0`{row.code.name}`" for row in rows)
    item = fill(f"- **{title}**: {codes}.", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return item.replace("\xa0", " ") + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    path.write_text(with_lists(path.read_text(encoding="utf-8")), encoding="utf-8")
