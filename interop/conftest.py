"""Fixtures: the two Java stores, and Firetrail in a process that can be killed."""

from __future__ import annotations

import pytest
from interop.peer import missing_tool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the tools there is nobody to hand a store to."""
    tool = missing_tool()
    if tool:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"{tool} is not on this machine"))
