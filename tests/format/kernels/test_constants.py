"""The constants of compiled kernels are those of the layouts."""

import re
from pathlib import Path

from firetrail.format import kernels
from firetrail.format.kernels import _constants

LINE = re.compile(r"    ([A-Z]\w*) = (-?\d+)")


def test_both_files_agree() -> None:
    text = Path(kernels.__path__[0], "_constants.pxd").read_text(encoding="utf-8")
    _, body = text.split("cdef enum:\n")
    lines = [LINE.fullmatch(line) for line in body.splitlines()]
    assert all(lines), "one constant per line"
    compiled = {line[1]: int(line[2]) for line in lines if line}
    assert len(compiled) == len(lines)
    computed = {name: value for name, value in vars(_constants).items() if type(value) is int}
    assert compiled == computed
    assert all(-(2**31) <= value < 2**31 for value in computed.values()), "an enum holds ints"
