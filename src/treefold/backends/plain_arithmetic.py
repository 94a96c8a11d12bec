"""The floating-point mode of NumPy's folds: round to nearest, subnormals kept, as in the native core.

Threads of TensorFlow flush subnormals to zero, those of PyTorch can, and callers may set another rounding.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from treefold.compiled import HAS_NATIVE

if HAS_NATIVE:
    from treefold._native import in_plain_arithmetic as _by_core

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MOST_BYTES = 512  # of C's fenv_t: 32 on x86-64, less elsewhere


def in_plain_arithmetic(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that computes in that mode and restores the caller's.

    Without the native core, C's library sets the mode. Windows has no such function: there the caller's mode stays.
    """
    call = _by_core if HAS_NATIVE else by_libm

    @functools.wraps(function)
    def computing(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return call(function, *args, **kwargs)

    return computing


def by_libm(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function in the plain mode, which C's library sets and restores."""
    environment = _environment()
    if environment is None:
        return function(*args, **kwargs)
    library, default = environment
    before = ctypes.create_string_buffer(_MOST_BYTES)
    library.fegetenv(before)
    try:
        library.fesetenv(default)
        return function(*args, **kwargs)
    finally:
        library.fesetenv(before)


@functools.cache
def _environment() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """Return the library with C's fegetenv and fesetenv, and its FE_DFL_ENV; None if it cannot be loaded."""
    if sys.platform == "win32":
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "fesetenv"):
        return None
    if sys.platform == "darwin":
        return library, ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, "_FE_DFL_ENV")))
    return library, ctypes.c_void_p(-1)  # glibc and musl
