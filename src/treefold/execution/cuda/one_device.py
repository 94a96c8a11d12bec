"""Runs a plan on one GPU that holds all its arrays: one pass over the contributions writes every result.

There is no tree, as on host memory: one memory has no links to spare. Triton folds batches of tensors in at most three
launches per dtype, over a table of addresses: nothing is packed or copied, and launches go to PyTorch's current stream.
Exact folds that the kernels do not support, such as those by long weights, run on the host. Callbacks and products of
complex numbers run by the backend's operations. So does every fold if Triton is missing: wide, in replica order.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from treefold.backends import Row
from treefold.backends.numpy_exact import FORMATS
from treefold.backends.torch_memory import on_host
from treefold.devices import torch_device
from treefold.dtypes import COMPLEX, FLOATS, HALVES, INTEGERS, REAL, WIDE_INTEGERS
from treefold.errors import ArgumentError, GpuError
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.host_fold import fold_into
from treefold.execution.interface import Operand, Repeat, Results
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role
from treefold.reduce_op import ReduceOp

#: The kernels do not compile with older versions.
_LEAST_TRITON = (3, 4)
#: Elements of a block: at most 8 KiB of each contribution.
_BLOCK = 1024
_WARPS = 4
#: Of ``fold_whole``: the elements that a program folds at a time, one for each thread, and the most programs.
_PART, _MOST_PROGRAMS = 128, 2048
#: The most bits of a sum of weights that the kernels fold by: up to them, products with all but float64 are exact.
WEIGHT_BITS = 28
#: The environment variable that chooses the dtype in which sums of float32 are proved, and its values. "float32" is for
#: GPUs with slow float64.
CERTIFICATE, _CERTIFICATES = "TREEFOLD_GPU_CERTIFICATE", ("float64", "float32")
#: The most tables that are kept on devices, because training steps reduce the same gradients, and the most lists of
#: batches that one repeater keeps.
_MOST_TABLES, _MOST_BATCHES = 64, 4


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """Contributions of one length, in replica order, and the targets of their fold: row-major tensors of one device.

    A target may be the memory of a source; otherwise it must not overlap any source.
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Arrays that one compiled kernel folds.

    Attributes:
        element: Their dtype; for complex numbers the dtype of a part.
        count: The number of contributions to each.
        num_targets: The number of targets of each.
        is_aligned: Whether all addresses are multiples of 16.
        upload: Their table on the device.

    """

    element: str
    count: int
    num_targets: int
    is_aligned: bool
    upload: _Upload


def has_triton() -> bool:
    """Return whether Triton can be used, without importing it.

    Importing it after TensorFlow ends the process: both register the same options of LLVM.
    """
    return ("triton" in sys.modules or "tensorflow" not in sys.modules) and _triton_version() >= _LEAST_TRITON


@functools.cache
def _triton_version() -> tuple[int, int]:
    """Return Triton's major and minor version, under any of its packages' names; zeros if it is not installed."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor, *_ = importlib.metadata.version(name).split(".")
            return int(major), int(minor)
    return 0, 0


def is_fused(fold: Fold, dtype: str) -> bool:
    """Return whether ``fold_batch`` supports this fold for contributions of ``dtype``."""
    if not has_triton() or fold.accumulation_fn is not None:
        return False
    if fold.weights is not None:
        is_float = dtype in FLOATS or dtype in COMPLEX
        return is_float and fold.accumulate == "exact" and (fold.divisor or 0).bit_length() <= WEIGHT_BITS
    if fold.op is ReduceOp.PRODUCT:
        return dtype not in COMPLEX
    return not (fold.op is ReduceOp.MEAN and dtype in WIDE_INTEGERS)


def fold_batch(jobs: Sequence[DeviceJob], fold: Fold) -> int:
    """Fold every job into all its targets, enqueued on the current stream, and return the number of launches.

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
    return launch(make_batches(rows, fold, jobs[0].sources[0].device), fold)


def make_batches(rows: Sequence[JobAddresses], fold: Fold, device: Any) -> list[Batch]:
    """Group jobs into batches of one compiled kernel each, and put the tables of the batches on the device.

    Raises:
        GpuError: A table is not there yet, and a CUDA graph is being captured.

    """
    weights = tuple([weight for weight in fold.weights or () if weight])
    groups: dict[tuple[str, int, int, bool], list[tuple[int, ...]]] = {}
    for row in rows:
        if row.length:
            element, length, sources = row.dtype, row.length, row.sources
            if element in REAL:
                element, length = REAL[element], 2 * length
            if fold.weights is not None:  # a weight of 0 leaves its replica out, NaN and all
                sources = tuple([source for source, weight in zip(sources, fold.weights, strict=True) if weight])
            addresses = (*sources, *row.targets)
            # One address that is no multiple of 16 leaves a low bit in the union of all.
            is_aligned = functools.reduce(operator.or_, addresses) % 16 == 0
            key = (element, len(sources), len(row.targets), is_aligned)
            groups.setdefault(key, []).append((*addresses, length, *weights))
    return [
        Batch(*key, _uploaded(tuple(table), device, tuple([row[key[1] + key[2]] for row in table])))
        for key, table in groups.items()
    ]


def launch(batches: Sequence[Batch], fold: Fold) -> int:
    """Fold batches, enqueued on the current stream, and return the number of launches."""
    # Allocate all memory first, so that no allocation fails after a result was written. The bytes of declined blocks
    # are new in every call: two streams would race for cached ones.
    made = [(batch, batch.upload.use(has_bytes=is_proved(fold, batch.element))) for batch in batches]
    return sum([_launch(batch, declined, fold) for batch, declined in made])


def is_proved(fold: Fold, element: str) -> bool:
    """Return whether ``exact_kernels`` makes a fold: the exact value, rounded once."""
    return fold.accumulate == "exact" and fold.op in {ReduceOp.SUM, ReduceOp.MEAN} and element in FLOATS


def _launch(batch: Batch, declined: Any, fold: Fold) -> int:
    """Launch the kernels of a batch, and return their number; ``declined`` is None if no exact kernel folds it."""
    from treefold.execution.cuda import exact_kernels, kernels  # noqa: PLC0415 - imports Triton

    table, blocks, num_full = batch.upload.table, batch.upload.blocks, batch.upload.num_full
    common: dict[str, Any] = {"N": batch.count, "D": batch.num_targets, "OP": fold.op.name.lower(), "BLOCK": _BLOCK}
    # The host fuses no multiplications and additions, and the bits must be the same.
    common |= {"num_warps": _WARPS, "enable_fp_fusion": False}
    own = {"ELEMENT": batch.element, "UNROLLED": batch.count <= kernels.MOST_UNROLLED, "ALIGNED": batch.is_aligned}
    memory: tuple[Any, ...] = (table, blocks)
    kernel = kernels.fold_batch
    if declined is None:
        own["WIDE"] = fold.accumulate == "exact" or batch.element in INTEGERS
    else:
        common["WEIGHTED"] = fold.weights is not None
        own |= proof(fold, batch.element, batch.count)
        kernel, memory = exact_kernels.fold_proved, (table, blocks, declined)
    launches = 0
    with torch.cuda.device_of(table):
        # Full blocks get a launch of their own: they need no mask, and a mask would prevent the widest loads.
        for first, last, is_full in ((0, num_full, True), (num_full, len(blocks), False)):
            if first < last:
                kernel[(last - first,)](*memory, first, **common, **own, FULL=is_full)
                launches += 1
        if declined is not None:
            form, grid = FORMATS[batch.element], (min(len(blocks), _MOST_PROGRAMS),)
            sizes = {"BITS": form.bits, "PRECISION": form.precision, "PART": _PART}
            exact_kernels.fold_whole[grid](*memory, len(blocks), **common, **sizes)
            launches += 1
    return launches


def proof(fold: Fold, element: str, count: int) -> dict[str, Any]:
    """Return the constants ``ACCUMULATOR`` and ``INVERSE`` of ``fold_proved``."""
    is_short = element in HALVES or (element == "float32" and certificate() == "float32")
    is_power = fold.weights is None and not count & (count - 1)
    inverse = 1.0 if fold.op is ReduceOp.SUM else 1.0 / count if is_power else 0.0
    return {"ACCUMULATOR": "float32" if is_short and fold.weights is None else "float64", "INVERSE": inverse}


def certificate() -> str:
    """Return the dtype in which sums of float32 are proved, which ``TREEFOLD_GPU_CERTIFICATE`` sets.

    Raises:
        ArgumentError: The variable has another value than "float64" and "float32".

    """
    asked = os.environ.get(CERTIFICATE, _CERTIFICATES[0])
    if asked not in _CERTIFICATES:
        raise ArgumentError.setting(asked, '"float64" or "float32"', name=CERTIFICATE)
    return asked


@functools.lru_cache(maxsize=_MOST_TABLES)
def _blocks(lengths: tuple[int, ...], device: Any) -> tuple[Any, int]:
    """Return (row, first element) of every block, the full ones first, and the number of these."""
    sizes = np.array(lengths)
    whole = sizes // _BLOCK
    rows = np.repeat(np.arange(len(sizes)), whole)
    # The number of a block within its row: its number among all, less that of the row's first block.
    starts = np.arange(len(rows)) - np.repeat(np.cumsum(whole) - whole, whole)
    ends = np.flatnonzero(sizes % _BLOCK)
    full = np.stack([rows, starts * _BLOCK], axis=1)
    rest = np.stack([ends, whole[ends] * _BLOCK], axis=1)
    return torch.from_numpy(np.concatenate([full, rest])).to(device), len(full)


@dataclass(slots=True)
class _Upload:
    """A table on a device, and the blocks of its arrays.

    Attributes:
        key: Its key in the cache; None on the host, where tables are not cached.
        table: The addresses, lengths and weights of each row, as ``fold_proved`` describes them.
        blocks: The row and first element of each block, full blocks first.
        num_full: The number of full blocks.
        streams: The streams that read it.

    """

    key: Any
    table: Any
    blocks: Any
    num_full: int
    streams: set[int]

    def use(self, *, has_bytes: bool) -> Any:
        """Keep the memory until work that is enqueued now is done; return new bytes for ``declined``, or None."""
        if self.key is not None:
            device = self.table.device
            with torch.cuda.device(device):
                # A captured graph holds addresses, not references: what it reads must stay in place while it may run.
                if torch.cuda.is_current_stream_capturing():
                    _in_graphs[self.key] = self
                else:
                    self._keep_for(torch.cuda.current_stream(device))
        return torch.empty(len(self.blocks), dtype=torch.uint8, device=self.table.device) if has_bytes else None

    def _keep_for(self, stream: Any) -> None:
        """Prevent the allocator from reusing the memory before a stream has done its work with it."""
        if stream.cuda_stream not in self.streams:
            self.streams.add(stream.cuda_stream)
            for array in (self.table, self.blocks):
                # The allocator knows only the stream on which memory was allocated, and would reuse it too early.
                array.record_stream(stream)


_uploads: BoundedCache[Any, _Upload] = BoundedCache(_MOST_TABLES)
#: Tables that captured CUDA graphs read. They are kept for ever, because no event tells when the last graph is gone.
# Not bounded, unlike the cache: a graph that is replayed after its table's memory was reused would write anywhere.
_in_graphs: dict[Any, _Upload] = {}


def _uploaded(rows: tuple[tuple[int, ...], ...], device: Any, lengths: tuple[int, ...]) -> _Upload:
    """Return a table of addresses, lengths and weights on a device, from the cache if it is there.

    Raises:
        GpuError: It is not in the cache, and a CUDA graph is being captured.

    """
    if device.type != "cuda":
        return _Upload(None, torch.tensor(rows), *_blocks(lengths, device), set())
    key = (device.index, rows)
    found = _in_graphs.get(key) or _uploads.get(key)
    if found is None:
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                raise GpuError(
                    "This reduction would have to copy a table of addresses to the GPU while a CUDA graph is being "
                    "captured. Reduce the same tensors in place once before the capture, as for every warm-up; then "
                    "capture it."
                )
            found = _upload(key, device, lengths)
    _uploads.put(key, found)  # a cache hit, too: the most recently used tables stay
    return found


def _upload(key: tuple[int, tuple[tuple[int, ...], ...]], device: Any, lengths: tuple[int, ...]) -> _Upload:
    """Copy a table and its blocks to the device, and wait until they are there.

    The wait takes microseconds, once for each set of tensors. Later calls then need no event of this copy, for which a
    stream could not wait while it is being captured.
    """
    stream = _upload_stream(device.index)
    with torch.cuda.stream(stream):
        table = torch.tensor(key[1]).to(device)
        blocks, num_full = _blocks(lengths, device)
    # All uploads to a device share one stream, so this also waits for blocks that another thread has put into the cache
    # of ``_blocks`` and that are still being copied.
    stream.synchronize()
    return _Upload(key, table, blocks, num_full, set())


@functools.cache
def _upload_stream(index: int) -> Any:
    """Return a device's stream for uploads, which do not wait for the caller's work."""
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
        is_fold = leaf.leaf.goal is Goal.FOLD and fold is not None and fold.accumulation_fn is None
        if is_fold and fold is not None and is_fused(fold, leaf.leaf.dtype):
            job = _job(leaf, operand, counts[index], given)
            jobs.append(job)
            made.append(tuple(job.targets))
            # The kernel writes row-major memory. Other targets get a copy after it, on the same stream.
            copies += [(end, part) for end, part in zip(given or (), job.targets, strict=False) if end is not part]
        else:
            is_exact = is_fold and plan.accumulate == "exact"
            result = _folded_on_host(leaf, operand.arrays) if is_exact else _result(leaf, operand)
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
    """Return the job of a leaf, with row-major sources and targets."""
    # Copies made here are dropped while the kernel may still read them. That is safe: copies and kernel belong to the
    # current stream, and PyTorch reuses memory in the order of its stream.
    sources = [array.detach().resolve_conj().resolve_neg().contiguous() for array in operand.arrays]
    if given is not None:
        targets = [end if end.is_contiguous() else torch.empty_like(end, memory_format=_ROWS) for end in given]
    else:
        dtype = getattr(torch, leaf.dtype(Role.OUTPUT))
        targets = [torch.empty(operand.shape, dtype=dtype, device=sources[0].device) for _ in range(count)]
    return DeviceJob(leaf.leaf.dtype, sources, targets)


def _result(leaf: LeafActions, operand: Operand) -> Any:
    """Return a result that the backend's operations make; it may be a view of a contribution."""
    arrays = operand.arrays
    if leaf.fold is not None and leaf.fold.accumulation_fn is not None:  # a callback may write into its arguments
        device = leaf.backend.device_of(arrays[0]) or "cpu:0"
        arrays = tuple([leaf.backend.copy_to(array, device) for array in arrays])
    flat = [leaf.backend.ravel_concat([array]) for array in arrays]
    return leaf.backend.reshape(leaf.result(flat), operand.shape)


def fold_parts(leaf: LeafActions, parts: Sequence[Any], target: Any) -> None:
    """Write the exact fold of all contributions to a leaf into a target: flat tensors of one device."""
    fold = leaf.fold
    if fold is None:
        raise AssertionError(leaf)
    if is_fused(fold, leaf.leaf.dtype):
        fold_batch([DeviceJob(leaf.leaf.dtype, parts, [target])], fold)
    else:
        target.copy_(_folded_on_host(leaf, parts))


def _folded_on_host(leaf: LeafActions, arrays: Sequence[Any]) -> Any:
    """Return an exact fold that the kernels do not support, such as by long weights; the host makes it."""
    fold = leaf.fold
    if fold is None:
        raise AssertionError(leaf)
    parts = [on_host(array) for array in arrays]
    made = np.empty(parts[0].shape, np.dtype(fold.result_dtype(leaf.leaf.dtype)))
    fold_into(parts, [made], fold, leaf.leaf.dtype)
    return leaf.backend.from_host(made, "cpu:0").to(arrays[0].device)


class _DeviceRepeater:
    """Repeats one kind of call, from any thread."""

    def __init__(self, plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> None:
        self._fold, self._is_asked = fold, is_asked
        self._device = torch.device(torch_device(plan.devices[0]))
        self._dtypes = [leaf.dtype for leaf in plan.leaves]
        self._counts = [len(outputs) for outputs in buffers_of_leaves(plan, Role.OUTPUT)]
        # The keys are addresses alone: all calls of one kind have the same lengths.
        self._batches: BoundedCache[tuple[tuple[int, ...], ...], list[Batch]] = BoundedCache(_MOST_BATCHES)

    def __call__(self, rows: list[Row], targets: list[Row] | None) -> Results | None:
        """Enqueue the fold of each row on the current stream; return as ``Repeat`` describes."""
        # Ask in every call: the environment may have changed since the plan was made, and name another executor.
        if not self._is_asked():
            return None
        made: Results = []
        given = () if targets is None or targets is rows else targets
        if targets is None:
            try:
                made = [self._new(*leaf) for leaf in zip(rows, self._dtypes, self._counts, strict=True)]
            # Nothing is written yet. The slow path runs out of memory, too, and raises the error with a note.
            except torch.OutOfMemoryError:
                return None
        ends = [tuple([tensor.data_ptr() for tensor in tensors]) for tensors in made]
        key = (*[row.addresses for row in rows], *[row.addresses for row in given], *ends)
        batches = self._batches.get(key)
        if batches is None:
            # Only given targets can overlap rows: new memory is no part of a tensor that the caller still holds.
            if targets is not None and not _are_disjoint([*rows, *given]):
                return None
            places = zip(self._dtypes, rows, key, key[-len(rows) :], strict=False)
            jobs = [JobAddresses(dtype, math.prod(row.shape), *addresses) for dtype, row, *addresses in places]
            batches = make_batches(jobs, self._fold, self._device)
            self._batches.put(key, batches)
        launch(batches, self._fold)
        # Tell frameworks that count writes (autograd's version counters): they do not see the kernel's.
        for target in targets or ():
            target.backend.wrote(target.arrays)
        return made

    def _new(self, row: Row, dtype: str, count: int) -> tuple[Any, ...]:
        """Return new tensors for the results of one leaf."""
        result = getattr(torch, self._fold.result_dtype(dtype))
        return tuple([torch.empty(row.shape, dtype=result, device=self._device) for _ in range(count)])


def _are_disjoint(rows: Sequence[Row]) -> bool:
    """Return whether no two arrays share memory."""
    extents = sorted(
        (start, start + math.prod(row.shape) * row.dtype.itemsize)
        for row in rows
        for start in row.addresses
        if math.prod(row.shape)
    )
    return all(one[1] <= two[0] for one, two in itertools.pairwise(extents))


def repeater(plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> Repeat | None:
    """Return a callable that repeats a call of this plan; None unless the kernels fold every leaf on one GPU.

    ``is_asked``: returns whether such calls are still to run on this executor.
    """
    is_one_gpu = len(plan.devices) == 1 and plan.devices[0].startswith("gpu")
    is_fold = all(leaf.goal is Goal.FOLD and is_fused(fold, leaf.dtype) for leaf in plan.leaves)
    return _DeviceRepeater(plan, fold, is_asked) if is_one_gpu and is_fold else None
