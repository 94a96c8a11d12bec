"""Exact partial sums as they travel between hosts; ``native/partial_messages.hpp`` describes the messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends import HostArray
from treefold.backends.numpy_partial import FRACTION, LENGTH, Factor
from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import HALVES, numpy_dtype
from treefold.execution import native
from treefold.fold import exact_bytes
from treefold.partials.partial_sum import Blocks, PartialSum, Pieces

if HAS_NATIVE:
    from treefold._native import addresses_of, fold_partial_messages, write_partial_message

#: The byte of a block that a message does not hold; the contributions to the block follow the message.
_LEFT = 0
#: Sums of 16-bit floats are int32, in units of 2**(byte of the block - 134). The least int32 stands for -0.
_ZERO_UNIT, _NEGATIVE_ZERO = 134, -(1 << 31)


class Weighted(NamedTuple):
    """Flat arrays of one dtype and length, and the weight of each."""

    rows: Sequence[HostArray]
    factors: Sequence[Factor]

    def for_core(self) -> tuple[HostArray, list[tuple[float, tuple[float, ...], bytes]]]:
        """Return the addresses of the arrays, and the weights, in the form that the core takes."""
        told = [(one.number, one.pieces, native.packed_weights([one.words])[0]) for one in self.factors]
        return addresses_of(list(self.rows)), told


class Message(NamedTuple):
    """A message with exact sums.

    Attributes:
        content: The bytes of the message.
        rests: The contributions to the blocks that it does not hold, which were sent after it.

    """

    content: HostArray
    rests: Weighted


def message_of(dtype: str, own: Weighted, length: int) -> HostArray:
    """Return a message with the exact sums of ``own``, arrays of ``length`` elements."""
    message = np.empty(exact_bytes(dtype, length), np.uint8)
    write_partial_message(*own.for_core(), native.DTYPES[dtype], native.level(), length, message)
    return message


def elements_left(length: int, message: HostArray) -> Blocks:
    """Return the indices of the elements of the blocks that a message does not hold."""
    return _elements(np.flatnonzero(_forms(length, message) == _LEFT), length)


def fold_messages(dtype: str, own: Weighted, messages: Sequence[Message], divisor: int, result: HostArray) -> None:
    """Write the sum of arrays and messages over a divisor, rounded once.

    Args:
        dtype: The dtype of the arrays and of the result.
        own: The contributions that came as they are.
        messages: The sums that came as messages.
        divisor: A whole number.
        result: The array that is written, flat.

    """
    contents, [end], length = [one.content for one in messages], addresses_of([result]).tolist(), result.size
    left = fold_partial_messages(
        *own.for_core(), contents, native.DTYPES[dtype], native.level(), length, end, float(divisor), 0.0
    )
    if left:  # blocks that a message does not hold, that need more than two floats, or have a doubtful rounding
        blocks = np.asarray(left, np.intp)
        result[_elements(blocks, length)] = _sum_of(dtype, own, messages, blocks, length).finish(divisor << FRACTION)


def _sum_of(dtype: str, own: Weighted, messages: Sequence[Message], blocks: Blocks, length: int) -> PartialSum:
    """Return the exact sum of arrays and messages in some blocks, by the slow path."""
    elements = _elements(blocks, length)
    total = PartialSum(dtype, elements.size)
    for row, factor in zip(*own, strict=True):
        total.add(Pieces.of([row[elements]]), factor)
    for content, rests in messages:
        total.merge(_read(dtype, content, blocks, length))
        places = np.searchsorted(elements, elements_left(length, content))
        for rest, factor in zip(*rests, strict=True):
            row = np.full(elements.size, -0.0, numpy_dtype(dtype))  # adding -0 changes no sum
            row[places] = rest
            total.add(Pieces.of([row]), factor)
    return total


@in_plain_arithmetic
def _read(dtype: str, message: HostArray, blocks: Blocks, length: int) -> PartialSum:
    """Return the sums that a message holds of some blocks; for blocks that it does not hold, the sum of nothing."""
    forms, body = _forms(length, message)[blocks], message[: message.size - _count(length)]
    partial = PartialSum(dtype, _elements(blocks, length).size)
    arrays, are_left = partial._arrays, forms == _LEFT  # noqa: SLF001 - a form of it
    sums = arrays.sums.reshape(-1, LENGTH)
    if dtype in HALVES:
        numbers = body.view(np.int32).reshape(-1, LENGTH)[blocks]
        sums[:] = np.ldexp(numbers.astype(np.float64), forms.astype(np.intc)[:, None] - _ZERO_UNIT)
        sums[numbers == _NEGATIVE_ZERO] = -0.0
    else:
        floats = body.view(np.float64).reshape(_count(length), -1, LENGTH)[blocks]
        sums[:] = floats[:, 0]
        if arrays.rests is not None:
            arrays.rests.reshape(-1, LENGTH)[:] = np.where(are_left[:, None], 0.0, floats[:, 1])
    sums[are_left] = -0.0
    return partial


def _forms(length: int, message: HostArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of all blocks, which stand at the end of a message."""
    return message[message.size - _count(length) :]


def _count(length: int) -> int:
    """Return the number of blocks that hold ``length`` elements."""
    return -(-length // LENGTH)


def _elements(blocks: Blocks, length: int) -> Blocks:
    """Return the indices of the elements of some blocks; the last block may have fewer than ``LENGTH``."""
    elements = (blocks[:, None] * LENGTH + np.arange(LENGTH)).reshape(-1)
    return elements[elements < length]
