"""Runs a plan across GPUs and the host as streams of chunks, on PyTorch's streams, events and pinned memory.

On every device, the plan's work starts after everything that is enqueued on the caller's stream, and that stream waits
for its end. Copies of pageable host memory, and between GPUs without a proved link, go through pinned staging.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch

from treefold.devices import device_type, torch_device
from treefold.errors import GpuError
from treefold.execution import links
from treefold.execution.actions import FlatMemory, leaf_actions, outputs
from treefold.execution.cuda import one_device
from treefold.execution.interface import Operand, Results, handed_over
from treefold.execution.schedule import DeviceStream, Operation, Schedule, issue, make_schedule
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.observing import warn
from treefold.plan import Plan
from treefold.plan.ir import Action, Buffer, Combine, Role

#: Bounds of the bytes of a chunk. Issuing a chunk's operations takes 0.1 ms, so smaller chunks waste the bus. Larger
#: chunks make the pipeline slower to fill and drain.
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 2 << 20, 8 << 20
# Filling and draining a pipeline of k chunks takes about (steps − 1)/k of its time: 32 keeps that to a few percent.
_CHUNKS = 32
_MOST_SCHEDULES = 64


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component: enqueued on GPUs, complete on the host.

    Raises:
        GpuError: A CUDA graph is being captured.

    """
    if torch.cuda.is_current_stream_capturing():
        raise GpuError(
            f"A CUDA graph of one GPU is being captured, and this plan works on {', '.join(plan.devices)}. "
            f"Capture reductions between replicas on one GPU; call others outside the capture."
        )
    is_pinned = _is_pinned(inputs)
    schedule = _schedule(plan, is_pinned=is_pinned)
    driver = TorchStreams(schedule, inputs, fold, is_pinned=is_pinned)
    try:
        # Copies within the call must not enter the caller's autograd graph, which would keep their memory alive.
        with torch.no_grad():
            issue(schedule, driver)
    finally:  # after an error, too: issued work still uses memory that is reused in the order of the caller's streams
        driver.join()
    return handed_over(inputs, driver.results(), out)


class TorchStreams:
    """Runs a schedule on PyTorch's streams. Operations on host memory block until they are done."""

    def __init__(
        self, schedule: Schedule, inputs: Sequence[Operand], fold: Fold | None, *, is_pinned: bool = False
    ) -> None:
        """Allocate all memory first, so that later only temporaries of the backend can run out of it.

        Args:
            schedule: The schedule.
            inputs: The contributions to each leaf.
            fold: The arithmetic; None for plans that only move values.
            is_pinned: Whether the caller's host memory is pinned. If it is, so are results on the host.

        """
        self.schedule, self.inputs, self.is_pinned = schedule, inputs, is_pinned
        self.leaves = leaf_actions(schedule.plan, inputs, fold)
        # PyTorch hands out a device's 32 streams in turn, so two of ours, or one of another thread, may be the same.
        # That costs overlap, never correctness: every dependency has its event.
        self.streams = {stream: _make_streams(stream) for stream in schedule.streams}
        # PyTorch's allocator reuses freed memory in the order of the stream that it was allocated on: the caller's.
        # That stream waits for ours at the end, so no buffer is reused while our streams still use it.
        arrays = [self._array(index, buffer) for index, buffer in enumerate(schedule.buffers)]
        self.memory = FlatMemory(self.leaves, schedule.buffers, arrays, _copy)
        self._gpus = [device for device in schedule.plan.devices if device_type(device) == "gpu"]
        # The caller's streams may still be writing the contributions, so our streams wait for them.
        begun = [torch.cuda.current_stream(torch_device(device)).record_event() for device in self._gpus]
        for own in self.streams.values():
            for stream in own:
                for event in begun:
                    stream.wait_event(event)
        for event in begun if any(not own for own in self.streams.values()) else ():
            event.synchronize()  # the host's own part has no stream to wait on

    def wait(self, stream: DeviceStream, event: Any) -> None:
        """Make a stream wait for an event; block for the host's stream. ``event``: None for work of the host."""
        if event is None:
            return
        # A copy between GPUs has two streams, the sender's and the receiver's, and both wait: PyTorch orders the copy
        # with the current streams of both devices.
        for own in self.streams[stream]:
            own.wait_event(event)
        if not self.streams[stream]:
            event.synchronize()

    def perform(self, operation: Operation) -> None:
        """Enqueue an operation, or run it at once if it is the host's."""
        with contextlib.ExitStack() as current:
            for stream in self.streams[operation.stream]:
                current.enter_context(torch.cuda.stream(stream))
            self._perform(operation.action)

    def _perform(self, action: Action) -> None:
        """Enqueue an action on the current streams; GPUs fold exactly by the kernels of one device."""
        where = self.memory.buffers[action.target.buffer]
        # In an exact plan no partial folds travel, so that each fold has all contributions as its sources.
        is_exact = self.schedule.plan.accumulate == "exact" and isinstance(action, Combine)
        if is_exact and device_type(where.device) == "gpu":
            parts = [self.memory.part(source) for source in action.sources]
            one_device.fold_parts(self.leaves[where.leaf], parts, self.memory.part(action.target))
        else:
            self.memory.perform(action)

    def signal(self, stream: DeviceStream) -> Any:
        """Return an event after all work of a stream; None for the host, where ``perform`` waits for the end."""
        own = self.streams[stream]
        return own[0].record_event() if own else None

    def join(self) -> None:
        """Make the caller's streams wait for all of ours."""
        for own in self.streams.values():
            # The caller's stream on every GPU waits for each of ours. So PyTorch can reuse our buffers in the order of
            # the caller's stream, and the caller can read results without a wait of its own.
            for stream in own:
                event = stream.record_event()
                for device in self._gpus:
                    torch.cuda.current_stream(torch_device(device)).wait_event(event)
                # The host has no stream that could wait, so its results must be complete when the call returns.
                if "cpu" in {device_type(device) for device in self.schedule.plan.devices}:
                    event.synchronize()

    def results(self) -> Results:
        """Return the outputs, each in the shape of its leaf."""
        return outputs(self.schedule.plan, self.inputs, lambda index: self.memory.arrays[index])

    def _array(self, index: int, buffer: Buffer) -> Any:
        """Return the memory of a buffer, flat: a contribution, pinned host memory, or new memory of its device."""
        if buffer.role is Role.INPUT:
            array = self.inputs[buffer.leaf].arrays[buffer.position]
            return array.detach().resolve_conj().resolve_neg().reshape(-1)
        dtype = getattr(torch, self.leaves[buffer.leaf].dtype(buffer.role))
        # PyTorch's pinned allocator records the streams of each asynchronous copy. So a staging buffer that is dropped
        # on return is not reused before the last copy through it is done.
        if index in self.schedule.staging or (self.is_pinned and device_type(buffer.device) == "cpu"):
            return _pinned(buffer.length, dtype)
        return torch.empty(buffer.length, dtype=dtype, device=torch_device(buffer.device))


def _copy(target: Any, source: Any) -> None:
    """Enqueue a copy on the current stream; a copy within the host runs at once.

    A temporary source was allocated on this stream, so its memory is not reused before the copy is done.
    """
    target.copy_(source, non_blocking=True)


def _make_streams(stream: DeviceStream) -> list[Any]:
    """Return a CUDA stream for each GPU of a stream's operations, the sender's first; none for the host's own stream.

    A copy between GPUs has a stream on each of them: PyTorch makes the current streams of both wait for each other.
    """
    gpus = [name for name in (stream.device, stream.peer) if name.startswith("gpu")]
    return [torch.cuda.Stream(torch_device(name)) for name in gpus]


_schedules: BoundedCache[tuple[int, bool, int], tuple[Plan, Schedule]] = BoundedCache(_MOST_SCHEDULES)


def _schedule(plan: Plan, *, is_pinned: bool) -> Schedule:
    """Return the plan's schedule, cached for each state of the links."""
    # By identity: a plan has thousands of actions, and hashing them in every call would cost more than the cache saves.
    # The cache holds the plan, too, so that no other plan gets its id.
    key = id(plan), is_pinned, links.version()
    is_direct = functools.partial(_is_direct, is_pinned=is_pinned)

    def make() -> tuple[Plan, Schedule]:
        return plan, make_schedule(plan, chunk_bytes=_chunk_bytes(plan), is_direct=is_direct)

    return _schedules.made(key, make)[1]


def _chunk_bytes(plan: Plan) -> int:
    """Return the bytes of a chunk: a 32nd of the longest copy, within bounds."""
    nbytes = max((hop.nbytes for hop in plan.hops), default=0)
    return min(max(nbytes // _CHUNKS, LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES)


def _is_direct(source: str, target: str, *, is_pinned: bool) -> bool:
    """Return whether a copy needs no staging in pinned memory."""
    kinds = {device_type(source), device_type(target)}
    if "cpu" in kinds:
        # GPUs copy to and from pageable memory only by way of the driver's own buffers, while the host waits.
        return is_pinned or kinds == {"cpu"}
    return links.is_proved(source, target)


def _is_pinned(inputs: Sequence[Operand]) -> bool:
    """Return whether all contributions on the host are pinned; False if there are none."""
    on_host = [array for operand in inputs for array in operand.arrays if array.is_cpu]
    return bool(on_host) and all(array.is_pinned() for array in on_host)


@functools.cache
def _warn_pageable(problem: str) -> None:
    """Warn once for each problem."""
    warn(
        f"Pinned host memory cannot be had ({problem}), so copies between the host and GPUs go through pageable "
        "memory, at a fraction of the bus. WSL and containers bound it: raise the limit of locked memory (ulimit -l).",
        stacklevel=2,
    )


def _pinned(length: int, dtype: Any) -> Any:
    """Return pinned host memory; if there is none, warn once and return pageable memory."""
    try:
        return torch.empty(length, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        _warn_pageable(str(error).splitlines()[0])
        return torch.empty(length, dtype=dtype)
