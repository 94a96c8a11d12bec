"""Calls between replicas on one GPU that were made before, on GPUs that are not there."""

import sys
from unittest import mock

import numpy as np
import pytest
import torch
from pretended import pretended_gpus

from treefold import HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends.numpy_fold import fold_block
from treefold.backends.torch import TorchBackend
from treefold.dtypes import COMPLEX, REDUCIBLE
from treefold.errors import OutputError
from treefold.execution.cuda import one_device
from treefold.execution.gpus import gpu_executor
from treefold.fold import Fold
from treefold.testing import assert_same_bits, mixed_values

COUNT = 3
HOST = TorchBackend()
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="pretends that there are GPUs"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter computes overflows with NumPy
]


@pytest.fixture
def gpus(monkeypatch):
    """Return a GPU in host memory, on which plans run by the kernel."""
    monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", "cuda")
    monkeypatch.setattr(one_device, "torch_device", lambda _device: "cpu")
    with pretended_gpus(2) as backend:
        yield backend


@pytest.fixture
def slow_calls(monkeypatch):
    """Return the list of calls that took the slow path."""
    slow = []
    base = sys.modules["treefold.ops.base"]
    read = base._read_entries
    monkeypatch.setattr(base, "_read_entries", lambda *args, **kinds: slow.append(1) or read(*args, **kinds))
    return slow


def value(gpus, arrays, device="gpu:0"):
    tensors = [gpus.put(HOST.from_host(np.array(array), "cpu:0"), device) for array in arrays]
    return PerReplica(tensors, [device] * len(tensors))


def on_host(tensor):
    return HOST.host_view(tensor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint32", "complex64"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX])
def test_gives_what_the_first_call_gave(op, dtype, gpus, slow_calls):
    assert dtype in REDUCIBLE
    if dtype in COMPLEX and op is ReduceOp.MAX:
        return
    ops = ReductionToOneDevice()
    for _ in range(3):
        replicas = value(gpus, [mixed_values(replica, (33, 2), dtype) for replica in range(COUNT)])
        parts, fold = [on_host(tensor).copy() for tensor in replicas], Fold(op)
        result = fold.result_dtype(dtype)
        flat = fold_block([part.reshape(-1) for part in parts], fold, dtype=dtype, divisor=COUNT, result=result)
        expected = flat.reshape(parts[0].shape)
        slow_calls.clear()
        made = ops.reduce(op, replicas, replicas)
        assert made.plan.executor == "cuda"
        assert made.plan.guarantee == "exact"
        given = value(gpus, [np.zeros_like(expected)] * COUNT)
        ops.reduce(op, replicas, replicas, out=given)
        if expected.dtype == on_host(replicas[0]).dtype:
            ops.reduce(op, replicas, replicas, out=replicas)
            assert all(tensor._version == 1 for tensor in replicas)
        for tensor in (*made, *given, *(replicas if expected.dtype == on_host(replicas[0]).dtype else ())):
            assert_same_bits(on_host(tensor), expected)
    assert not slow_calls


@pytest.mark.parametrize("kind", ["in place", "given"])
def test_tables_are_kept_while_tensors_stay_where_they_are(kind, gpus, monkeypatch):
    ops, made = ReductionToOneDevice(), []
    make = one_device.make_batches
    monkeypatch.setattr(one_device, "make_batches", lambda *args: made.append(1) or make(*args))
    replicas, others = (value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)]) for _ in range(2))
    ends = replicas if kind == "in place" else value(gpus, [np.zeros(8, np.float32)] * 2)
    for turn in range(5):
        replicas[0].fill_(turn)
        replicas[1].fill_(2)
        ops.reduce("sum", replicas, replicas, out=ends)
        assert all((tensor == turn + 2).all() for tensor in ends)
    assert len(made) == 2  # of the slow path, and of the fast one
    ops.reduce("sum", others, others, out=others if kind == "in place" else ends)
    assert all((tensor == 3).all() for tensor in (others if kind == "in place" else ends))
    assert len(made) == 3


def test_takes_batches_of_trees(gpus, slow_calls):
    ops = HierarchicalCopyAllReduce(num_packs=2)
    for scale in (1.0, 3.0):
        trees = [
            {
                "a": gpus.put(torch.full((5,), scale * 2.0**replica), "gpu:0"),
                "b": [gpus.put(torch.full((2, 3), int(scale) << replica), "gpu:0"), gpus.put(torch.ones(0), "gpu:0")],
            }
            for replica in range(COUNT)
        ]
        slow_calls.clear()
        pair = PerReplica(trees, ["gpu:0"] * COUNT)
        for result in ops.batch_reduce("sum", [(pair, pair), (pair, "gpu:0")])[0]:
            assert result["a"].tolist() == [7 * scale] * 5
            assert result["b"][0].tolist() == [[7 * scale] * 3] * 2
            assert result["b"][1].shape == (0,)
    assert not slow_calls


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: tensors[1].t(),
        lambda tensors: torch._neg_view(tensors[1]),
        lambda tensors: tensors[1].double(),
        lambda tensors: tensors[1][:2],
        lambda tensors: tensors[1].as_subclass(torch.nn.Buffer) if hasattr(torch.nn, "Buffer") else tensors[1].t(),
    ],
)
def test_looks_at_every_tensor(spoil, gpus, slow_calls):
    ops = ReductionToOneDevice()
    replicas = value(gpus, [np.full((4, 4), 2.0**replica, np.float32) for replica in range(COUNT)])
    ops.reduce("sum", replicas, replicas)
    slow_calls.clear()
    tensors = list(replicas)
    tensors[1] = gpus.put(spoil(tensors), "gpu:0")
    try:
        result = ops.reduce("sum", PerReplica(tensors, ["gpu:0"] * COUNT), ["gpu:0"] * COUNT)
    except ValueError:
        assert slow_calls
        return
    assert slow_calls
    np.testing.assert_array_equal(on_host(result[0]), sum(on_host(tensor.resolve_neg()) for tensor in tensors))


def test_looks_at_the_memory(gpus, slow_calls):
    ops = ReductionToOneDevice()
    replicas = value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)])
    ops.reduce("sum", replicas, replicas, out=value(gpus, [np.zeros(8, np.float32)] * 2))
    long = gpus.put(torch.zeros(12), "gpu:0")
    slow_calls.clear()
    with pytest.raises(OutputError):
        ops.reduce("sum", replicas, replicas, out=PerReplica([long[:8], long[4:]], ["gpu:0"] * 2))
    assert slow_calls
    assert not long.any()


def test_writes_into_host_memory_by_the_slow_path(gpus, slow_calls):
    """Which copies; the kernel knows addresses on the GPU only."""
    ops = ReductionToOneDevice()
    for _ in range(2):
        replicas = value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)])
        host = [gpus.put(torch.zeros(8), None) for _ in range(2)]
        ops.reduce("sum", replicas, replicas, out=PerReplica(host))
        assert all((tensor == 3).all() for tensor in host)
    assert len(slow_calls) == 2


def test_tells_devices_apart(gpus, slow_calls):
    ops = ReductionToOneDevice()
    for device in ("gpu:0", "gpu:1"):
        replicas = value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)], device)
        assert ops.reduce("sum", replicas, replicas, out=replicas).devices == (device, device)
    assert len(slow_calls) == 2
    spread = PerReplica([replicas[0].clone(), replicas[1]], ["gpu:0", "gpu:1"])
    gpus.put(spread[0], "gpu:0")
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TREEFOLD_GPU_EXECUTOR", "local")
            assert ops.reduce("sum", spread, spread).devices == ("gpu:0", "gpu:1")
    assert len(slow_calls) == 4


def test_asks_for_the_executor_again(gpus, slow_calls, monkeypatch):
    ops = ReductionToOneDevice()
    replicas = value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)])
    executors = []
    for asked in ("cuda", "cuda", "local", "cuda"):
        monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", asked)
        executors.append(ops.reduce("sum", replicas, replicas).plan.executor)
    assert executors == ["cuda", "cuda", "local", "cuda"]
    assert len(slow_calls) == 2


def test_is_the_choice_on_one_gpu_only(monkeypatch):
    """Nobody asks: one GPU, and one with the host, are what this executor has run on; several are not."""
    monkeypatch.delenv("TREEFOLD_GPU_EXECUTOR", raising=False)
    devices = (["gpu:0", "gpu:0"], ["gpu:0", "cpu:0"], ["gpu:0", "gpu:1"])
    assert [gpu_executor(each) for each in devices] == ["cuda", "cuda", "local"]


def test_leaves_little_memory_to_the_slow_path(gpus, slow_calls, monkeypatch):
    ops = ReductionToOneDevice()
    replicas = value(gpus, [np.full(8, 2.0**replica, np.float32) for replica in range(2)])
    ops.reduce("sum", replicas, replicas)
    slow_calls.clear()

    monkeypatch.setattr(torch, "empty", mock.Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        ops.reduce("sum", replicas, replicas)
    assert slow_calls
    assert "nothing was written" in caught.value.__notes__[0]
