"""The tasks: folds on one GPU, gradients of models, small tensors, a GPU and its host, several GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gpu_bench.machine import Machine
from gpu_bench.measure import Contender, Task, in_new, in_place
from gpu_bench.tensors import AdversarialTensors, Columns, Tensors
from treefold.bench.work import Work, shapes_of_model, shapes_of_size
from treefold.execution.gpus import CHOICES, nccl_refusal
from treefold.ops import CrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice
from treefold.reduce_op import ReduceOpName
from treefold.values import PerReplica

_KIB, _MIB = 1 << 10, 1 << 20
_REPLICAS = 8
MODELS = ("resnet50", "bert-base")
FOLDS: tuple[tuple[str, ReduceOpName], ...] = (
    ("float32", "sum"),
    ("float32", "mean"),
    ("bfloat16", "sum"),
    ("bfloat16", "mean"),
    ("float16", "sum"),
    ("float64", "sum"),
    ("float64", "mean"),
)
ADVERSARIAL = ("float32", "bfloat16", "float64")
EXECUTORS = CHOICES
#: Names of contenders that figures compare with.
COPY, LOOP, FOREACH = "copy on the GPU", "torch, tensor by tensor", "torch._foreach_add_"
NCCL = "treefold, NcclAllReduce"
UP, DOWN, BOTH = "copy to the GPU", "copy to the host", "copies both ways at once"

Make = Callable[[Machine], Task]


def make_tasks(machine: Machine, shrink: int = 1) -> dict[str, Make]:
    """Return a function for each task, by name, which makes it when it is called. ``shrink`` divides all lengths."""
    tasks: dict[str, Make] = {}
    for dtype, op in FOLDS:
        work = Work(fold_name(dtype, op), _sized(256 * _MIB, dtype, shrink), op, dtype, _REPLICAS)
        tasks[work.name] = _one_gpu(work)
    for dtype in ADVERSARIAL:
        work = Work(adversarial_name(dtype), _sized(256 * _MIB, dtype, shrink), "sum", dtype, _REPLICAS)
        tasks[work.name] = _adversarial(work)
    for model in MODELS:
        shapes = tuple(_shrunk(shape, shrink) for shape in shapes_of_model(model))
        tasks[model] = _one_gpu(Work(model, shapes, devices=_REPLICAS), has_baselines=True)
    small = Work(SMALL, _sized(64 * _KIB, "float32", shrink), devices=_REPLICAS)
    tasks[SMALL] = _one_gpu(small)
    for name, is_pinned in ((PINNED, True), (PAGEABLE, False)):
        work = Work(name, _sized(256 * _MIB, "float32", shrink), devices=2)
        tasks[name] = _pair(work, is_pinned=is_pinned)
    if len(machine.gpus) > 1:
        work = Work(SEVERAL, _sized(256 * _MIB, "float32", shrink), devices=len(machine.gpus))
        tasks[SEVERAL] = _several(work)
    return tasks


SMALL, PINNED, PAGEABLE, SEVERAL = "8 × 64 KiB", "GPU and host, pinned", "GPU and host, pageable", "all GPUs"


def fold_name(dtype: str, op: str) -> str:
    """Return the name of the task that folds large tensors."""
    return f"8 × 256 MiB {dtype} {op.upper()}"


def adversarial_name(dtype: str) -> str:
    """Return the name of the task that folds tensors of which every block is folded in whole numbers."""
    return f"{fold_name(dtype, 'sum')}, adversarial"


def _adversarial(work: Work) -> Make:
    """Return the task to reduce adversarial replicas on one GPU, beside a copy of as many bytes.

    Sums go into new tensors: in place, the second call would find ordinary numbers. PyTorch's operations, which do not
    sum exactly, are left out.
    """

    def make(machine: Machine) -> Task:
        tensors = AdversarialTensors(work, [machine.places[0]] * work.devices)
        (block,) = tensors.blocks.values()
        spare = torch.empty_like(block)
        devices = [machine.gpus[0]] * work.devices
        own = _treefold(EXECUTORS[0], ReductionToOneDevice(), tensors, devices, is_in_place=False)
        return Task(work.name, tensors, (own, Contender(COPY, lambda: spare.copy_(block), 2 * block.nbytes)))

    return make


def _one_gpu(work: Work, *, has_baselines: bool = False) -> Make:
    """Return the task to reduce all replicas on one GPU in place, beside a copy of as many bytes."""

    def make(machine: Machine) -> Task:
        tensors = Tensors(work, [machine.places[0]] * work.devices)
        (block,) = tensors.blocks.values()
        spare = torch.empty_like(block)
        devices = [machine.gpus[0]] * work.devices
        contenders = [_treefold(executor, ReductionToOneDevice(), tensors, devices) for executor in EXECUTORS]
        contenders.append(Contender(COPY, lambda: spare.copy_(block), 2 * block.nbytes))
        if has_baselines:
            both = 2 * tensors.nbytes
            columns = tensors.columns
            contenders.append(Contender(LOOP, lambda: _loop(columns), both, results=in_place(columns)))
            contenders.append(Contender(FOREACH, lambda: _foreach(columns), both, results=in_place(columns)))
        return Task(work.name, tensors, tuple(contenders))

    return make


def _pair(work: Work, *, is_pinned: bool) -> Make:
    """Return the task to all-reduce between a GPU and its host, into new tensors, beside copies over the bus."""

    def make(machine: Machine) -> Task:
        tensors = Tensors(work, [machine.places[0], "cpu"], pin=machine.pinned if is_pinned else None)
        devices = [machine.gpus[0], machine.host]
        on_gpu, on_host = tensors.columns[0]
        gpu_end, host_end = torch.empty_like(on_gpu), torch.empty_like(on_host)
        if is_pinned:
            host_end = machine.pinned(host_end)
        ops = ReductionToOneDevice(reduce_to_device=machine.gpus[0])
        contenders = [
            _treefold(executor, ops, tensors, devices, nbytes=work.nbytes, is_in_place=False) for executor in EXECUTORS
        ]
        up, down = (on_host, gpu_end), (on_gpu, host_end)
        contenders.append(Contender(UP, lambda: gpu_end.copy_(on_host, non_blocking=True), work.nbytes))
        contenders.append(Contender(DOWN, lambda: host_end.copy_(on_gpu, non_blocking=True), work.nbytes))
        contenders.append(Contender(BOTH, machine.both_ways(up, down), work.nbytes))
        return Task(work.name, tensors, tuple(contenders), is_to_the_end=True)

    return make


def _several(work: Work) -> Make:
    """Return the task to all-reduce across all GPUs, into new tensors, beside PyTorch's own functions, in place."""

    def make(machine: Machine) -> Task:
        tensors = Tensors(work, machine.places)
        ops = HierarchicalCopyAllReduce("auto")
        sent: dict[str, Any] = {"nbytes": work.nbytes, "is_in_place": False}
        contenders = [_treefold(executor, ops, tensors, list(machine.gpus), **sent) for executor in EXECUTORS]
        if not nccl_refusal(machine.gpus):
            contenders.append(_treefold("cuda", NcclAllReduce(), tensors, list(machine.gpus), name=NCCL, **sent))
        for name, call in machine.baselines(tensors.columns[0]).items():
            contenders.append(Contender(name, call, work.nbytes, results=in_place(tensors.columns)))
        return Task(work.name, tensors, tuple(contenders), is_to_the_end=True)

    return make


def _treefold(
    executor: str,
    ops: CrossDeviceOps,
    tensors: Tensors,
    devices: list[str],
    *,
    name: str = "",
    nbytes: int | None = None,
    is_in_place: bool = True,
) -> Contender:
    """Return treefold on one executor, by that name: ``reduce`` of one tensor, or ``batch_reduce`` of several."""
    op = tensors.work.op
    pairs: list[tuple[Any, Any]] = [(value, value) for value in (PerReplica(c, devices) for c in tensors.columns)]
    out = [value for value, _ in pairs] if is_in_place else None
    value, end = pairs[0][0], None if out is None else out[0]
    if len(pairs) > 1:

        def call() -> object:
            return ops.batch_reduce(op, pairs, out=out)
    else:

        def call() -> object:
            return [ops.reduce(op, value, value, out=end)]

    moved = 2 * tensors.nbytes if nbytes is None else nbytes
    return Contender(name or executor, call, moved, executor, in_place(tensors.columns) if is_in_place else in_new)


def _loop(columns: Columns) -> None:
    """Sum each tensor's replicas into the first and copy it to the others: an operation per tensor and replica."""
    for first, *others in columns:
        for other in others:
            first.add_(other)
        for other in others:
            other.copy_(first)


def _foreach(columns: Columns) -> None:
    """Sum all replicas into the first and copy it to the others: one operation per replica, for all tensors."""
    first, *others = zip(*columns, strict=True)
    for other in others:
        torch._foreach_add_(first, other)
    for other in others:
        torch._foreach_copy_(other, first)


def _sized(nbytes: int, dtype: str, shrink: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_shrunk(shape, shrink) for shape in shapes_of_size(nbytes, dtype))


def _shrunk(shape: tuple[int, ...], shrink: int) -> tuple[int, ...]:
    return shape if shrink == 1 else (max(1, math.prod(shape) // shrink),)
