"""The native core for the rest of treefold: whether it is installed, its vector level, threads and result memory.

Four variables of the environment are read once, strictly, when the first reduction runs: ``TREEFOLD_NUM_THREADS`` sets
the threads that work on one call. A name in ``TREEFOLD_VECTOR_LEVEL`` is one of ``vector_levels()``. The cache of
result memory is bounded by ``TREEFOLD_HOST_CACHE_BYTES``. The proof that additions were exact is chosen by
``TREEFOLD_CERTIFICATE``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.compiled import ACCUMULATIONS, CERTIFICATES, DTYPES, HAS_NATIVE, OPS
from treefold.errors import ArgumentError
from treefold.observing import LOG

if HAS_NATIVE:
    from treefold._native import (
        RowFold,
        empty,
        fold,
        level_names,
        memory_info,
        set_certificate,
        set_memory_limit,
        traffic,
    )
    from treefold._native import certificate as _certificate
    from treefold._native import empty_cache as _empty_cache
    from treefold._native import num_threads as _num_threads
    from treefold._native import set_num_threads as _set_num_threads


__all__ = ["ACCUMULATIONS", "DTYPES", "HAS_NATIVE", "OPS", "RowFold", "fold", "traffic"]

_LEVEL = "TREEFOLD_VECTOR_LEVEL"
_CERTIFICATE = "TREEFOLD_CERTIFICATE"
_MOST_DIGITS = len(str(sys.maxsize)) + 1


def vector_levels() -> tuple[str, ...]:
    """Return the vector levels that this machine can run, widest first; none without the native core."""
    return level_names() if HAS_NATIVE else ()


@functools.cache
def level() -> int:
    """Return the index of the vector level to use, and apply the environment's settings."""
    names = vector_levels()
    wanted = os.environ.get(_LEVEL, names[0])
    if wanted not in names:
        raise ArgumentError.setting(wanted, f"one of {', '.join(names)} on this machine", name=_LEVEL)
    # Two threads may both run this the first time: they read the same environment and set the same values.
    _from_environment("TREEFOLD_NUM_THREADS", 1, _set_num_threads)
    _from_environment("TREEFOLD_HOST_CACHE_BYTES", 0, set_memory_limit)
    asked = os.environ.get(_CERTIFICATE)
    if asked is not None and asked not in CERTIFICATES:
        raise ArgumentError.setting(asked, f"one of {', '.join(CERTIFICATES)}", name=_CERTIFICATE)
    if asked is not None:
        set_certificate(CERTIFICATES[asked])
    LOG.info("native core: vector level %s, %d threads", wanted, _num_threads())
    return names.index(wanted)


def kernel() -> str:
    """Return the name in plans of the kernel for host memory: NumPy, or the core with its proof of exact sums.

    The proof of ``"native-flag"`` is the processor's flag. The proof of ``"native-integers"`` is the exponents of the
    summands: it is used where the flag failed its test, or if ``TREEFOLD_CERTIFICATE`` asks for it. With
    ``"native-none"`` there is no proof, so slower tiers do all the work.
    """
    return f"native-{tuple(CERTIFICATES)[_certificate(level())]}" if HAS_NATIVE else "numpy"


def packed_weights(weights: Sequence[int]) -> tuple[bytes, int]:
    """Return weights in the core's form: the bytes of whole numbers, and the number of 32-bit words of each."""
    words = max(1, -(-max(weights).bit_length() // 32))
    return b"".join([weight.to_bytes(4 * words, "little") for weight in weights]), words


def set_num_threads(count: int) -> None:
    """Set how many threads work on one reduction in host memory, the calling one included.

    The default is the number of processors that this process may use. Results do not depend on it. Without the native
    core it has no effect: NumPy folds on one thread.

    Args:
        count: A whole number ≥ 1.

    Raises:
        ArgumentError: ``count`` is not a whole number above 0.

    """
    if type(count) is not int or count < 1:
        raise ArgumentError.num_threads(count)
    if HAS_NATIVE:
        level()  # first the environment, which this overrides
        _set_num_threads(min(count, sys.maxsize))


def num_threads() -> int:
    """Return how many threads work on one reduction in host memory."""
    if not HAS_NATIVE:
        return 1
    level()
    return _num_threads()


def new_result(shape: Sequence[int], dtype: np.dtype[Any]) -> HostArray:
    """Return an uninitialised row-major array; the memory of a large one returns to a cache with its last reference."""
    if not HAS_NATIVE or dtype.hasobject:
        return np.empty(shape, dtype)
    level()
    return empty(tuple(shape), dtype)


def host_memory_info() -> dict[str, int]:
    """Return the state of the cache of result memory.

    Returns:
        ``used_bytes``: in results that are alive. ``cached_bytes``: kept for later results. ``limit_bytes``: the most
        that are kept (``TREEFOLD_HOST_CACHE_BYTES``). ``hits`` and ``misses``: the numbers of results that found memory
        in the cache, or did not.

    """
    if HAS_NATIVE:
        level()
        return memory_info()
    return dict.fromkeys(("used_bytes", "cached_bytes", "limit_bytes", "hits", "misses"), 0)


def empty_cache() -> None:
    """Return the cached result memory to the system. Results that are alive keep theirs."""
    if HAS_NATIVE:
        _empty_cache()


def _from_environment(name: str, least: int, use: Callable[[int], object]) -> None:
    text = os.environ.get(name)
    if text is None:
        return
    # Python refuses to read thousands of digits. A count beyond sys.maxsize means the same as sys.maxsize.
    digits = text.lstrip("0")[:_MOST_DIGITS] or text[:1]
    if not (text.isascii() and text.isdecimal()) or int(digits) < least:
        raise ArgumentError.setting(text, f"a whole number, {least} or more", name=name)
    use(min(int(digits), sys.maxsize))
