"""Exact partial sums in NumPy: the reference beside the core, on the same arrays.

Blocks are rows of ``LENGTH`` elements. A block is in one of three modes, which only rise. A single has one float64 for
each element. A pair has two: a sum, and the sum of the errors of its additions (Knuth). A whole block has whole numbers
in two's complement, in words of 32 bits, and a word of flags after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.backends.numpy_exact import (
    FORMATS,
    Limbs,
    exact_fold,
    products,
    read_numbers,
    rounded_quotient,
    with_specials,
)
from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.dtypes import numpy_dtype
from treefold.fold import EXACT_BLOCK

Array = npt.NDArray[Any]

#: Elements of a block.
LENGTH = EXACT_BLOCK
SINGLE, PAIR, WHOLE = 0, 1, 2
#: Bits of a weight behind the point, and before it.
FRACTION, MOST_WEIGHT = 64, 1 << 128
#: Bits of the pieces that a weight is cut into: their products with the halves of a float64 are exact.
_PIECE = 26
#: A product with a float32 is exact in float64, if the weight has no more bits.
_SHORT = 29
_NAN, _PLUS, _MINUS, _NO_NEGATIVE_ZERO = 1, 2, 4, 8
#: The flags of values that are not finite.
SPECIAL = _NAN | _PLUS | _MINUS
_DOUBLE = FORMATS["float64"]
_LEAST, _MOST = 2.0**-900, 2.0**900


@dataclass(frozen=True)
class Factor:
    """A weight above 0, in units of 2**-64, and in float64.

    Args:
        words: The weight in units of 2**-64.
        number: The weight; 0 if its product with a float32 needs more bits than a float64 has.
        pieces: Floats that add up to the weight; none for a weight of 1.

    """

    words: int
    number: float = field(init=False)
    pieces: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Cut the weight into pieces."""
        zeros = (self.words & -self.words).bit_length() - 1
        odd = self.words >> zeros
        pieces = [
            float((odd >> at) & ((1 << _PIECE) - 1)) * 2.0 ** (zeros + at - FRACTION)
            for at in range(0, odd.bit_length(), _PIECE)
        ]
        is_short = odd.bit_length() <= _SHORT
        object.__setattr__(self, "number", self.words * 2.0**-FRACTION if is_short else 0.0)
        is_one = self.words == 1 << FRACTION
        object.__setattr__(self, "pieces", () if is_one else tuple(reversed([piece for piece in pieces if piece])))


@dataclass
class PartialArrays:
    """The arrays of a partial sum.

    Args:
        length: The number of elements.
        is_wide: Whether contributions are float64.
        modes: The mode of each block.
        sums: For each element, up to the end of the last block, its sum.
        rests: For each element, the sum of the errors of its additions; None while no block is a pair.
        places: The index in ``wholes`` of each whole block.
        wholes: For each whole block, ``LENGTH`` rows of words.

    """

    length: int
    is_wide: bool
    modes: npt.NDArray[np.uint8]
    sums: npt.NDArray[np.float64]
    rests: npt.NDArray[np.float64] | None
    places: npt.NDArray[np.uint32]
    wholes: npt.NDArray[np.uint32]

    @classmethod
    def empty(cls, length: int, *, is_wide: bool) -> PartialArrays:
        """Return the sum of nothing."""
        blocks = -(-length // LENGTH)
        modes, sums = np.empty(blocks, np.uint8), np.empty(blocks * LENGTH)
        rests = np.empty(blocks * LENGTH) if is_wide else None
        words = (72 if is_wide else 16) + 1
        wholes = np.zeros((0, LENGTH, words), np.uint32)
        made = cls(length, is_wide, modes, sums, rests, np.zeros(blocks, np.uint32), wholes)
        made.clear()
        return made

    def clear(self) -> None:
        """Hold the sum of nothing again."""
        self.modes[:] = PAIR if self.is_wide else SINGLE
        self.sums[:] = -0.0  # the neutral element of addition
        self.wholes = self.wholes[:0]
        if self.rests is not None and self.is_wide:
            self.rests[:] = 0
        elif self.rests is not None:
            self.rests = None

    @property
    def least_unit(self) -> int:
        """The exponent of two of the unit of whole numbers: below all products of contributions and weights."""
        return FORMATS["float64" if self.is_wide else "float32"].least_unit - FRACTION


@in_plain_arithmetic
def read_blocks(views: Sequence[Array]) -> Array:
    """Return flat arrays, concatenated, as rows of float64, padded with -0."""
    with np.errstate(all="ignore"):  # NaN may be signalling
        values = np.concatenate([*views, np.empty(0, np.float64)], dtype=np.float64, casting="unsafe")
    return np.concatenate([values, np.full(-len(values) % LENGTH, -0.0)]).reshape(-1, LENGTH)


@in_plain_arithmetic
def add(arrays: PartialArrays, values: Array, factor: Factor, blocks: Array) -> Array:
    """Add ``read_blocks`` of contributions, times a weight; return the blocks that need the next mode first."""
    modes = arrays.modes[blocks]
    left = [blocks[:0]]
    singles, pairs, wholes = (blocks[modes == mode] for mode in (SINGLE, PAIR, WHOLE))
    if singles.size and factor.number:
        left.append(_add_single(arrays, singles, values[singles], factor.number))
    elif singles.size:
        left.append(singles)
    if pairs.size:
        chosen = values[pairs]
        left.append(_add_pair(arrays, pairs, chosen, *_terms(chosen, factor, is_wide=arrays.is_wide)))
    if wholes.size:
        _add_whole(arrays, wholes, values[wholes], factor.words)
    return np.sort(np.concatenate(left))


@in_plain_arithmetic
def merge(arrays: PartialArrays, other: PartialArrays, blocks: Array) -> Array:
    """Add another partial sum of the same kind and length; return the blocks that need a higher mode first."""
    modes, brought = arrays.modes[blocks], other.modes[blocks]
    left = [blocks[modes < brought]]
    sums = other.sums.reshape(-1, LENGTH)
    rests = np.zeros_like(sums) if other.rests is None else other.rests.reshape(-1, LENGTH)
    singles = blocks[(modes == SINGLE) & (brought == SINGLE)]
    if singles.size:
        left.append(_add_single(arrays, singles, sums[singles], 1.0))
    pairs = blocks[(modes == PAIR) & (brought <= PAIR)]
    if pairs.size:
        known = sums[pairs], rests[pairs] * (other.modes[pairs] == PAIR)[:, None]
        left.append(_add_pair(arrays, pairs, known[0], known, np.zeros(known[0].shape, bool)))
    floats = blocks[(modes == WHOLE) & (brought <= PAIR)]
    if floats.size:
        _add_floats_to_whole(arrays, floats, sums[floats], rests[floats] * (other.modes[floats] == PAIR)[:, None])
    wholes = blocks[(modes == WHOLE) & (brought == WHOLE)]
    if wholes.size:
        rows = other.wholes[other.places[wholes]]
        _put_words(
            arrays, wholes, [rows[..., word].astype(np.int64) for word in range(rows.shape[-1] - 1)], rows[..., -1]
        )
    return np.unique(np.concatenate(left))


@in_plain_arithmetic
def make_whole(arrays: PartialArrays, blocks: Array) -> None:
    """Write the floats of blocks into their whole numbers, which are 0."""
    sums = arrays.sums.reshape(-1, LENGTH)[blocks]
    rests = np.zeros_like(sums)
    if arrays.rests is not None:
        rests = arrays.rests.reshape(-1, LENGTH)[blocks] * (arrays.modes[blocks] == PAIR)[:, None]
    _add_floats_to_whole(arrays, blocks, sums, rests)


@in_plain_arithmetic
def finish(arrays: PartialArrays, dtype: str, divisor: int) -> Array:
    """Return the sums over a divisor, a whole number of units of 2**-64, rounded once to a dtype."""
    form = FORMATS[dtype]
    results = np.empty((len(arrays.modes), LENGTH), numpy_dtype(dtype))
    sums = arrays.sums.reshape(-1, LENGTH)
    floats, wholes = np.flatnonzero(arrays.modes < WHOLE), np.flatnonzero(arrays.modes == WHOLE)
    zeros = (divisor & -divisor).bit_length() - 1
    scale = 1 << max(FRACTION - zeros, 0)
    if floats.size:
        parts = [sums[floats].reshape(-1)]
        if arrays.rests is not None:
            rests = np.where(arrays.modes[floats, None] == PAIR, arrays.rests.reshape(-1, LENGTH)[floats], 0).reshape(
                -1
            )
            parts.append(np.where(rests == 0, -0.0, rests))  # -0 is neutral
        exact = exact_fold(
            parts,
            "float64",
            weights=None if scale == 1 else [scale] * len(parts),
            divisor=divisor >> min(zeros, FRACTION),
            result=dtype,
        )
        results[floats] = exact.reshape(-1, LENGTH)
    if wholes.size:
        rows = arrays.wholes[arrays.places[wholes]].reshape(-1, arrays.wholes.shape[-1])
        limbs = Limbs(0, 0)
        limbs.limbs = [rows[:, word].astype(np.int64) for word in range(rows.shape[1] - 2)]
        limbs.limbs.append(rows[:, -2].astype(np.int32).astype(np.int64))  # has the sign
        bits = rounded_quotient(limbs, divisor >> zeros, arrays.least_unit + FRACTION - zeros, form)
        flags = rows[:, -1]
        are_zeros = (rows[:, :-1] == 0).all(axis=1) & (flags & _NO_NEGATIVE_ZERO == 0)
        bits |= are_zeros.astype(np.uint64) << np.uint64(form.bits - 1)
        bits = with_specials(bits, flags & _PLUS != 0, flags & _MINUS != 0, flags & _NAN != 0, form)
        results[wholes] = bits.astype(form.word).view(results.dtype).reshape(-1, LENGTH)
    return results.reshape(-1)[: arrays.length]


def _error(a: Array, b: Array, total: Array) -> Array:
    """Return the error of a + b exactly (Knuth)."""
    part = total - a
    error: Array = (a - (total - part)) + (b - part)
    return error


def _add_single(arrays: PartialArrays, blocks: Array, values: Array, number: float) -> Array:
    sums = arrays.sums.reshape(-1, LENGTH)
    with np.errstate(all="ignore"):
        before, terms = sums[blocks], values * number
        total = before + terms
        # A value that is not finite was brought as such, and stays.
        fails = (np.isfinite(total) & (_error(before, terms, total) != 0)).any(axis=1)
    sums[blocks[~fails]] = total[~fails]
    left: Array = blocks[fails]
    return left


def _terms(values: Array, factor: Factor, *, is_wide: bool) -> tuple[list[Array], Array]:
    """Return exact parts of products, and where a part may not be exact."""
    if not factor.pieces:
        return [values], np.zeros(values.shape, bool)
    with np.errstate(all="ignore"):
        if not is_wide:
            return [values * piece for piece in factor.pieces], np.zeros(values.shape, bool)
        size = np.abs(values)
        are_out = np.isfinite(values) & (values != 0) & ((size < _LEAST) | (size > _MOST))
        upper = (values.view(np.uint64) & np.uint64((1 << 64) - (1 << 27))).view(np.float64)
        lower = np.where(np.isfinite(values), values - upper, 0)
        return [half * piece for piece in factor.pieces for half in (upper, lower)], are_out


def _add_pair(arrays: PartialArrays, blocks: Array, values: Array, terms: Sequence[Array], fails: Array) -> Array:
    """Add values, given as sums of terms; return the blocks that fail, with those where ``fails`` is True already."""
    assert arrays.rests is not None  # noqa: S101 - for mypy: a block is a pair
    all_sums, all_rests = arrays.sums.reshape(-1, LENGTH), arrays.rests.reshape(-1, LENGTH)
    before = all_sums[blocks]
    sums, rests = before, all_rests[blocks]
    with np.errstate(all="ignore"):
        for index, term in enumerate(terms):
            total = sums + term
            lost = _error(sums, term, total)
            both = rests + lost
            fails = fails | (_error(rests, lost, both) != 0)
            # A zero is skipped: the first part of a product has decided the sign.
            sums, rests = (total if index == 0 else np.where(term == 0, sums, total)), both
        are_special = ~(np.isfinite(before) & np.isfinite(values))
        if are_special.any():
            sums = np.where(are_special, before + values, sums)
            rests = np.where(are_special, 0, rests)
            fails &= ~are_special
    are_left = fails.any(axis=1)
    all_sums[blocks[~are_left]] = sums[~are_left]
    all_rests[blocks[~are_left]] = rests[~are_left]
    left: Array = blocks[are_left]
    return left


def _add_floats_to_whole(arrays: PartialArrays, blocks: Array, sums: Array, rests: Array) -> None:
    _add_whole(arrays, blocks, sums, 1 << FRACTION)
    _add_whole(arrays, blocks, np.where(rests == 0, -0.0, rests), 1 << FRACTION)


def _add_whole(arrays: PartialArrays, blocks: Array, values: Array, weight: int) -> None:
    numbers = read_numbers(values.reshape(-1), _DOUBLE)
    limbs = Limbs(arrays.wholes.shape[-1] - 1 + 3, values.size)  # room for zeros of products beyond the last word
    # Above the least unit of whole numbers; floats narrower than float64 end in zeros that may lie below it.
    shifts = numbers.shifts + _DOUBLE.least_unit - FRACTION - arrays.least_unit
    low = np.minimum(shifts, 0)
    zeros = (weight & -weight).bit_length() - 1
    cut = np.clip(-low - zeros, 0, _DOUBLE.precision)
    significands = numbers.significands >> cut.astype(np.uint64)
    for magnitudes, at in products(significands, weight >> zeros):
        limbs.add(magnitudes, np.maximum(shifts + cut + zeros, 0) + at, numbers.are_negative)
    limbs.limbs = limbs.limbs[:-3]
    flags = np.where(
        numbers.are_nan, _NAN, np.where(numbers.are_infinite, np.where(numbers.are_negative, _MINUS, _PLUS), 0)
    )
    flags |= np.where(numbers.are_negative & (values.reshape(-1) == 0), 0, _NO_NEGATIVE_ZERO)
    shape = values.shape
    _put_words(arrays, blocks, [limb.reshape(shape) for limb in limbs.limbs], flags.astype(np.uint32).reshape(shape))


def _put_words(arrays: PartialArrays, blocks: Array, limbs: Sequence[Array], flags: Array) -> None:
    """Add numbers, in limbs with pending carries, to whole numbers in two's complement."""
    rows = arrays.places[blocks]
    carry = np.zeros_like(limbs[0])
    for word, limb in enumerate(limbs):
        carry += limb + arrays.wholes[rows, :, word]
        arrays.wholes[rows, :, word] = (carry & 0xFFFFFFFF).astype(np.uint32)
        carry >>= 32
    arrays.wholes[rows, :, -1] |= flags
