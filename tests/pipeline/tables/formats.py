"""The formats in which tests make tables."""

import pytest

FORMATS = ("delta", "iceberg", "parquet")
KEYED_FORMATS = ("delta", "iceberg")
in_all_formats = pytest.mark.parametrize("table_format", FORMATS, indirect=True)
"""Runs a test once per format."""
in_keyed_formats = pytest.mark.parametrize("table_format", KEYED_FORMATS, indirect=True)
"""Runs a test once per format that has upserts."""
