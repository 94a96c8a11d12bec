"""Moving tensors from files to a file, block by block: one thread reads ahead while another folds and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.cli.average.arithmetic import combine
from treefold.cli.average.checkpoint import Checkpoint, Readable, Spec, Writer
from treefold.cli.average.errors import CheckpointError
from treefold.fold import Fold

Bytes = npt.NDArray[np.uint8]

#: All buffers together, whatever the number of files: two blocks of each file and one of the result.
_BUFFER_BYTES = 48 << 20
_MOST_BLOCK_BYTES = 1 << 20
_LEAST_BLOCK_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    spec: Spec
    parts: list[npt.NDArray[Any]]
    is_last: bool


def average(
    checkpoints: Sequence[Checkpoint],
    specs: Mapping[str, Spec],
    writer: Writer,
    fold: Fold,
    on_bytes: Callable[[int], None],
) -> None:
    """Write the fold of every tensor of ``specs``, which all files have. ``on_bytes`` is told how many bytes were read.

    Raises:
        CheckpointError: a file ends too early, or flags differ.
        OSError: reading or writing failed.

    """
    nbytes = _block_bytes(len(checkpoints))
    out = np.empty(nbytes, np.uint8)
    blocks = _read_blocks(checkpoints, specs, nbytes)
    with contextlib.closing(blocks), contextlib.ExitStack() as tensors, ThreadPoolExecutor(1) as reader:
        pending = reader.submit(next, blocks, None)
        is_first, target = True, None
        while (block := pending.result()) is not None:
            pending = reader.submit(next, blocks, None)
            if is_first:
                target = tensors.enter_context(writer.tensor(block.name))
            count = block.parts[0].nbytes
            if count:
                combine(block.name, block.spec.dtype, block.parts, fold, out[:count].view(block.spec.numpy_dtype))
                target.write(out[:count].data)  # type: ignore[union-attr] # there is one from the first block on
                on_bytes(count * len(checkpoints))
            is_first = block.is_last
            if is_first:
                tensors.pop_all().close()


def _block_bytes(num_files: int) -> int:
    """Return the bytes of a block: whole elements of every dtype, and few enough to stay in a cache."""
    fair = _BUFFER_BYTES // (2 * num_files + 1)
    return min(max(fair, _LEAST_BLOCK_BYTES), _MOST_BLOCK_BYTES) // _LEAST_BLOCK_BYTES * _LEAST_BLOCK_BYTES


def _read_blocks(
    checkpoints: Sequence[Checkpoint], specs: Mapping[str, Spec], nbytes: int
) -> Generator[_Block, None, None]:
    """Go through all tensors; a block's memory is used again for the next but one."""
    slots = [[np.empty(nbytes, np.uint8) for _ in checkpoints] for _ in range(2)]
    turn = 0
    for name, spec in specs.items():
        with contextlib.ExitStack() as stack:
            sources = [stack.enter_context(checkpoint.tensor(name)) for checkpoint in checkpoints]
            for start in range(0, max(spec.nbytes, 1), nbytes):
                count = min(nbytes, spec.nbytes - start)
                turn = 1 - turn
                parts = [slot[:count] for slot in slots[turn]]
                for checkpoint, source, part in zip(checkpoints, sources, parts, strict=True):
                    _fill(checkpoint, name, source, part)
                views = [part.view(spec.numpy_dtype) for part in parts]
                yield _Block(name, spec, views, is_last=start + count >= spec.nbytes)


def _fill(checkpoint: Checkpoint, name: str, source: Readable, part: Bytes) -> None:
    view, done = part.data, 0
    while done < len(view):
        try:
            count = source.readinto(view[done:])
        except OSError as error:
            raise CheckpointError.unreadable(checkpoint.path, (error.strerror or str(error)).lower()) from None
        if not count:
            raise CheckpointError.truncated(checkpoint.path, name)
        done += count
