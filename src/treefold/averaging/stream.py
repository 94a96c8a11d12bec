"""Moving tensors from inputs to an output, block by block, so that memory does not grow with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from treefold.averaging.arithmetic import Combination, Rule, combine, rounded_once
from treefold.averaging.mapped import Span
from treefold.averaging.selection import Output
from treefold.averaging.tensors import Bytes, Contents
from treefold.errors import CheckpointError

#: The blocks of all inputs together, whatever their number.
ALL_BLOCKS_BYTES = 32 << 20
MOST_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 1 << 12
#: Tensors that are smaller are folded several at a time.
_SMALL_BYTES = 1 << 14
_BATCH_BYTES = 1 << 18


class Writer(Protocol):
    """A file or folder to be, which takes the tensors that it was announced, in that order."""

    def tensor(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Open a tensor for writing: an object with ``write(bytes)``."""

    def close(self) -> None:
        """Write what stands at the end."""


def average(outputs: Sequence[Output], writer: Writer, on_bytes: Callable[[int], None]) -> None:
    """Write every output. ``on_bytes`` is told how many bytes were read.

    Raises:
        CheckpointError: a file ends too early, or what has no mean differs.
        OSError: writing failed.

    """
    room = np.empty(MOST_BLOCK_BYTES, np.uint8)
    for batch in _batches(outputs):
        if len(batch) == 1:
            _stream(batch[0], room, writer, on_bytes)
        else:
            _fold_batch(batch, writer, on_bytes)


def block_bytes(num_inputs: int) -> int:
    """Return the bytes of a block: whole elements of every dtype, and few enough to stay in a cache."""
    fair = min(max(ALL_BLOCKS_BYTES // num_inputs, _LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES)
    return fair // _LEAST_BLOCK_BYTES * _LEAST_BLOCK_BYTES


def _batches(outputs: Sequence[Output]) -> Iterator[list[Output]]:
    """Yield small tensors of one dtype and one combination together, and all others alone, in their order."""
    batch: list[Output] = []
    nbytes = 0
    for output in outputs:
        size = output.spec.nbytes
        is_small = size <= _SMALL_BYTES and output.work == output.spec and all(type(t) is Span for t in output.tensors)
        is_alike = batch and is_small and nbytes + size <= _BATCH_BYTES // len(output.tensors) + _SMALL_BYTES
        if is_alike and _kind_of(output) == _kind_of(batch[0]):
            batch.append(output)
            nbytes += size
            continue
        if batch:
            yield batch
        batch, nbytes = [output], size
        if not is_small:
            yield batch
            batch = []
    if batch:
        yield batch


def _kind_of(output: Output) -> tuple[str, Rule, Combination]:
    return output.spec.dtype, output.rule, output.combination


def _fold_batch(batch: Sequence[Output], writer: Writer, on_bytes: Callable[[int], None]) -> None:
    nbytes = sum(output.spec.nbytes for output in batch)
    parts = np.empty((len(batch[0].tensors), nbytes), np.uint8)
    start = 0
    for output in batch:
        stop = start + output.spec.nbytes
        for part, tensor in zip(parts, output.tensors, strict=True):
            tensor.read_into(part[start:stop], output.name)  # type: ignore[attr-defined]  # batches hold spans alone
        start = stop
    dtype = batch[0].spec.numpy_dtype
    result = np.empty(nbytes, np.uint8)
    views, out = [part.view(dtype) for part in parts], result.view(dtype)
    try:
        combine(batch[0].name, batch[0].spec.dtype, views, batch[0].combination, out, batch[0].rule)
    except CheckpointError:  # of which of them, is seen when each is alone
        for output, (first, last) in zip(batch, _ranges(batch), strict=True):
            one = slice(first // dtype.itemsize, last // dtype.itemsize)
            own = [view[one] for view in views]
            combine(output.name, output.spec.dtype, own, output.combination, out[one], output.rule)
        raise
    for output, (first, last) in zip(batch, _ranges(batch), strict=True):
        with writer.tensor(output.name) as target:
            target.write(result[first:last].data)
    on_bytes(parts.size)


def _ranges(batch: Sequence[Output]) -> Iterator[tuple[int, int]]:
    start = 0
    for output in batch:
        yield start, start + output.spec.nbytes
        start += output.spec.nbytes


def _stream(output: Output, room: Bytes, writer: Writer, on_bytes: Callable[[int], None]) -> None:
    spec, work = output.spec, output.work
    out = room[: block_bytes(len(output.tensors))]
    with contextlib.ExitStack() as opened:
        contents = [opened.enter_context(tensor.open()) for tensor in output.tensors]
        target = opened.enter_context(writer.tensor(output.name))
        for start in range(0, work.nbytes, out.size):
            block = out[: work.nbytes - start]
            taken = zip(output.paths, contents, strict=True)
            parts = [_take(path, output.name, tensor, block.size) for path, tensor in taken]
            views, result = [part.view(work.numpy_dtype) for part in parts], block.view(work.numpy_dtype)
            combine(output.name, work.dtype, views, output.combination, result, output.rule)
            if work.dtype != spec.dtype:
                result = rounded_once(result, views, output.combination, spec.dtype, work.dtype)
            target.write(result.view(np.uint8).data)
            on_bytes(block.size * len(contents))


def _take(path: Path, name: str, contents: Contents, nbytes: int) -> Bytes:
    try:
        part = contents.take(nbytes)
    except OSError as error:
        raise CheckpointError.unreadable(path, error) from None
    if part.size < nbytes:
        raise CheckpointError.truncated(path, name)
    return part
