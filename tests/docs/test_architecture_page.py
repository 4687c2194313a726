"""The layers and rooms that the page draws are those of ``tests/test_layers.py``."""

import re

import pytest
from tests.clone import ROOT
from tests.test_layers import LAYERS, PACKAGE, ROOMS

PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
DRAWN = PAGE.partition("## Layers and packages")[2].split("```")[1]
BLOCKS = re.findall(r"^([a-z]+) (.*(?:\n .*)*)", DRAWN, re.MULTILINE)
WITHOUT_PLACE = {"", "__main__", "kernels"}
"""Layers that the page does not draw: entry points, and a module that all others may import."""


def test_the_page_draws_every_layer_above_those_that_it_imports() -> None:
    layers = [layer for layer, _ in BLOCKS]
    assert set(layers) == set(LAYERS) - WITHOUT_PLACE
    upward = [
        (below, above)
        for place, below in enumerate(layers)
        for above in layers[:place]
        if above in LAYERS[below]
    ]
    assert not upward


@pytest.mark.parametrize("layer", ["store", *ROOMS])
def test_the_page_draws_every_room(layer: str) -> None:
    drawn = set(re.findall(r"\b([a-z_][a-z_0-9]*)/", dict(BLOCKS)[layer]))
    assert drawn == {path.parent.name for path in (PACKAGE / layer).glob("*/__init__.py")}
