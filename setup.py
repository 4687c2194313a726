"""Compiles the kernels; everything else about the package is declared in pyproject.toml.

The modules in the ``kernels`` folders are ordinary Python that Cython can also compile. Each one is
an optional extension: where no C compiler is found the build goes on without it, and the ``.py``
file of the same name (always installed beside it) runs instead. ``FIRETRAIL_NO_KERNELS=1`` skips
the compilation altogether.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src")


def kernel_extensions() -> list[Extension]:
    """One optional extension for every kernel; a leading underscore marks a module as no kernel."""
    if os.environ.get("FIRETRAIL_NO_KERNELS") == "1":
        return []
    from Cython.Build import cythonize

    extensions: list[Extension] = cythonize(
        [
            Extension(
                ".".join(path.relative_to(SOURCES).with_suffix("").parts),
                [path.as_posix()],
                extra_compile_args=["-O3"],
            )
            for path in sorted(SOURCES.glob("firetrail/*/kernels/[!_]*.py"))
        ],
        build_dir="build/cython",
        include_path=["src"],
        # Here and not in each kernel, because they must also hold for the .pxd files. They change
        # speed only: kernels check their bounds themselves and never count from the end.
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
        },
        quiet=True,
    )
    for extension in extensions:
        extension.optional = True  # set here: cythonize returns new objects without it
    return extensions


setup(ext_modules=kernel_extensions())
