"""One exact partial sum: flat arrays of one dtype that are added, merged, saved, and rounded once at the end."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends import HostArray, numpy_partial
from treefold.backends.numpy_partial import FRACTION, LENGTH, PAIR, WHOLE, Factor, PartialArrays
from treefold.dtypes import numpy_dtype
from treefold.errors import ArgumentError
from treefold.execution import native
from treefold.execution.native import HAS_NATIVE

if HAS_NATIVE:
    from treefold._native import PartialArrays as CoreArrays
    from treefold._native import add_to_partial, addresses_of, finish_partial, merge_partials
    from treefold._native import make_whole as make_whole_natively

Blocks = npt.NDArray[np.intp]

#: The dtypes that partial sums have.
REALS = ("float16", "bfloat16", "float32", "float64")
#: Blocks that ranks exchange at a time: 4 MiB of float64. Up to ``_SMALL`` blocks, 32 KiB, every rank adds all of them.
_EXCHANGED, _SMALL = 4096, 32
#: Bytes of an element in a message with all blocks in their first mode, by dtype.
_ELEMENT_BYTES = {"float16": 8, "bfloat16": 8, "float32": 8, "float64": 16}
#: Bytes to which the floats of a message are aligned.
_ALIGNED = 8


class Pieces(NamedTuple):
    """Flat arrays of one dtype that form one sequence of elements.

    Attributes:
        starts: The address of each array, for the core.
        offsets: The index of each array's first element among all elements, and at the end the number of elements.
        views: The arrays, or objects that keep their memory alive.

    """

    starts: HostArray
    offsets: HostArray
    views: Sequence[Any]

    @classmethod
    def of(cls, views: Sequence[HostArray]) -> Pieces:
        """Return flat, row-major arrays as pieces."""
        offsets = np.cumsum([0, *(view.size for view in views)], dtype=np.int64)
        return cls(addresses_of(list(views)) if HAS_NATIVE else np.zeros(0, np.uint64), offsets, views)


class PartialSum:
    """The exact sum of the arrays that were added so far, each times a weight.

    The sum consists of blocks of ``LENGTH`` elements. Each block is in one of the modes that
    ``backends/numpy_partial.py`` explains.

    Attributes:
        dtype: The dtype of the arrays: float16, bfloat16, float32 or float64.
        length: The number of elements of each.

    """

    def __init__(self, dtype: str, length: int) -> None:
        """Begin with the sum of no arrays."""
        self.dtype = dtype
        self.length = length
        self._arrays = PartialArrays.empty(length, is_wide=dtype == "float64")
        self._used = 0

    def clear(self) -> None:
        """Return to the sum of no arrays, in the same memory."""
        self._arrays.clear()
        self._used = 0

    @property
    def nbytes(self) -> int:
        """The bytes of memory in use; rests of blocks that never were pairs are not counted."""
        arrays = self._arrays
        kept = arrays.modes, arrays.sums, arrays.places, arrays.wholes
        rests = 0 if arrays.rests is None else int((arrays.modes >= PAIR).sum()) * LENGTH * arrays.rests.itemsize
        return sum(array.nbytes for array in kept) + rests

    @property
    def block_count(self) -> int:
        """The number of its blocks. Each has ``LENGTH`` elements; the last may have fewer."""
        return len(self._arrays.modes)

    def add(self, pieces: Pieces, factor: Factor) -> None:
        """Add arrays of the dtype, which have ``length`` elements together, times a weight."""
        if HAS_NATIVE:
            number, level = native.DTYPES[self.dtype], native.level()
            weight = factor.number, factor.pieces, _words(factor.words)
            self._in_modes(
                lambda blocks: add_to_partial(
                    self._core(), pieces.starts, pieces.offsets, number, level, *weight, blocks
                )
            )
        else:
            values = numpy_partial.read_blocks(pieces.views)
            self._in_modes(lambda blocks: numpy_partial.add(self._arrays, values, factor, self._asked(blocks)))

    def merge(self, other: PartialSum) -> None:
        """Add another partial sum of the same dtype and length."""
        if HAS_NATIVE:
            self._in_modes(lambda blocks: merge_partials(self._core(), other._core(), native.level(), blocks))
        else:
            self._in_modes(lambda blocks: numpy_partial.merge(self._arrays, other._arrays, self._asked(blocks)))

    def finish(self, divisor: int) -> HostArray:
        """Return the sum over a divisor, which is in units of 2**-64, rounded once to the dtype."""
        if not HAS_NATIVE:
            return numpy_partial.finish(self._arrays, self.dtype, divisor)
        result = np.empty(self.length, numpy_dtype(self.dtype))
        zeros = (divisor & -divisor).bit_length() - 1
        high, low = _as_two(divisor)
        pieces = Pieces.of([result])
        number, level = native.DTYPES[self.dtype], native.level()
        words = _words(divisor >> zeros)
        finish_partial(self._core(), pieces.starts, pieces.offsets, number, level, high, low, words, zeros)
        return result

    def is_finite(self, begin: int, end: int) -> bool:
        """Return whether neither infinities nor NaN were added to the elements from ``begin`` to ``end``."""
        arrays = self._arrays
        blocks = np.arange(begin // LENGTH, -(-end // LENGTH))
        inside = np.arange(blocks[0] * LENGTH, (blocks[-1] + 1) * LENGTH) if blocks.size else np.arange(0)
        are_inside = ((inside >= begin) & (inside < end)).reshape(-1, LENGTH)
        modes = arrays.modes[blocks]
        sums = arrays.sums.reshape(-1, LENGTH)[blocks]
        are_finite = np.isfinite(sums)
        are_whole = modes == WHOLE
        are_finite[are_whole] = arrays.wholes[arrays.places[blocks[are_whole]], :, -1] & numpy_partial.SPECIAL == 0
        return bool(are_finite[are_inside].all())

    def state(self, blocks: slice = slice(None)) -> dict[str, HostArray]:
        """Return the arrays of some blocks: ``modes``, ``sums``, ``rests`` of pairs, ``wholes`` of whole numbers."""
        arrays, modes = self._arrays, self._arrays.modes[blocks]
        rests = np.zeros((0, LENGTH))
        if arrays.rests is not None:
            rests = arrays.rests.reshape(-1, LENGTH)[blocks][modes == PAIR]
        return {
            "modes": modes.copy(),
            "sums": arrays.sums.reshape(-1, LENGTH)[blocks][modes < WHOLE],
            "rests": rests,
            "wholes": arrays.wholes[arrays.places[blocks][modes == WHOLE]],
        }

    @classmethod
    def of_state(cls, dtype: str, length: int, state: Mapping[str, Any], owner: str) -> PartialSum:
        """Return the partial sum that a state describes.

        Args:
            dtype: Its dtype.
            length: Its number of elements.
            state: The arrays that ``state`` has returned, by name.
            owner: Words for the state in errors.

        Raises:
            ArgumentError: ``state`` is no state, or one of another dtype or length.

        """
        made = cls(dtype, length)
        arrays = made._arrays
        modes = _checked(state, "modes", np.uint8, arrays.modes.shape, owner)
        if modes.size and (modes.max() > WHOLE or (arrays.is_wide and modes.min() < PAIR)):
            raise ArgumentError.partial_state(
                f"{owner}['modes']", "numbers that are no modes", "one written by state_dict()"
            )
        are_floats, are_pairs, wholes = modes < WHOLE, modes == PAIR, np.flatnonzero(modes == WHOLE)
        sums = _checked(state, "sums", np.float64, (int(are_floats.sum()), LENGTH), owner)
        rests = _checked(state, "rests", np.float64, (int(are_pairs.sum()), LENGTH), owner)
        width = arrays.wholes.shape[-1]
        arrays.wholes = _checked(state, "wholes", np.uint32, (len(wholes), LENGTH, width), owner).copy()
        arrays.modes[:] = modes
        arrays.sums.reshape(-1, LENGTH)[are_floats] = sums
        if are_pairs.any():
            made._with_rests().reshape(-1, LENGTH)[are_pairs] = rests
        arrays.places[wholes] = np.arange(len(wholes))
        made._used = len(wholes)
        return made

    def message(self, begin: int, end: int) -> list[HostArray]:
        """Return the state of blocks ``begin`` to ``end`` (exclusive) as arrays of bytes to send to another rank."""
        arrays = self._arrays
        modes = arrays.modes[begin:end]
        padding = np.zeros(-modes.size % _ALIGNED, np.uint8)
        if not modes.any():
            return [modes, padding, arrays.sums[begin * LENGTH : end * LENGTH].view(np.uint8)]
        state = self.state(slice(begin, end))
        return [state.pop("modes"), padding, *(one.reshape(-1).view(np.uint8) for one in state.values())]

    @classmethod
    def of_message(cls, dtype: str, length: int, message: HostArray) -> tuple[PartialSum, HostArray]:
        """Return the first partial sum of a message, and the bytes after it.

        If all its blocks are single, its arrays are views of the message: merge it into others, and do not add to it.
        """
        blocks, width = -(-length // LENGTH), PartialArrays.empty(0, is_wide=dtype == "float64").wholes.shape[-1]
        modes, at = message[:blocks], blocks + -blocks % _ALIGNED
        state = {"modes": modes}
        counts = [np.count_nonzero(modes < WHOLE), np.count_nonzero(modes == PAIR), np.count_nonzero(modes == WHOLE)]
        forms = (
            ("sums", np.float64, (LENGTH,)),
            ("rests", np.float64, (LENGTH,)),
            ("wholes", np.uint32, (LENGTH, width)),
        )
        for (name, kind, row), count in zip(forms, counts, strict=True):
            shape = (count, *row)
            end = at + int(count) * math.prod(row) * np.dtype(kind).itemsize
            state[name], at = message[at:end].view(kind).reshape(shape), end
        if modes.any():
            return cls.of_state(dtype, length, state, "a rank's message"), message[at:]
        made = cls(dtype, 0)
        made.length = length
        made._arrays = dataclasses.replace(
            made._arrays, length=length, modes=modes, sums=state["sums"].reshape(-1), places=np.zeros(blocks, np.uint32)
        )
        return made, message[at:]

    def _asked(self, blocks: Blocks | None) -> Blocks:
        """Return the indices of some blocks, of all blocks for None."""
        return np.arange(len(self._arrays.modes)) if blocks is None else blocks

    def _core(self) -> Any:
        """Return the arrays in the form that the core takes."""
        arrays = self._arrays
        return CoreArrays(
            arrays.length, arrays.least_unit, arrays.modes, arrays.sums, arrays.rests, arrays.places, arrays.wholes
        )

    def _in_modes(self, work: Any) -> None:
        """Call ``work`` for all blocks, then for the blocks that it leaves, in their next mode, until none is left.

        ``work`` takes the indices of blocks, or None for all, and returns the indices of unfinished ones.
        """
        left = np.asarray(work(None), np.intp)
        while left.size:
            self._raise(left)
            left = np.asarray(work(left), np.intp)

    def _raise(self, blocks: Blocks) -> None:
        """Change singles to pairs, and pairs to whole blocks."""
        modes = self._arrays.modes
        wholes = blocks[modes[blocks] == PAIR]
        if len(wholes) < len(blocks):
            self._with_rests()
            modes[blocks[modes[blocks] < PAIR]] = PAIR
        if wholes.size:
            self._make_room(len(wholes))
            self._arrays.places[wholes] = np.arange(self._used, self._used + len(wholes))
            self._used += len(wholes)
            if HAS_NATIVE:
                make_whole_natively(self._core(), wholes)
            else:
                numpy_partial.make_whole(self._arrays, wholes)
            modes[wholes] = WHOLE

    def _with_rests(self) -> HostArray:
        """Return the rests of all blocks, allocated if there are none yet."""
        if self._arrays.rests is None:
            self._arrays.rests = np.zeros(len(self._arrays.sums))  # memory that no pair touches is not allocated
        return self._arrays.rests

    def _make_room(self, count: int) -> None:
        """Make room in ``wholes`` for ``count`` more blocks; it grows by half, so that copies stay rare."""
        wholes = self._arrays.wholes
        wanted = self._used + count
        if wanted > len(wholes):
            grown = np.zeros(
                (min(max(wanted, len(wholes) * 3 // 2), len(self._arrays.modes)), *wholes.shape[1:]), np.uint32
            )
            grown[: self._used] = wholes[: self._used]
            self._arrays.wholes = grown


def _words(number: int) -> bytes:
    """Return a whole number as words of 32 bits, the lowest first."""
    return number.to_bytes(4 * -(-number.bit_length() // 32), "little")


def _as_two(divisor: int) -> tuple[float, float]:
    """Return a divisor in units of 2**-64 as the exact sum of two floats; two zeros if it needs more."""
    high = float(divisor)
    low = divisor - int(high)
    if int(float(low)) != low:
        return 0.0, 0.0
    return high * 2.0**-FRACTION, float(low) * 2.0**-FRACTION


def _checked(state: Mapping[str, Any], name: str, dtype: Any, shape: tuple[int, ...], owner: str) -> HostArray:
    """Return an array of a state, after a check of its dtype and shape."""
    array = state.get(name)
    words = f"an array of {np.dtype(dtype).name} {shape}"
    if not isinstance(array, np.ndarray):
        raise ArgumentError.partial_state(f"{owner}[{name!r}]", f"a {type(array).__name__}", words)
    if array.dtype != dtype or array.shape != shape:
        raise ArgumentError.partial_state(f"{owner}[{name!r}]", f"{array.dtype} {array.shape}", words)
    return array


def finish_between(partial: PartialSum, divisor: int, group: Any) -> HostArray:
    """Return the exact sum of all ranks' partial sums over a divisor, rounded once, whole on every rank.

    Memory beyond the result is bounded: ranks exchange ``_EXCHANGED`` blocks at a time, and each adds its part of them.
    Up to ``_SMALL`` blocks, each rank adds all of them after one exchange.

    Args:
        partial: This rank's sum; all ranks have the same dtype and length.
        divisor: The number to divide by, in units of 2**-64.
        group: The ranks; all of them call. None: this process alone.

    """
    if group is None or group.size == 1:
        return partial.finish(divisor)
    if partial.block_count <= _SMALL:
        messages = np.array(group.all_gather(np.concatenate(partial.message(0, partial.block_count))))
        return _merged(PartialSum(partial.dtype, partial.length), messages).finish(divisor)
    result = np.empty(partial.length, numpy_dtype(partial.dtype))
    for first in range(0, partial.block_count, _EXCHANGED):
        last = min(first + _EXCHANGED, partial.block_count)
        mine, blocks = partial, slice(first, last)
        for peers in _stages(group.rank, group.hosts):
            mine, blocks = _scattered(mine, blocks, peers, group), slice(None)
        whole = np.asarray(group.all_gather(mine.finish(divisor).view(np.uint8))).view(result.dtype)
        # Parts arrive in order of ranks, each where the stages of its rank have cut it.
        for rank in range(group.size):
            begin, end = first, last
            for peers in _stages(rank, group.hosts):
                begin, end = _cut(begin, end, peers, rank)
            row = result[begin * LENGTH : end * LENGTH]
            row[:], whole = whole[: row.size], whole[row.size :]
    return result


def _stages(rank: int, hosts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the ranks with which a rank exchanges partial sums, itself included, for each stage.

    The ranks of a host exchange first, so that each host sends one sum. If hosts have different numbers of ranks, all
    ranks exchange in a single stage.
    """
    [home] = [sorted(host) for host in hosts if rank in host]
    if len(hosts) == 1 or len(home) == 1 or len({*map(len, hosts)}) > 1:
        return [sorted(itertools.chain(*hosts))]
    return [home, sorted(sorted(host)[home.index(rank)] for host in hosts)]


def _cut(begin: int, end: int, peers: Sequence[int], rank: int) -> tuple[int, int]:
    """Return which of the blocks ``begin`` to ``end`` a rank adds, if its peers share them."""
    at = peers.index(rank)
    return begin + (end - begin) * at // len(peers), begin + (end - begin) * (at + 1) // len(peers)


def _scattered(partial: PartialSum, blocks: slice, peers: Sequence[int], group: Any) -> PartialSum:
    """Exchange the partial sums of some blocks between peers, and return their sum in this rank's part."""
    begin, end, _ = blocks.indices(partial.block_count)
    messages = {peer: partial.message(*_cut(begin, end, peers, peer)) for peer in peers}
    begin, end = _cut(begin, end, peers, group.rank)
    length = max(min(end * LENGTH, partial.length) - begin * LENGTH, 0)
    return _merged(PartialSum(partial.dtype, length), _exchanged(messages, group))


def _exchanged(messages: Mapping[int, Sequence[HostArray]], group: Any) -> HostArray:
    """Send messages, and return those that this rank gets, concatenated in order of ranks; all ranks call.

    ``messages``: for each rank that gets one, its arrays of bytes.
    """
    lengths = [sum(piece.size for piece in messages.get(rank, ())) for rank in range(group.size)]
    joined = np.concatenate([piece for rank in sorted(messages) for piece in messages[rank]])
    return np.asarray(group.all_to_all(joined, lengths=lengths))


def _merged(total: PartialSum, messages: HostArray) -> PartialSum:
    """Add the partial sums of concatenated messages to a total, and return the total."""
    while messages.size:
        one, messages = PartialSum.of_message(total.dtype, total.length, messages)
        total.merge(one)
    return total


def add_scattered(
    partial: PartialSum,
    contributions: HostArray,
    weights: Sequence[int],
    group: Any,
) -> None:
    """Add all ranks' contributions to this rank's part of the elements, each times its rank's weight.

    This is a reduce-scatter that stays partial: it can be called repeatedly, and ``finish`` rounds the sum. If one
    partial sum has fewer bytes than the contributions of a host's ranks, the host sends it to the other hosts instead.

    Args:
        partial: The sum of this rank's part.
        contributions: The contributions of this rank, flat, with equally many elements for each rank's part, in order
            of ranks. They have the dtype of ``partial``, or one that converts to it exactly.
        weights: The weight of each rank, in units of 2**-64; 0 leaves out its contributions.
        group: The ranks; all of them call. None: this process alone.

    """
    if group is None:
        _add_rows(partial, contributions, weights)
        return
    home, *columns = _stages(group.rank, group.hosts)
    if not columns or len(home) * contributions.itemsize <= _ELEMENT_BYTES[partial.dtype]:
        _add_rows(partial, np.asarray(group.all_to_all(contributions)), weights)
        return
    # First within the host: each rank gets its host's contributions to the parts of all ranks in its column, which are
    # the ranks with its place on every host. It adds them up, and sends each rank of the column one message.
    rows, [column] = contributions.reshape(group.size, -1), columns
    sent = {peer: [rows[rank].view(np.uint8) for rank in _stages(peer, group.hosts)[1]] for peer in home}
    received = _exchanged(sent, group).view(contributions.dtype).reshape(len(home), len(column), -1)
    messages = {}
    for at, rank in enumerate(column):
        total = partial if rank == group.rank else PartialSum(partial.dtype, partial.length)
        _add_rows(total, received[:, at].reshape(-1), [weights[peer] for peer in home])
        messages[rank] = [] if rank == group.rank else total.message(0, total.block_count)
    _merged(partial, _exchanged(messages, group))


def _add_rows(partial: PartialSum, contributions: HostArray, weights: Sequence[int]) -> None:
    """Add equally long, concatenated contributions, each times its weight; weight 0 leaves one out."""
    for row, words in zip(np.split(contributions, len(weights)), weights, strict=True):
        if words:
            partial.add(Pieces.of([row.astype(numpy_dtype(partial.dtype), copy=False)]), Factor(words))
