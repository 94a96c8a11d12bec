"""Sizes as nccl-tests writes them: 4K, 256M; K, M and G are powers of 1024."""

from __future__ import annotations

import re

from treefold.errors import BenchError

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,18})([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str, option: str = "size") -> int:
    """Return the bytes that ``text`` names.

    Raises:
        BenchError: naming ``option``, for text that is no size or is zero.

    >>> parse_size("4K"), parse_size("256MiB")
    (4096, 268435456)
    """
    match = _SIZE.fullmatch(text.strip())
    nbytes = 0 if match is None else int(match[1]) * _FACTORS[match[2].upper()]
    if nbytes < 1:
        raise BenchError.size(option, text)
    return nbytes


def sweep_sizes(begin: int, end: int, factor: int) -> list[int]:
    """Return ``begin`` times the powers of ``factor``, up to ``end``.

    >>> sweep_sizes(4, 100, 4)
    [4, 16, 64]
    """
    if begin > end:
        raise BenchError.order(begin, end)
    if factor < 2:  # noqa: PLR2004 - a factor of 1 never arrives
        raise BenchError.least("-f", factor, 2)
    sizes = [begin]
    while sizes[-1] * factor <= end:
        sizes.append(sizes[-1] * factor)
    return sizes
