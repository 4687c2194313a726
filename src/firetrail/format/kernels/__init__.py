"""The loops that run once for every message, compiled by Cython where the build could.

Each module here is ordinary Python that Cython's pure-Python mode also understands, so that there
is one source for both ways of running it. Installed side by side are ``scan.py`` and, if a C
compiler was there at build time, the extension made from it; Python prefers the extension.

Compiled kernels call each other in C, so they run together or not at all: where one of them was not
built, the others are not used either. ``FIRETRAIL_PURE=1`` in the environment has the same effect,
which is how the tests run the uncompiled kernels of an installation that has both.
"""

import importlib.util
import os
import pkgutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader

__all__ = ["COMPILED", "kernel_names"]


def kernel_names() -> tuple[str, ...]:
    """The full names of the kernels; a leading underscore marks a module as no kernel."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(f"{__name__}.{name}" for name in found if not name.startswith("_"))


def _is_extension(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


COMPILED: bool = os.environ.get("FIRETRAIL_PURE") != "1" and all(map(_is_extension, kernel_names()))
"""Whether the kernels are compiled extensions.

Read from where each module would be loaded from rather than from its ``cython.compiled``, so that
asking loads no kernel and a kernel may import this package.
"""

if not COMPILED:
    # The finder that the import system asks for the modules of this folder, and of no other.
    for _folder in __path__:
        sys.path_importer_cache[_folder] = FileFinder(_folder, (SourceFileLoader, SOURCE_SUFFIXES))
