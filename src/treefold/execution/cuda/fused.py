"""Folds batches of tensors on one device in one launch per dtype, over a table of addresses, by Triton.

Nothing is packed or copied: a program finds its tensors by their addresses. Launches go to PyTorch's current stream.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from treefold.dtypes import COMPLEX, INTEGERS
from treefold.errors.gpus import GpuError
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

_REAL = {"complex64": "float32", "complex128": "float64"}
#: Elements of a block: 4 KiB of each contribution, at most.
_BLOCK = 1024
_WARPS = 4
#: Tables that are kept on the device: a training step reduces the same gradients again and again.
_MOST_TABLES = 64


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """Contributions of one length, in replica order, and the tensors that take their fold: all row-major, one device.

    A target may be one of the sources' own memory; beyond that it must be disjoint from them.
    """

    dtype: str
    sources: Sequence[Any]
    targets: Sequence[Any]


def has_triton() -> bool:
    """Tell whether Triton can be used; it is not imported to find out.

    Importing it after TensorFlow ends the process: both register the same options of LLVM.
    """
    return "triton" in sys.modules or ("tensorflow" not in sys.modules and _is_installed("triton"))


@functools.cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def is_interpreted() -> bool:
    """Tell whether Triton runs kernels in Python, on any memory, which is how they are tested without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_fused(fold: Fold, dtype: str) -> bool:
    """Tell whether ``fold_batch`` serves this fold for contributions of ``dtype``."""
    if not has_triton() or fold.weights is not None or fold.accumulation_fn is not None:
        return False
    if fold.op is ReduceOp.PRODUCT:
        return dtype not in COMPLEX
    return not (fold.op is ReduceOp.MEAN and dtype in {"int64", "uint64"})


def fold_batch(jobs: Sequence[DeviceJob], fold: Fold) -> int:
    """Fold every job into all its targets and return the number of launches; nothing waits for them.

    ``is_fused`` must be true for all jobs, which must lie on one device.
    """
    groups: dict[tuple[str, int, int, bool], list[tuple[list[int], int]]] = {}
    for job in jobs:
        element = _REAL.get(job.dtype, job.dtype)
        length = job.sources[0].numel() * (2 if job.dtype in COMPLEX else 1)
        addresses = [array.data_ptr() for array in (*job.sources, *job.targets)]
        is_aligned = not any(address % 16 for address in addresses)
        if length:
            key = (element, len(job.sources), len(job.targets), is_aligned)
            groups.setdefault(key, []).append((addresses, length))
    launches = 0
    for (element, count, num_targets, is_aligned), rows in groups.items():
        table = np.array([[*addresses, length] for addresses, length in rows], np.int64)
        for blocks, is_full in _blocks(table[:, -1]):
            uploaded = _uploaded(table, blocks, jobs[0].sources[0].device)
            _launch(uploaded, len(blocks), (count, num_targets, element), fold, is_aligned=is_aligned, is_full=is_full)
            launches += 1
    return launches


def _launch(
    uploaded: tuple[Any, Any],
    num_blocks: int,
    form: tuple[int, int, str],
    fold: Fold,
    *,
    is_aligned: bool,
    is_full: bool,
) -> None:
    from treefold.execution.cuda.kernels import MOST_UNROLLED, fold_batch  # noqa: PLC0415 - imports Triton

    count, num_targets, element = form
    table, blocks = uploaded
    with torch.cuda.device_of(table):
        fold_batch[(num_blocks,)](
            table,
            blocks,
            N=count,
            D=num_targets,
            ELEMENT=element,
            OP=fold.op.name.lower(),
            WIDE=fold.accumulate == "wide" or element in INTEGERS,
            UP=2 ** math.ceil(math.log2(count)),
            BLOCK=_BLOCK,
            UNROLLED=count <= MOST_UNROLLED,
            ALIGNED=is_aligned,
            FULL=is_full,
            num_warps=_WARPS,
            enable_fp_fusion=False,  # the host does not fuse either, and the bits are to be the same
        )


def _blocks(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[np.ndarray[Any, Any], bool]]:
    """Return (row, first element) of every block, those that are full and those at the ends of arrays apart."""
    whole = lengths // _BLOCK
    rows = np.repeat(np.arange(len(lengths)), whole)
    starts = np.arange(len(rows)) - np.repeat(np.cumsum(whole) - whole, whole)
    ends = np.flatnonzero(lengths % _BLOCK)
    full = np.stack([rows, starts * _BLOCK], axis=1)
    rest = np.stack([ends, whole[ends] * _BLOCK], axis=1)
    return [(blocks, is_full) for blocks, is_full in ((full, True), (rest, False)) if len(blocks)]


@dataclass(slots=True)
class _Upload:
    """A table on a device, and when it is there; ``ready`` is None once that was seen."""

    table: Any
    blocks: Any
    stream: int
    ready: Any


_uploads: OrderedDict[Any, _Upload] = OrderedDict()
_lock = threading.Lock()


def _uploaded(table: np.ndarray[Any, Any], blocks: np.ndarray[Any, Any], device: Any) -> tuple[Any, Any]:
    """Return both arrays on the device: the same ones again if they were there.

    Raises:
        GpuError: they are not, and a CUDA graph is being captured.

    """
    if device.type != "cuda":
        return torch.from_numpy(table), torch.from_numpy(blocks)
    stream = torch.cuda.current_stream(device)
    key = (device.index, table.tobytes(), blocks.tobytes())
    with _lock:
        found = _uploads.get(key)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise GpuError.first_in_capture()
            on_device = [torch.from_numpy(a).pin_memory().to(device, non_blocking=True) for a in (table, blocks)]
            found = _Upload(on_device[0], on_device[1], stream.cuda_stream, stream.record_event())
            _uploads[key] = found
            while len(_uploads) > _MOST_TABLES:
                _uploads.popitem(last=False)
        _uploads.move_to_end(key)
        if found.stream != stream.cuda_stream:
            if found.ready is not None:
                found.ready.synchronize()  # microseconds, once; also during a capture, which cannot wait for it
                found.ready = None
            for array in (found.table, found.blocks):
                array.record_stream(stream)  # so that its memory outlives what this stream does with it
        return found.table, found.blocks
