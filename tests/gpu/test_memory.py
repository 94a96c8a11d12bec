"""On a real GPU: too little memory, at whatever moment. Outputs are untouched, and the next call is right."""

import contextlib

import numpy as np
import pytest

from treefold import PerReplica, ReductionToOneDevice

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here"),
]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _cuda_executor(monkeypatch):
    """Let plans on GPUs run on their own executor, and give back what a test took."""
    monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", "cuda")
    yield
    torch.cuda.empty_cache()


@contextlib.contextmanager
def room_for(nbytes):
    """Let PyTorch take this much more memory of the GPU, and no more."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.memory.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + nbytes) / total, 0)
    try:
        yield
    finally:
        torch.cuda.memory.set_per_process_memory_fraction(1.0, 0)


def filled(count, shape, dtype=torch.float32):
    return [torch.full(shape, 2.0**replica, dtype=dtype, device="cuda") for replica in range(count)]


def are_filled(tensors):
    return [bool((tensor == 2.0**replica).all()) for replica, tensor in enumerate(tensors)] == [True] * len(tensors)


def refused(call):
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory") as caught:
        call()
    return " ".join(caught.value.__notes__)


def test_new_results_that_do_not_fit():
    tensors = filled(3, (16 * MIB,))
    value, ops = PerReplica(tensors, ["gpu:0"] * 3), ReductionToOneDevice()
    with room_for(100 * MIB):
        note = refused(lambda: ops.reduce("sum", value, value))
        assert note.startswith("treefold: nothing was written; every tensor holds what it held before the call.")
        assert are_filled(tensors)
        ops.reduce("sum", value, value, out=value)  # in place takes a table and no more
        assert all(bool((tensor == 7).all()) for tensor in tensors)


def test_in_the_middle_of_a_batch():
    """The first value needs no memory and is written in place; the second needs some: neither is touched."""
    small = filled(3, (5000,), torch.float16)
    large = [tensor.mT for tensor in filled(3, (4096, 4096))]
    values = [PerReplica(tensors, ["gpu:0"] * 3) for tensors in (small, large)]
    with room_for(100 * MIB):
        refused(lambda: ReductionToOneDevice().batch_reduce("sum", [(v, v) for v in values], out=values))
        torch.cuda.synchronize()
        assert are_filled(small)
        assert are_filled(large)
    ReductionToOneDevice().batch_reduce("sum", [(value, value) for value in values], out=values)
    assert all(bool((tensor == 7).all()) for tensor in (*small, *large))


def test_between_the_gpu_and_the_host():
    on_gpu, on_host = torch.full((32 * MIB,), 1.0, device="cuda"), torch.full((32 * MIB,), 2.0)
    value, ops = PerReplica([on_gpu, on_host], ["gpu:0", "cpu:0"]), ReductionToOneDevice("gpu:0")
    with room_for(64 * MIB):
        refused(lambda: ops.reduce("sum", value, value, out=value))
        torch.cuda.synchronize()
        assert bool((on_gpu == 1).all())
        assert bool((on_host == 2).all())
    ops.reduce("sum", value, value, out=value)
    assert bool((on_gpu == 3).all())
    assert bool((on_host == 3).all())


def test_while_copies_are_under_way(monkeypatch):
    """Chunks that were issued before it write into memory that PyTorch hands out again: only after they are done."""
    from treefold.execution.cuda import several_devices  # noqa: PLC0415 - imports PyTorch

    on_gpu = torch.full((32 * MIB,), 1.0, device="cuda")
    on_host = torch.full((32 * MIB,), 2.0, pin_memory=True)
    value = PerReplica([on_gpu, on_host], ["gpu:0", "cpu:0"])
    operations, perform = [], several_devices.TorchStreams.perform

    def scarce(self, operation):
        operations.append(operation)
        if len(operations) == 20:
            message = "CUDA out of memory."
            raise torch.cuda.OutOfMemoryError(message)
        perform(self, operation)

    monkeypatch.setattr(several_devices.TorchStreams, "perform", scarce)
    refused(lambda: ReductionToOneDevice("gpu:0").reduce("sum", value, value, out=value))
    again = [torch.full((32 * MIB,), 5.0, device="cuda") for _ in range(3)]  # the memory that was given back
    torch.cuda.synchronize()
    assert all(bool((tensor == 5).all()) for tensor in again)
    assert bool((on_gpu == 1).all())
    assert bool((on_host == 2).all())


def test_contributions_that_barely_fit():
    free = torch.cuda.mem_get_info()[0] - 1024 * MIB
    if free < 1024 * MIB:
        pytest.skip("needs 2 GiB of free GPU memory")
    length = min(free, 16 << 30) // 4 // 2
    tensors = filled(2, (length,), torch.float32)
    value = PerReplica(tensors, ["gpu:0"] * 2)
    ReductionToOneDevice().reduce("mean", value, value, out=value)
    ends = torch.stack([tensor[index] for tensor in tensors for index in (0, length // 2, length - 1)])
    assert np.array_equal(ends.cpu().numpy(), np.full(6, 1.5, np.float32))
