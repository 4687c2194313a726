"""Compiles the kernels; everything else about the package is declared in pyproject.toml.

The modules in the ``kernels`` folders are ordinary Python that Cython can also compile. Each one is
an optional extension: where no C compiler is found the build goes on without them, and the ``.py``
files (always installed beside them) run instead. ``FIRETRAIL_NO_KERNELS=1`` skips
the compilation altogether.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("src")
SHARED = "firetrail._cyutility"
"""Cython's own support code (memory views above all), compiled once instead of in every kernel."""

# No debug information: it is nine tenths of the size of a kernel.
COMPILE_ARGS = ["-O3", "-g0"]
LINK_ARGS = ["-Wl,--strip-debug"]


def kernel_extensions() -> list[Extension]:
    """One optional extension for every kernel; a leading underscore marks a module as no kernel."""
    if os.environ.get("FIRETRAIL_NO_KERNELS") == "1":
        return []
    from Cython.Build import cythonize

    paths = sorted(SOURCES.glob("firetrail/*/kernels/[!_]*.py"))
    sources = {".".join(path.relative_to(SOURCES).with_suffix("").parts): [path] for path in paths}
    extensions: list[Extension] = cythonize(
        [
            Extension(
                name,
                [path.as_posix() for path in paths],
                extra_compile_args=COMPILE_ARGS,
                extra_link_args=LINK_ARGS,
            )
            for name, paths in {SHARED: [], **sources}.items()
        ],
        build_dir="build/cython",
        include_path=["src"],
        shared_utility_qualified_name=SHARED,
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


class BuildKernels(build_ext):
    """Compiles on all cores. Without a C compiler the build goes on; a half-done one fails.

    Compiled kernels run together or not at all. So a single one that does not compile would make
    all of them slow, and pip shows nothing of what a successful build prints.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def run(self) -> None:
        super().run()
        missing = [
            extension.name
            for extension in self.extensions
            if not os.path.exists(self.get_ext_fullpath(extension.name))
        ]
        if 0 < len(missing) < len(self.extensions):
            raise CompileError(
                f"{', '.join(missing)} did not compile, although there is a C compiler; "
                "FIRETRAIL_NO_KERNELS=1 installs Firetrail without compiled kernels, many times "
                "slower"
            )


setup(ext_modules=kernel_extensions(), cmdclass={"build_ext": BuildKernels})
