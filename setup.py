"""The build of the kernels; everything else about the package is declared in pyproject.toml.

The modules in the ``kernels`` folders are ordinary Python that Cython can also compile. Each is an
optional extension: without a C compiler the build continues, and the ``.py`` files, which are
always installed, run instead. ``FIRETRAIL_NO_KERNELS=1`` skips the compilation.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("src")
SHARED = "firetrail._cyutility"
"""Cython's support code, mainly memory views. It is compiled once instead of into every kernel."""

DECLARATIONS = Path("build/pxd")
CONSTANTS = DECLARATIONS / "firetrail/format/kernels/_constants.pxd"
COMPUTE_CONSTANTS = """
import sys, types
package = sys.modules["firetrail"] = types.ModuleType("firetrail")
package.__path__ = ["src/firetrail"]  # otherwise all of Firetrail would be imported
from firetrail.format.kernels import _constants
print("cdef enum:")
for name, value in vars(_constants).items():
    if type(value) is int:
        print(f"    {name} = {value}")
"""

# Debug information would make a kernel ten times as large.
COMPILE_ARGS = ["-O3", "-g0"]
LINK_ARGS = ["-Wl,--strip-debug"]


def write_constants() -> None:
    """Write the numbers of ``_constants.py`` as constants of C, unless they are the same."""
    command = [sys.executable, "-c", COMPUTE_CONSTANTS]
    text = subprocess.check_output(command, env=os.environ | {"FIRETRAIL_PURE": "1"}, text=True)
    if not CONSTANTS.exists() or CONSTANTS.read_text() != text:
        CONSTANTS.parent.mkdir(parents=True, exist_ok=True)
        CONSTANTS.write_text(text)


def kernel_extensions() -> list[Extension]:
    """Return one optional extension per kernel. A leading underscore marks other modules."""
    if os.environ.get("FIRETRAIL_NO_KERNELS") == "1":
        return []
    from Cython.Build import cythonize

    write_constants()
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
        include_path=["src", str(DECLARATIONS)],
        shared_utility_qualified_name=SHARED,
        # The directives are set here and not in each kernel because they must also apply to the
        # .pxd files. They only affect speed: kernels check bounds and never use negative indexes.
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
        extension.optional = True  # cythonize returns new objects that lack it
    return extensions


class BuildKernels(build_ext):
    """Compile on all cores. Continue without a C compiler, but fail if only some kernels compile.

    Compiled kernels call each other in C, so they are used together or not at all. A single kernel
    that does not compile would silently slow down all of them, because pip hides the output of a
    successful build.
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
