"""Plans across devices on PyTorch's streams: here with pretended streams, on host memory.

Operations that a GPU would run in its own time are run at once, in the order in which they are issued.
``tests/execution/test_schedule.py`` proves that this order and these waits are enough. Copies between real GPUs were
not run here.
"""

import contextlib

import pytest
import torch

from treefold import HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.backends.torch import TorchBackend
from treefold.errors import GpuError, TreefoldError
from treefold.execution import Operand, links
from treefold.execution.cuda import several_devices
from treefold.execution.links import LinkResult
from treefold.fold import Fold
from treefold.testing import FakeBackend, assert_same_bits, owned

BACKEND = TorchBackend()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="replaces PyTorch's streams")


class FakeStream:
    """A stream that works at once, and notes the events for which it waited."""

    log: list[tuple[str, int, int]] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, device=None):
        self.device = device

    def wait_event(self, event):
        FakeStream.log.append(("wait", id(self), id(event)))

    def record_event(self):
        """Return an event that knows its stream."""
        return FakeEvent(self)


class FakeEvent:
    """An event that has come."""

    def __init__(self, stream):
        self.stream = stream

    def synchronize(self):
        FakeStream.log.append(("host", id(self.stream), id(self)))


@pytest.fixture
def streams(monkeypatch):
    """Put fake streams in place of PyTorch's, and host memory in place of GPUs."""
    FakeStream.log.clear()
    monkeypatch.setattr(links, "_known", {})
    current = {}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: current.setdefault(place, FakeStream(place)))
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(torch, "empty", _without_devices(torch.empty))
    monkeypatch.setattr(several_devices, "LEAST_CHUNK_BYTES", 512)
    monkeypatch.setattr(several_devices, "MOST_CHUNK_BYTES", 512)
    return FakeStream.log


def _without_devices(empty):
    def on_the_host(*size, device=None, pin_memory=False, **rest):  # noqa: ARG001
        return empty(*size, **rest)

    return on_the_host


def planned(ops, devices, shapes):
    """Return a plan for GPUs and the host, and the tensors of each leaf."""
    columns = [[owned(replica, shape) for replica in range(len(devices))] for shape in shapes]
    with additional_backend(FakeBackend(9)) as fake:
        fake.devices += ("cpu:0",)
        values = [PerReplica([fake.array(a, d) for a, d in zip(column, devices, strict=True)]) for column in columns]
        return ops.plan([(value, value) for value in values]), columns


def run(ops, devices, shapes, fold):
    """Run a plan, and return the results of each leaf beside what the host gives."""
    plan, columns = planned(ops, devices, shapes)
    tensors = [[BACKEND.from_host(array.copy(), "cpu:0") for array in column] for column in columns]
    inputs = [Operand(BACKEND, tuple(column), tuple(column[0].shape)) for column in tensors]
    results = several_devices.run(plan, inputs, fold, None)
    with additional_backend(FakeBackend(9)) as fake:
        fake.devices += ("cpu:0",)
        values = [PerReplica([fake.array(a, d) for a, d in zip(column, devices, strict=True)]) for column in columns]
        expected = ops.batch_reduce(fold.op, [(value, value) for value in values])
    return results, [[array.data for array in mirrored.values] for mirrored in expected]


@pytest.mark.parametrize("ops", [ReductionToOneDevice(), HierarchicalCopyAllReduce(num_packs=2)])
@pytest.mark.parametrize("devices", [("gpu:0", "gpu:1", "gpu:2"), ("cpu:0", "gpu:0"), ("gpu:1", "gpu:1", "cpu:0")])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
def test_gives_what_one_device_after_the_other_gives(streams, op, devices, ops):
    results, expected = run(ops, devices, [(1000,), (7, 5), (0,)], Fold(op))
    for made, wants in zip(results, expected, strict=True):
        for tensor, want in zip(made, wants, strict=True):
            assert_same_bits(BACKEND.host_view(tensor), want)
    assert streams


def test_the_callers_streams_come_before_and_after(streams):
    """Every stream of ours waits for what the caller gave its GPUs; these wait for the last of ours."""
    run(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(1000,)], Fold(ReduceOp.SUM))
    callers = {id(torch.cuda.current_stream(place)) for place in ("cuda:0", "cuda:1")}
    waits = [entry for entry in streams if entry[0] == "wait"]
    assert {stream for _, stream, _ in waits[-2:]} == callers
    assert not {stream for _, stream, _ in waits[:4]} & callers


@pytest.mark.parametrize(("nbytes", "chunk"), [(4096, 2 << 20), (128 << 20, 4 << 20), (1 << 30, 8 << 20)])
def test_chunks_are_parts_of_the_longest_copy(nbytes, chunk):
    tensors = [torch.empty(nbytes // 4, device="meta") for _ in range(2)]
    plan = ReductionToOneDevice().plan(PerReplica(tensors, ["cpu:0", "cpu:1"]), ["cpu:0", "cpu:1"], walked=True)
    assert several_devices._chunk_bytes(plan) == chunk


def test_only_proved_links_are_used_directly(streams):
    plan, _ = planned(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(1000,)])
    assert len(several_devices._schedule(plan, is_pinned=False).staging) == 2
    links.use([LinkResult("gpu:0", "gpu:1", "", 1e9, 0.0), LinkResult("gpu:1", "gpu:0", "it lies", 0.0, 0.0)])
    assert len(several_devices._schedule(plan, is_pinned=False).staging) == 1
    links.use([LinkResult("gpu:1", "gpu:0", "", 1e9, 0.0)])
    assert len(several_devices._schedule(plan, is_pinned=False).staging) == 0
    assert not streams


def test_pinned_host_memory_needs_no_staging(streams):
    """GPUs read and write it themselves; pageable memory goes through pinned buffers."""
    plan, _ = planned(ReductionToOneDevice(), ("cpu:0", "gpu:0"), [(1000,)])
    assert len(several_devices._schedule(plan, is_pinned=False).staging) == 2
    assert len(several_devices._schedule(plan, is_pinned=True).staging) == 0
    assert not streams


def test_without_pinned_memory_it_warns_once(streams, monkeypatch):
    """Containers and WSL bound pinned memory: pageable memory is slower, not wrong."""

    def refused(*size, pin_memory=False, device=None, **rest):  # noqa: ARG001
        if pin_memory:
            message = "CUDA error: out of memory\nmore lines"
            raise RuntimeError(message)
        return torch.zeros(*size, **rest)

    several_devices._warn_pageable.cache_clear()
    monkeypatch.setattr(torch, "empty", refused)
    with pytest.warns(
        RuntimeWarning, match=r"^Pinned host memory cannot be had \(CUDA error: out of memory\), so copies"
    ):
        results, expected = run(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(1000,)], Fold(ReduceOp.SUM))
    assert_same_bits(BACKEND.host_view(results[0][0]), expected[0][0])
    assert streams


def test_a_capture_of_one_gpu_is_refused(streams, monkeypatch):
    """A graph cannot hold what other GPUs and the host do."""
    plan, _ = planned(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(4,)])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        GpuError, match=r"^A CUDA graph of one GPU is being captured, and this plan works on gpu:0, gpu:1"
    ):
        several_devices.run(plan, [], None, None)
    assert issubclass(GpuError, TreefoldError)
    assert not streams


def test_out_is_written_last(streams):
    plan, columns = planned(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(1000,)])
    tensors = tuple(BACKEND.from_host(array.copy(), "cpu:0") for array in columns[0])
    given = [tensors]
    assert several_devices.run(plan, [Operand(BACKEND, tensors, (1000,))], Fold(ReduceOp.SUM), given) is given
    for tensor in tensors:
        assert_same_bits(BACKEND.host_view(tensor), columns[0][0] + columns[0][1])
    assert streams


def test_an_error_in_the_middle_leaves_nothing_under_way(streams, monkeypatch):
    """Issued work still uses memory that returns to the callers, so their streams wait; ``out`` is untouched."""
    plan, columns = planned(ReductionToOneDevice(), ("gpu:0", "gpu:1"), [(1000,)])
    tensors = tuple(BACKEND.from_host(array.copy(), "cpu:0") for array in columns[0])
    operations = []

    def perform(self, operation):
        operations.append(operation)
        if len(operations) == 5:
            raise torch.OutOfMemoryError
        original(self, operation)

    original = several_devices.TorchStreams.perform
    monkeypatch.setattr(several_devices.TorchStreams, "perform", perform)
    with pytest.raises(torch.OutOfMemoryError):
        several_devices.run(plan, [Operand(BACKEND, tensors, (1000,))], Fold(ReduceOp.SUM), [tensors])
    callers = {id(torch.cuda.current_stream(place)) for place in ("cuda:0", "cuda:1")}
    assert {stream for kind, stream, _ in streams[-2:] if kind == "wait"} == callers
    for tensor, array in zip(tensors, columns[0], strict=True):
        assert_same_bits(BACKEND.host_view(tensor), array)
