"""The choice between compiled and uncompiled kernels, the loops that run once per message.

Kernels are in the ``kernels`` folder of the layer that uses them. Each one is ordinary Python that
Cython's pure-Python mode also understands, so one source serves both. ``scan.py`` is installed next
to the extension that was compiled from it, if there was a C compiler at build time; Python prefers
the extension.

Compiled kernels call each other in C, so either all of them or none are used: if one was not built,
the others are ignored. ``FIRETRAIL_PURE=1`` in the environment has the same effect; the tests use
it to run the uncompiled kernels of an installation that has both.
"""

import __future__

import ast
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import Any

__all__ = [
    "COMPILED",
    "MISSING",
    "PURE_WANTED",
    "SourceSignature",
    "kernel_folders",
    "kernel_names",
    "prepare",
]

_SHARED = "firetrail._cyutility"
"""Cython's support code, which all compiled kernels import."""

_LAYERS = ("format", "store", "remoting", "proxy", "pipeline")


def kernel_folders() -> tuple[str, ...]:
    """Return the folders with kernels, one per layer."""
    return tuple(os.path.join(os.path.dirname(__file__), layer, "kernels") for layer in _LAYERS)


def _kernels() -> Iterable[tuple[str, str]]:
    """Yield the full name of every kernel, and the path of its source without the suffix."""
    for layer, folder in zip(_LAYERS, kernel_folders(), strict=True):
        for module in pkgutil.iter_modules([folder]):
            if not module.name.startswith("_"):  # modules with an underscore are not compiled
                yield f"firetrail.{layer}.kernels.{module.name}", os.path.join(folder, module.name)


def kernel_names() -> tuple[str, ...]:
    """Return the full names of all kernels."""
    return tuple(name for name, _ in _kernels())


PURE_WANTED: bool = os.environ.get("FIRETRAIL_PURE") == "1"
"""Whether the environment asks for uncompiled kernels."""


def _is_built(stem: str) -> bool:
    return any(os.path.exists(stem + suffix) for suffix in EXTENSION_SUFFIXES)


MISSING: tuple[str, ...] = tuple(
    name
    for name, stem in [
        *_kernels(),
        (_SHARED, os.path.join(os.path.dirname(__file__), "_cyutility")),
    ]
    if not _is_built(stem)
)
"""The kernels that were not compiled when Firetrail was built."""

COMPILED: bool = not PURE_WANTED and not MISSING
"""Whether the kernels run compiled. Reading it does not load them."""


def prepare(folders: Iterable[str]) -> None:
    """Make Python import the sources of the kernels in these folders, unless all are compiled."""
    if COMPILED:
        return
    for folder in filter(os.path.isdir, folders):
        sys.path_importer_cache[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))


class SourceSignature:
    """The signature of a class, for ``help()`` and IDEs, read from its source on demand.

    Compiled classes have none.
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        layer, _, module = owner.__module__.split(".")[-3:]
        path = os.path.join(os.path.dirname(__file__), layer, "kernels", f"{module}.py")
        classes = ast.parse(SourceFileLoader(module, path).get_data(path)).body
        (found,) = (n for n in classes if isinstance(n, ast.ClassDef) and n.name == owner.__name__)
        (init,) = (n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
        init.decorator_list.clear()
        names: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module([init], []), path, "exec", flags), names)
        given = inspect.signature(names["__init__"])
        return given.replace(parameters=list(given.parameters.values())[1:])
