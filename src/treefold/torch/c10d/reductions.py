"""Reductions of flat tensors: in batches that fit the memory for results, and means of whole numbers.

Means of whole numbers are written as whole numbers: the exact mean without its fraction, as in NCCL. Sums of 64-bit
numbers would overflow, so numbers travel as two halves; the sums of halves fit 64 bits on up to 2³¹ ranks.
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
#: More bytes than any tensor has: columns at this distance in a stream never overlap.
_STREAM = 1 << 62


def cut_in_place(flats: Sequence[Any], most_bytes: int) -> list[list[list[Any]]]:
    """Cut flat tensors that are reduced in place into batches.

    Raises:
        ProcessGroupError: There are several batches, and some tensors share memory: that would be reduced twice.

    """
    batches = cut([[flat] for flat in flats], most_bytes)
    if len(batches) > 1:
        spans = sorted((flat.data_ptr(), flat.data_ptr() + flat.nbytes) for flat in flats if flat.nbytes)
        if any(end > begin for (_, end), (begin, _) in itertools.pairwise(spans)):
            raise ProcessGroupError.shared()
    return batches


def cut(columns: Sequence[Sequence[Any]], most_bytes: int) -> list[list[list[Any]]]:
    """Cut columns of flat tensors into batches of at most ``most_bytes``.

    The tensors of a column are cut at the same elements. A batch has at least one element of each. The longest tensor
    decides for its column: it has the same length on all ranks, while a rank's own end may differ.
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
    """Yield the parts of a call on tensors, each with the words in which all ranks must agree if there are several."""
    whole = words(flats) if len(batches) > 1 else ""
    for number, batch in enumerate(link.parts(batches), 1):
        yield batch, f"part {number} of {len(batches)} of {whole}" if whole else ""


def cut_apart(columns: Sequence[Sequence[Any]], ends: Sequence[Any], most_bytes: int) -> list[list[list[Any]]]:
    """Cut columns, each with its end; copy sources that one batch would overwrite before a later one reads them."""
    pairs = list(zip(columns, ends, strict=True))
    batches = cut([[*column, end] for column, end in pairs], most_bytes)
    if len(batches) == 1:
        return batches
    # Each column gets a range of its own in the stream: a source may coincide with the end of its own column only.
    written = [piece(number * _STREAM, end) for number, end in enumerate(ends)]

    def apart(flat: Any, number: int) -> Any:
        given = piece(number * _STREAM, flat)
        return flat.clone() if any(overwrites(one, given) for one in written) else flat

    kept = [[*(apart(flat, number) for flat in column), end] for number, (column, end) in enumerate(pairs)]
    return cut(kept, most_bytes)


_BITS = 32


def as_sums(op: str, flats: list[Any]) -> tuple[list[Any], str, str]:
    """Return the flat tensors that travel, the op, and words that ranks must agree in; only ``WHOLE_MEAN`` differs."""
    if op != WHOLE_MEAN:
        return flats, op, ""
    return [_halves(flat) for flat in flats], "sum", op


def _halves(flat: Any) -> Any:
    """Return whole numbers as twice as many int64: the bits above 32 of each, then the low 32 bits of each."""
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
