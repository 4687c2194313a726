"""The page about formats and the help of ``--decoder`` name all formats and options."""

import pytest
from tests.clone import ROOT

from firetrail.cli.main import main
from firetrail.pipeline.decoding.decoder_spec import OPTIONS, BodyFormat
from firetrail.pipeline.decoding.formats.schema_registry import BodyHeader

PAGE = (ROOT / "docs" / "guide" / "table-formats.md").read_text(encoding="utf-8")


def test_the_page_names_every_format_and_header() -> None:
    headers = [header.value for header in BodyHeader if header is not BodyHeader.NONE]
    names = [*(each.value for each in BodyFormat), *headers]
    assert not [name for name in names if f"| `{name}` |" not in PAGE]


def test_the_page_names_every_option() -> None:
    names = set(OPTIONS._listed) - {"format"}
    assert not [name for name in names if f"`{name}`" not in PAGE and f"`{name}=" not in PAGE]


def test_the_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "table", "--help"])
    listed = capsys.readouterr().out.partition("format of the bodies:")[2].partition("(")[0]
    assert [word.strip(",") for word in listed.split() if word != "or"] == [
        each.value for each in BodyFormat
    ]
