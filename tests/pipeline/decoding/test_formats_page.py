"""The page about formats names all formats and options, and its lists are those of the code."""

from tests.clone import ROOT

from firetrail.pipeline.decoding.registry import BodyHeader
from firetrail.pipeline.decoding.spec import OPTIONS, BodyFormat

PAGE = (ROOT / "docs" / "guide" / "table-formats.md").read_text(encoding="utf-8")


def test_the_page_names_every_format_and_header() -> None:
    headers = [header.value for header in BodyHeader if header is not BodyHeader.NONE]
    names = [*(each.value for each in BodyFormat), *headers]
    assert not [name for name in names if f"| `{name}` |" not in PAGE]


def test_the_page_names_every_option() -> None:
    names = set(OPTIONS._listed) - {"format"}
    assert not [name for name in names if f"`{name}`" not in PAGE and f"`{name}=" not in PAGE]
