"""Moving tensors from files to a file, block by block, so that memory does not grow with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treefold.cli.average.arithmetic import combine
from treefold.cli.average.checkpoint import Bytes, Checkpoint, Contents, Spec, Writer
from treefold.errors import CheckpointError
from treefold.fold import Fold

#: The blocks of all files together, whatever their number.
_ALL_BLOCKS_BYTES = 64 << 20
_MOST_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 1 << 12


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
        OSError: writing failed.

    """
    out = np.empty(_block_bytes(len(checkpoints)), np.uint8)
    for name, spec in specs.items():
        with contextlib.ExitStack() as opened:
            contents = [opened.enter_context(checkpoint.tensor(name)) for checkpoint in checkpoints]
            target = opened.enter_context(writer.tensor(name))
            for start in range(0, spec.nbytes, out.size):
                block = out[: spec.nbytes - start]
                taken = zip(checkpoints, contents, strict=True)
                parts = [_take(checkpoint, name, tensor, block.size) for checkpoint, tensor in taken]
                views = [part.view(spec.numpy_dtype) for part in parts]
                combine(name, spec.dtype, views, fold, block.view(spec.numpy_dtype))
                target.write(block.data)
                on_bytes(block.size * len(checkpoints))


def _block_bytes(num_files: int) -> int:
    """Return the bytes of a block: whole elements of every dtype, and few enough to stay in a cache."""
    fair = min(max(_ALL_BLOCKS_BYTES // num_files, _LEAST_BLOCK_BYTES), _MOST_BLOCK_BYTES)
    return fair // _LEAST_BLOCK_BYTES * _LEAST_BLOCK_BYTES


def _take(checkpoint: Checkpoint, name: str, contents: Contents, nbytes: int) -> Bytes:
    try:
        part = contents.take(nbytes)
    except OSError as error:
        raise CheckpointError.unreadable(checkpoint.path, error) from None
    if part.size < nbytes:
        raise CheckpointError.truncated(checkpoint.path, name)
    return part
