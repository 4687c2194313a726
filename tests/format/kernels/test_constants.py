"""The constants of compiled kernels are those of the layouts."""

import pytest
from tests.clone import ROOT

from firetrail.format.kernels import _constants

GENERATED = ROOT / "build/pxd/firetrail/format/kernels/_constants.pxd"
NUMBERS = {name: value for name, value in vars(_constants).items() if type(value) is int}


@pytest.mark.skipif(not GENERATED.exists(), reason="no kernel was compiled here: make setup")
def test_compiled_kernels_have_the_same_numbers() -> None:
    lines = [f"    {name} = {value}\n" for name, value in NUMBERS.items()]
    assert GENERATED.read_text(encoding="utf-8") == "cdef enum:\n" + "".join(lines), "make setup"


def test_they_fit_into_an_enum_of_c() -> None:
    assert len(NUMBERS) > 90
    assert all(-(2**31) <= value < 2**31 for value in NUMBERS.values())
