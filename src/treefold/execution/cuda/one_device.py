"""Runs a plan whose arrays all lie on one GPU: every result is written in one pass over the contributions.

As on host memory, there is no tree: there are no links to spare on one memory. Triton folds batches of tensors in one
launch per dtype, over a table of addresses: nothing is packed or copied, and launches go to PyTorch's current stream.
The backend's operations fold what the kernel does not support (weights, callbacks, complex products, a missing Triton),
with the same result.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import math
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from treefold.backends import Row
from treefold.devices import torch_device
from treefold.dtypes import COMPLEX, INTEGERS, REAL, WIDE_INTEGERS
from treefold.errors import GpuError
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.interface import Operand, Repeat, Results
from treefold.fold import Fold, headroom
from treefold.keyed import BoundedCache
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role
from treefold.reduce_op import ReduceOp

#: With older ones the kernels do not compile.
_LEAST_TRITON = (3, 4)
#: Elements of a block: 4 KiB of each contribution, at most.
_BLOCK = 1024
_WARPS = 4
#: Tables that are kept on the device: training steps reduce the same gradients.
_MOST_TABLES = 64


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """Contributions of one length, in replica order, and the tensors that take their fold: all row-major, one device.

    A target may be one of the sources' own memory; beyond that it must be disjoint from them.
    """

    dtype: str
    sources: Sequence[Any]
    targets: Sequence[Any]


class JobAddresses(NamedTuple):
    """A job as addresses: contributions of ``length`` elements, and the targets of their fold."""

    dtype: str
    length: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def has_triton() -> bool:
    """Tell whether Triton can be used; it is not imported to find out.

    Importing it after TensorFlow ends the process: both register the same options of LLVM.
    """
    return ("triton" in sys.modules or "tensorflow" not in sys.modules) and _triton_version() >= _LEAST_TRITON


@functools.cache
def _triton_version() -> tuple[int, int]:
    """Return major and minor version, under whatever name it was installed; zeros if it was not."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor, *_ = importlib.metadata.version(name).split(".")
            return int(major), int(minor)
    return 0, 0


def is_fused(fold: Fold, dtype: str) -> bool:
    """Tell whether ``fold_batch`` serves this fold for contributions of ``dtype``."""
    if not has_triton() or fold.weights is not None or fold.accumulation_fn is not None:
        return False
    if fold.op is ReduceOp.PRODUCT:
        return dtype not in COMPLEX
    return not (fold.op is ReduceOp.MEAN and dtype in WIDE_INTEGERS)


def fold_batch(jobs: Sequence[DeviceJob], fold: Fold) -> int:
    """Fold every job into all its targets and return the number of launches; nothing waits for them.

    ``is_fused`` must be true for all jobs, which must lie on one device.
    """
    rows = [
        JobAddresses(
            job.dtype,
            job.sources[0].numel(),
            tuple([array.data_ptr() for array in job.sources]),
            tuple([array.data_ptr() for array in job.targets]),
        )
        for job in jobs
    ]
    return fold_rows(rows, fold, jobs[0].sources[0].device)


def fold_rows(rows: Sequence[JobAddresses], fold: Fold, device: Any) -> int:
    """Fold memory at addresses on a device; the arguments are those of ``fold_batch``, as rows."""
    # One launch for each kind: number of contributions, of targets and the dtype are constants of the compiled kernel.
    groups: dict[tuple[str, int, int, bool], list[tuple[int, ...]]] = {}
    for row in rows:
        if row.length:
            element, length = row.dtype, row.length
            if element in REAL:
                element, length = REAL[element], 2 * length
            addresses = (*row.sources, *row.targets)
            # One address that is no multiple of 16 leaves a low bit in the union of all.
            is_aligned = functools.reduce(operator.or_, addresses) % 16 == 0
            key = (element, len(row.sources), len(row.targets), is_aligned)
            groups.setdefault(key, []).append((*addresses, length))
    # All tables first: once something is written, nothing may fail for want of memory.
    tables = [_uploaded(tuple(table), device) for table in groups.values()]
    for (element, count, num_targets, is_aligned), uploaded in zip(groups, tables, strict=True):
        for blocks, is_full in uploaded.blocks:
            form = (count, num_targets, element)
            _launch(uploaded.table, blocks, form, fold, is_aligned=is_aligned, is_full=is_full)
    return sum([len(uploaded.blocks) for uploaded in tables])


def _launch(
    table: Any,
    blocks: Any,
    form: tuple[int, int, str],
    fold: Fold,
    *,
    is_aligned: bool,
    is_full: bool,
) -> None:
    from treefold.execution.cuda.kernels import MOST_UNROLLED, fold_batch  # noqa: PLC0415 - imports Triton

    count, num_targets, element = form
    with torch.cuda.device_of(table):
        fold_batch[(len(blocks),)](
            table,
            blocks,
            N=count,
            D=num_targets,
            ELEMENT=element,
            OP=fold.op.name.lower(),
            WIDE=fold.accumulate == "exact" or element in INTEGERS,
            UP=headroom(count),
            BLOCK=_BLOCK,
            UNROLLED=count <= MOST_UNROLLED,
            ALIGNED=is_aligned,
            FULL=is_full,
            num_warps=_WARPS,
            enable_fp_fusion=False,  # the host does not fuse either, and the bits are to be the same
        )


@functools.lru_cache(maxsize=_MOST_TABLES)
def _blocks(lengths: tuple[int, ...], device: Any) -> list[tuple[Any, bool]]:
    """Return (row, first element) of every block, those that are full and those at the ends of arrays apart."""
    # Whole blocks in launches of their own: they need no mask, which would keep the loads from being the widest ones.
    sizes = np.array(lengths)
    whole = sizes // _BLOCK
    rows = np.repeat(np.arange(len(sizes)), whole)
    # The number of a block less that of its row's first block: its number within the row.
    starts = np.arange(len(rows)) - np.repeat(np.cumsum(whole) - whole, whole)
    ends = np.flatnonzero(sizes % _BLOCK)
    full = np.stack([rows, starts * _BLOCK], axis=1)
    rest = np.stack([ends, whole[ends] * _BLOCK], axis=1)
    found = ((full, True), (rest, False))
    return [(torch.from_numpy(blocks).to(device), is_full) for blocks, is_full in found if len(blocks)]


@dataclass(slots=True)
class _Upload:
    """A table on a device, and the blocks of its arrays, full ones or not; the streams whose work reads them."""

    table: Any
    blocks: list[tuple[Any, bool]]
    streams: set[int]

    def keep_for(self, stream: Any) -> None:
        """Keep the memory from being given to others before a stream has done its work with it."""
        if stream.cuda_stream not in self.streams:
            self.streams.add(stream.cuda_stream)
            for array in (self.table, *(blocks for blocks, _ in self.blocks)):
                # The allocator knows only the stream that memory came from, and would give away what this one reads.
                array.record_stream(stream)


_uploads: BoundedCache[Any, _Upload] = BoundedCache(_MOST_TABLES)
#: What CUDA graphs were captured with is kept: nobody says when the last graph that reads it is gone.
# Not bounded, unlike the cache: a graph that is replayed after its table has been reused would write anywhere.
_in_graphs: dict[Any, _Upload] = {}


def _uploaded(rows: tuple[tuple[int, ...], ...], device: Any) -> _Upload:
    """Return a table of addresses and lengths, and the blocks of its arrays: the cached ones if there are any.

    Raises:
        GpuError: they are not, and a CUDA graph is being captured.

    """
    if device.type != "cuda":
        return _Upload(torch.tensor(rows), _blocks(tuple([row[-1] for row in rows]), device), set())
    key = (device.index, rows)
    with torch.cuda.device(device):
        # A captured graph holds addresses, not references: whatever it reads must stay where it is for as long as it
        # may run.
        is_capturing = torch.cuda.is_current_stream_capturing()
        found = _in_graphs.get(key) or _uploads.get(key)
        if is_capturing:
            if found is None:
                raise GpuError(
                    "This reduction would have to copy a table of addresses to the GPU while a CUDA graph is being "
                    "captured. Reduce the same tensors in place once before the capture, as for every warm-up; then "
                    "capture it."
                )
            _in_graphs[key] = found
            return found
        if found is None:
            found = _upload(rows, device)
        _uploads.put(key, found)  # also one that was found: the most recently used stay
        found.keep_for(torch.cuda.current_stream(device))
        return found


def _upload(rows: tuple[tuple[int, ...], ...], device: Any) -> _Upload:
    """Copy a table and its blocks to the device, and wait until they are there.

    The wait takes microseconds, once for each set of tensors. Later calls then need no event of this copy, for which a
    stream could not wait while it is being captured.
    """
    stream = _upload_stream(device.index)
    with torch.cuda.stream(stream):
        table = torch.tensor(rows).to(device)
        blocks = _blocks(tuple([row[-1] for row in rows]), device)
    # One stream for all uploads of a device: blocks that another thread has just put into the cache of ``_blocks``, and
    # whose copy is still under way, are waited for as well.
    stream.synchronize()
    return _Upload(table, blocks, set())


@functools.cache
def _upload_stream(index: int) -> Any:
    """Return a device's stream for uploads: work that the caller has queued up is not waited for."""
    return torch.cuda.Stream(index)


_ROWS = torch.contiguous_format


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component, enqueued on the current stream; with ``out``, in the tensors given."""
    # Allocate all memory and run all callbacks before anything is written: a failure leaves ``out`` unchanged.
    made: Results = []
    jobs: list[DeviceJob] = []
    copies: list[tuple[Any, Any]] = []
    counts = [len(outputs) for outputs in buffers_of_leaves(plan, Role.OUTPUT)]
    for index, (leaf, operand) in enumerate(zip(leaf_actions(plan, inputs, fold), inputs, strict=True)):
        given = None if out is None else out[index]
        if leaf.leaf.goal is Goal.FOLD and fold is not None and is_fused(fold, leaf.leaf.dtype):
            job = _job(leaf, operand, counts[index], given)
            jobs.append(job)
            made.append(tuple(job.targets))
            # The kernel writes row-major memory; other targets get a copy behind it, on the same stream.
            copies += [(end, part) for end, part in zip(given or (), job.targets, strict=False) if end is not part]
        else:
            result = _result(leaf, operand)
            if given is None:
                device = operand.backend.device_of(result) or "cpu:0"
                made.append(tuple(operand.backend.copy_to(result, device) for _ in range(counts[index])))
            else:
                copies += [(end, result) for end in given]
    with torch.no_grad():
        if jobs and fold is not None:
            fold_batch(jobs, fold)
        for target, source in copies:
            target.detach().copy_(source)
    if out is None:
        return made
    for operand, arrays in zip(inputs, out, strict=True):
        operand.backend.wrote(arrays)
    return out


def _job(leaf: LeafActions, operand: Operand, count: int, given: tuple[Any, ...] | None) -> DeviceJob:
    """Return the work for the kernel, row-major all of it."""
    # Copies that this makes are dropped on return, while the kernel may still read them: they are of the current
    # stream, like the kernel, and PyTorch reuses memory in the order of its stream.
    sources = [array.detach().resolve_conj().resolve_neg().contiguous() for array in operand.arrays]
    if given is not None:
        targets = [end if end.is_contiguous() else torch.empty_like(end, memory_format=_ROWS) for end in given]
    else:
        dtype = getattr(torch, leaf.dtype(Role.OUTPUT))
        targets = [torch.empty(operand.shape, dtype=dtype, device=sources[0].device) for _ in range(count)]
    return DeviceJob(leaf.leaf.dtype, sources, targets)


def _result(leaf: LeafActions, operand: Operand) -> Any:
    """Return a result made by the backend's own operations; it may be a view of a contribution."""
    arrays = operand.arrays
    if leaf.fold is not None and leaf.fold.accumulation_fn is not None:  # which may write into what it gets
        device = leaf.backend.device_of(arrays[0]) or "cpu:0"
        arrays = tuple([leaf.backend.copy_to(array, device) for array in arrays])
    flat = [leaf.backend.ravel_concat([array]) for array in arrays]
    return leaf.backend.reshape(leaf.result(flat), operand.shape)


_MOST_REMEMBERED = 64


class _DeviceRepeater:
    """Repeats one kind of call. Safe to use from many threads."""

    def __init__(self, plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> None:
        self._fold, self._is_asked = fold, is_asked
        self._device = torch.device(torch_device(plan.devices[0]))
        self._dtypes = [leaf.dtype for leaf in plan.leaves]
        self._counts = [len(outputs) for outputs in buffers_of_leaves(plan, Role.OUTPUT)]
        self._disjoint: set[tuple[tuple[int, ...], ...]] = set()

    def __call__(self, rows: list[Row], targets: list[Row] | None) -> Results | None:
        """Enqueue the fold of each row on the current stream."""
        # Asked in every call, because the environment may name another executor since the plan was made.
        if not self._is_asked():
            return None
        made: Results = []
        if targets is None:
            try:
                made = [self._new(*leaf) for leaf in zip(rows, self._dtypes, self._counts, strict=True)]
            # Nothing is written yet. The slow path runs out of it again, and raises with the note that says so.
            except torch.OutOfMemoryError:
                return None
            # New memory overlaps nothing: PyTorch gives out none that a tensor of the caller still holds.
            ends = [tuple([tensor.data_ptr() for tensor in tensors]) for tensors in made]
        else:
            if not self._are_disjoint(rows if targets is rows else [*rows, *targets]):
                return None
            ends = [row.addresses for row in targets]
        leaves = zip(self._dtypes, rows, ends, strict=True)
        jobs = [JobAddresses(dtype, math.prod(row.shape), row.addresses, addresses) for dtype, row, addresses in leaves]
        fold_rows(jobs, self._fold, self._device)
        # Frameworks that count writes (autograd's version counters) do not see what a kernel writes.
        for target in targets or ():
            target.backend.wrote(target.arrays)
        return made

    def _new(self, row: Row, dtype: str, count: int) -> tuple[Any, ...]:
        result = getattr(torch, self._fold.result_dtype(dtype))
        return tuple([torch.empty(row.shape, dtype=result, device=self._device) for _ in range(count)])

    def _are_disjoint(self, rows: Sequence[Row]) -> bool:
        """Tell whether no two arrays share memory; what was found of the same addresses before still holds."""
        # Addresses alone: a repeater serves one kind of call, so the lengths are always the same.
        key = tuple([row.addresses for row in rows])
        if key in self._disjoint:
            return True
        extents = sorted(
            (start, start + math.prod(row.shape) * row.dtype.itemsize)
            for row in rows
            for start in row.addresses
            if math.prod(row.shape)
        )
        if any(one[1] > two[0] for one, two in itertools.pairwise(extents)):
            return False
        # No lock: each of these calls on a set is atomic, and what another thread forgets is only found out once more.
        if len(self._disjoint) >= _MOST_REMEMBERED:
            self._disjoint.clear()
        self._disjoint.add(key)
        return True


def repeater(plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> Repeat | None:
    """Return what repeats a call of this plan; None if it is not one pass of the kernel over every leaf, on one GPU.

    ``is_asked``: whether the kernel is still what such calls are to run by.
    """
    is_one_gpu = len(plan.devices) == 1 and plan.devices[0].startswith("gpu")
    is_fold = all(leaf.goal is Goal.FOLD and is_fused(fold, leaf.dtype) for leaf in plan.leaves)
    return _DeviceRepeater(plan, fold, is_asked) if is_one_gpu and is_fold else None
