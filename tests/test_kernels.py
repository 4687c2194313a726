"""The form in which a kernel is loaded, and the stand-in for ``cython`` if it is not compiled."""

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cython
import pytest
from tests.extras import require

from firetrail import kernels
from firetrail.format.kernels import _shadow

PACKAGE = Path(kernels.__file__).parent


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def pipeline() -> None:
    """Needed by tests that import every kernel: those of the pipeline need the extra ``spark``."""
    require("pyspark", "pyarrow")


@pytest.mark.usefixtures("pipeline")
def test_compiled_is_what_every_kernel_says_of_itself() -> None:
    modules = [importlib.import_module(name) for name in kernels.kernel_names()]
    assert modules
    assert kernels.COMPILED is all(module.COMPILED for module in modules)


@pytest.mark.usefixtures("pipeline")
def test_pure_prefers_the_source() -> None:
    script = """
import importlib
from firetrail import kernels
print(kernels.COMPILED)
for name in kernels.kernel_names():
    module = importlib.import_module(name)
    print(module.COMPILED, module.__file__.endswith(".py"))
"""
    lines = run(script, FIRETRAIL_PURE="1").splitlines()
    assert lines == ["False"] + ["False True"] * len(kernels.kernel_names())


@pytest.mark.skipif(not kernels.COMPILED, reason="the kernels are not compiled")
def test_compiled_kernels_run_together_or_not_at_all(tmp_path: Path) -> None:
    """They call each other in C: a build that lost one of them has to do without the others."""
    package = PACKAGE
    shutil.copytree(
        package, tmp_path / package.name, ignore=shutil.ignore_patterns("scan.*.so", "__pycache__")
    )
    script = """
import firetrail
from firetrail import kernels
from firetrail.format.kernels import encode
print(kernels.COMPILED, encode.COMPILED, encode.__file__)
"""
    assert run(script, PYTHONPATH=str(tmp_path), FIRETRAIL_PURE="0").split() == [
        "False",
        "False",
        str(tmp_path / package.name / "format" / "kernels" / "encode.py"),
    ]
    script = "from firetrail.cli.main import version_line; print(version_line())"
    output = run(script, PYTHONPATH=str(tmp_path), FIRETRAIL_PURE="0")
    assert output.endswith("not compiled: format.kernels.scan)\n")


@pytest.mark.usefixtures("pipeline")
def test_kernels_run_without_cython() -> None:
    script = """
import importlib, sys
sys.modules["cython"] = sys.modules["Cython"] = None
from firetrail import kernels
for name in kernels.kernel_names():
    print(importlib.import_module(name).cython.__name__)
"""
    lines = run(script, FIRETRAIL_PURE="1").splitlines()
    assert lines == [_shadow.__name__] * len(kernels.kernel_names())


class Vocabulary(ast.NodeVisitor):
    """The names of ``cython`` that an uncompiled module evaluates.

    It evaluates no annotation, and nothing inside ``if cython.compiled``.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "cython":
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if ast.unparse(node.test) != "cython.compiled":
            self.generic_visit(node)
            return
        for otherwise in node.orelse if isinstance(node.orelse, list) else [node.orelse]:
            self.visit(otherwise)

    visit_IfExp = visit_If

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)


def test_shadow_has_every_name_that_kernels_use() -> None:
    used = Vocabulary()
    for path in PACKAGE.glob("*/kernels/*.py"):
        used.visit(ast.parse(path.read_text(encoding="utf-8")))
    assert "declare" in used.names
    assert not {name for name in used.names if not hasattr(_shadow, name)}


def test_shadow_has_no_name_that_cython_lacks() -> None:
    offered = {name for name in vars(_shadow) if not name.startswith("_")}
    own = {"annotations", "builtins", "TracebackType", "Any", "TypeVar", "T", "CType"}
    assert not {name for name in offered - own if not hasattr(cython, name)}


class TestShadow:
    def test_values_pass_unchanged(self) -> None:
        assert _shadow.declare(_shadow.uint, 2**40) == 2**40
        assert _shadow.cast(_shadow.uchar, -1) == -1
        assert _shadow.declare(_shadow.int) is None
        assert _shadow.declare(list, visibility="readonly") is None
        assert _shadow.likely(True) is _shadow.unlikely(True) is True

    def test_arrays_start_with_zeros(self) -> None:
        assert _shadow.declare(_shadow.uint[3]) == [0, 0, 0]

    def test_types_can_be_composed(self) -> None:
        assert repr(_shadow.const[_shadow.uchar][::1]) == "<C type const unsigned char[:]>"

    def test_decorators_return_what_they_decorate(self) -> None:
        def double(n: int) -> int:
            return 2 * n

        class Counter:
            pass

        for decorator in (
            _shadow.cfunc,
            _shadow.inline,
            _shadow.nogil,
            _shadow.boundscheck(False),
            _shadow.exceptval(-1, check=False),
            _shadow.exceptval(check=False),
            _shadow.locals(n=_shadow.int),
        ):
            assert decorator(double) is double
        for decorator in (_shadow.final, _shadow.cclass):
            assert decorator(Counter) is Counter

    def test_with_blocks_let_errors_through(self) -> None:
        with pytest.raises(KeyError), _shadow.nogil, _shadow.boundscheck(False):
            raise KeyError
