"""The division of the descriptors of a process."""

import pytest

from firetrail.settings.descriptors import FILES_MOST, PER_FILE, connections_max, files_max


@pytest.mark.parametrize(
    ("descriptors", "files", "connections"),
    [(0, 64, 64), (1024, 256, 256), (20_000, 5_000, 9_744), (1_000_000, FILES_MOST, 966_976)],
)
def test_files_and_connections_have_a_share_each(
    descriptors: int, files: int, connections: int
) -> None:
    assert files_max(descriptors) == files
    assert connections_max(descriptors) == connections


@pytest.mark.parametrize("descriptors", [1024, 4096, 65_536, 1 << 20])
def test_both_together_fit(descriptors: int) -> None:
    used = PER_FILE * files_max(descriptors) + connections_max(descriptors)
    assert used < descriptors
