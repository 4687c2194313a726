"""A replacement for ``import cython`` in uncompiled kernels, if Cython is not installed.

A kernel begins with ::

    try:
        import cython
    except ImportError:
        from firetrail.format.kernels import _shadow as cython

In a compiled kernel the compiler resolves the import, and nothing here runs. In an uncompiled
kernel every decorator returns the decorated function, and every declaration its value. Types
convert nothing: a kernel must mask its 32-bit and 64-bit arithmetic itself, or compiled and
uncompiled results would differ.

It has only the parts of Cython that kernels may use; extend it when a kernel needs more.
"""

from __future__ import annotations

import builtins
from typing import Any, TypeVar

T = TypeVar("T")

compiled = False


class CType:
    """A C type. ``t[:]``, ``t[::1]`` and ``const[t]`` are types again, ``t[8]`` is an array."""

    def __init__(self, name: str, length: builtins.int | None = None) -> None:
        self.name = name
        self.length = length

    def __getitem__(self, item: object) -> CType:
        if isinstance(item, builtins.int):
            return CType(f"{self.name}[{item}]", item)
        if isinstance(item, CType):
            return CType(f"{self.name} {item.name}")
        return CType(f"{self.name}[:]")

    def __repr__(self) -> str:
        return f"<C type {self.name}>"


bint = CType("bint")
char = CType("char")
schar = CType("signed char")
uchar = CType("unsigned char")
short = CType("short")
ushort = CType("unsigned short")
int = CType("int")
uint = CType("unsigned int")
long = CType("long")
ulong = CType("unsigned long")
longlong = CType("long long")
ulonglong = CType("unsigned long long")
size_t = CType("size_t")
Py_ssize_t = CType("Py_ssize_t")
double = CType("double")
void = CType("void")
const = CType("const")
p_char = CType("char *")
p_uchar = CType("unsigned char *")
p_int = CType("int *")
p_longlong = CType("long long *")
p_void = CType("void *")


def declare(ctype: object = None, value: Any = None, *, visibility: str = "private") -> Any:
    """``value``; an array type without one gives a list of zeros, as C gives a static array.

    ``visibility`` is for the attributes of compiled classes; uncompiled ones are all public.
    """
    if value is None and isinstance(ctype, CType) and ctype.length is not None:
        return [0] * ctype.length
    return value


def cast(ctype: object, value: T) -> T:
    """``value`` as it is; see the module's docstring on arithmetic."""
    return value


class _Neutral:
    """Every way in which Cython's directives are written, all without effect.

    ``@nogil``, ``@boundscheck(False)``, ``@exceptval(-1, check=False)``, ``with nogil:`` and
    ``with boundscheck(False):``.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options and callable(args[0]):
            return args[0]
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_neutral = _Neutral()

cfunc = ccall = cclass = inline = final = _neutral
nogil = gil = with_gil = exceptval = returns = locals = _neutral
boundscheck = wraparound = cdivision = initializedcheck = nonecheck = overflowcheck = _neutral
annotation_typing = infer_types = binding = freelist = no_gc = auto_pickle = _neutral


def likely(condition: T) -> T:
    """``condition``; compiled, a hint that it mostly holds."""
    return condition


def unlikely(condition: T) -> T:
    """``condition``; compiled, a hint that it mostly does not hold."""
    return condition
