"""Reductions of flat tensors: in batches where the memory for results does not hold them, and means of whole numbers.

Means of whole numbers are written as whole numbers: the exact mean without its fraction, which is how NCCL divides.
Sums of 64 bits would overflow. So numbers travel as two halves, whose sums 2³¹ ranks cannot fill.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from treefold.errors import ProcessGroupError
from treefold.group.collectives import overwrites
from treefold.group.transport.link import GroupLink
from treefold.torch.c10d.flat import WHOLE_MEAN, piece, words

_LINE = 64
#: More bytes than any tensor has: columns that lie so far apart in a stream are never the same bytes of it.
_STREAM = 1 << 62


def cut_in_place(flats: Sequence[Any], most_bytes: int) -> list[list[list[Any]]]:
    """Cut flat tensors that are reduced in place.

    Raises:
        ProcessGroupError: they go in several batches, and some share memory: they would be reduced twice.

    """
    batches = cut([[flat] for flat in flats], most_bytes)
    if len(batches) > 1:
        spans = sorted((flat.data_ptr(), flat.data_ptr() + flat.nbytes) for flat in flats if flat.nbytes)
        if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
            raise ProcessGroupError.shared()
    return batches


def cut(columns: Sequence[Sequence[Any]], most_bytes: int) -> list[list[list[Any]]]:
    """Cut columns of flat tensors into batches of at most ``most_bytes``.

    The tensors of a column are cut at the same elements. A batch has one element of each at least. The longest tensor
    counts for all of its column: it is the same on all ranks, while a rank's own end may differ.
    """
    batches: list[list[list[Any]]] = [[]]
    used = 0
    for column in columns:
        step = max(1, (most_bytes // len(column) - _LINE) // column[0].itemsize)
        for start in range(0, max(1, *(flat.numel() for flat in column)), step):
            part = [flat[start : start + step] for flat in column]
            nbytes = len(part) * -(-max(flat.nbytes for flat in part) // _LINE) * _LINE
            if batches[-1] and used + nbytes > most_bytes:
                batches.append([])
                used = 0
            batches[-1].append(part)
            used += nbytes
    return batches


def parts_of(link: GroupLink, batches: Sequence[Any], flats: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Give the parts of a call on tensors, each with what all ranks have to agree in if there are several."""
    whole = words(flats) if len(batches) > 1 else ""
    for number, batch in enumerate(link.parts(batches), 1):
        yield batch, f"part {number} of {len(batches)} of {whole}" if whole else ""


def cut_apart(columns: Sequence[Sequence[Any]], ends: Sequence[Any], most_bytes: int) -> list[list[list[Any]]]:
    """Cut columns with the end of each behind it. Sources that one batch would overwrite for a later one are copied."""
    pairs = list(zip(columns, ends, strict=True))
    batches = cut([[*column, end] for column, end in pairs], most_bytes)
    if len(batches) == 1:
        return batches
    # Every column as a stream of its own: only its own end may lie where a source does.
    written = [piece(number * _STREAM, end) for number, end in enumerate(ends)]

    def apart(flat: Any, number: int) -> Any:
        given = piece(number * _STREAM, flat)
        return flat.clone() if any(overwrites(one, given) for one in written) else flat

    kept = [[*(apart(flat, number) for flat in column), end] for number, (column, end) in enumerate(pairs)]
    return cut(kept, most_bytes)


_BITS = 32


def as_sums(op: str, flats: list[Any]) -> tuple[list[Any], str, str]:
    """Return what travels for flat tensors, by which op, and what ranks agree in: with another op all is as it was."""
    if op != WHOLE_MEAN:
        return flats, op, ""
    return [_halves(flat) for flat in flats], "sum", op


def _halves(flat: Any) -> Any:
    """Return whole numbers as int64, twice as many: what stands above 32 bits of each, then the 32 bits of each."""
    numbers = flat.numpy()
    wide = numbers if numbers.itemsize == np.int64().itemsize else numbers.astype(np.int64)
    low = wide & wide.dtype.type((1 << _BITS) - 1)
    return torch.from_numpy(np.concatenate([wide >> wide.dtype.type(_BITS), low]).astype(np.int64, copy=False))


def write_means(flats: Sequence[Any], sums: Sequence[Any], size: int) -> None:
    """Write the means of ``size`` ranks' numbers, rounded toward zero, given the sums of their halves."""
    for flat, total in zip(flats, sums, strict=True):
        high, low = total.numpy().reshape(2, -1)
        above, rest = np.divmod(high, size)
        below, rest = np.divmod((rest << _BITS) + low, size)
        means = (above << _BITS) + below  # rounded down; of uint64 modulo 2⁶⁴
        if flat.dtype.is_signed:
            means += (means < 0) & (rest > 0)
        np.copyto(flat.numpy(), means, casting="unsafe")
