"""Patterns of folders as sources: the stores and archives that match, named by their folders."""

from __future__ import annotations

import re
from collections import Counter
from glob import glob, has_magic
from pathlib import Path

from firetrail.errors import ConfigError, NotAStoreError
from firetrail.pipeline.tables.messages.table_sources import TableSource, check_exists
from firetrail.text import some_of


def is_pattern(place: str) -> bool:
    """Whether a place is a pattern such as ``/data/*``, and not a folder with such a name."""
    return "://" not in place and has_magic(place) and not Path(place).exists()


def matching(source: TableSource) -> list[TableSource]:
    """Return the stores and archives that match a pattern, sorted by path.

    Their brokers are named by the folder that the last wildcard matches: with ``/data/*/store``,
    that of ``/data/a/store`` is ``a``. Other files and folders are left out.

    Raises:
        NotAStoreError: No store and no archive matches.
        ConfigError: Several of them would have the same name.
    """
    matches = sorted(glob(source.place))
    places = [place for place in matches if _is_source(place)]
    if not places:
        if matches:
            raise NotAStoreError(
                f"{source.place}: matches no store and no archive, only {some_of(matches)}; check "
                "the pattern"
            )
        raise NotAStoreError(f"{source.place}: matches nothing; check the pattern")
    if source.broker:
        return [source._replace(place=place) for place in places]
    at = _wildcard(source.place)
    found = [TableSource(Path(place).parts[at], place) for place in places]
    name, count = Counter(each.broker for each in found).most_common(1)[0]
    if count > 1:
        same = some_of([each.place for each in found if each.broker == name])
        raise ConfigError(
            "source", source.place, f"matches several folders named {name}: {same}; list them"
        )
    return found


def _wildcard(pattern: str) -> int:
    """Return the number of the last part of a pattern that has a wildcard."""
    parts = Path(pattern).parts
    return max(at for at, part in enumerate(parts) if re.search(r"[*?[]", part))


def _is_source(place: str) -> bool:
    try:
        check_exists(TableSource("", place))
    except NotAStoreError:
        return False
    return True
