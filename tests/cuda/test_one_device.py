"""Plans of one device in one pass: what the host executor gives, bit for bit, on whatever device the kernels run."""

import itertools

import numpy as np
import pytest
import torch

from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends.torch import TorchBackend
from treefold.execution import Operand
from treefold.execution.cuda import one_device
from treefold.fold import Fold
from treefold.testing import assert_same_bits, owned

BACKEND = TorchBackend()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = (ReductionToOneDevice(), HierarchicalCopyAllReduce(num_packs=3), AllReduceCrossDeviceOps("hierarchical_copy", 0))
SHAPES = ((), (3,), (0, 2), (40, 30))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def leaves(dtype="float32", count=4):
    """Return, per leaf, a tensor per replica."""
    return [
        [BACKEND.from_host(owned(replica, shape, dtype), "cpu:0").to(DEVICE) for replica in range(count)]
        for shape in SHAPES
    ]


def run(ops, columns, fold, out=None):
    """Plan a batch as ops do and run it in one pass."""
    values = [PerReplica(column) for column in columns]
    plan = ops.plan([(value, value) for value in values])
    inputs = [Operand(BACKEND, tuple(column), tuple(column[0].shape)) for column in columns]
    return one_device.run(plan, inputs, fold, out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int64", "complex64"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT])
def test_gives_what_the_host_gives(op, dtype):
    for ops in OPS:
        columns = leaves(dtype)
        results = run(ops, columns, Fold(op))
        hosts = [PerReplica([tensor.cpu() for tensor in column]) for column in columns]
        expected = ops.batch_reduce(op, [(value, value) for value in hosts])
        for made, want in zip(results, expected, strict=True):
            assert len({tensor.data_ptr() for tensor in made if tensor.numel()}) in {0, 4}
            for tensor in made:
                assert_same_bits(BACKEND.host_view(tensor.cpu()), BACKEND.host_view(want.values[0]))


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_writes_into_what_is_given(op, dtype):
    columns = leaves(dtype, 2)
    expected = run(ReductionToOneDevice(), columns, Fold(op))
    given = [tuple(torch.zeros_like(t.mT if t.ndim == 2 else t).mT if t.ndim == 2 else torch.zeros_like(t) for t in c)
             for c in columns]  # fmt: skip
    assert run(ReductionToOneDevice(), columns, Fold(op), given) is given
    own = [tuple(column) for column in columns]
    versions = [tensor._version for tensor in own[-1]]
    run(ReductionToOneDevice(), columns, Fold(op), own)
    assert all(tensor._version > old for tensor, old in zip(own[-1], versions, strict=True))
    for wants, others, owns in zip(expected, given, own, strict=True):
        for want, other, tensor in zip(wants, others, owns, strict=True):
            assert torch.equal(want, other)
            assert torch.equal(want, tensor)


@pytest.mark.parametrize("weights", [(1, 2, 0, 1), (1, 1 << 28, 0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8"])
def test_means_by_weights_are_the_hosts(weights, dtype):
    """By the kernels; by the host itself if weights are long, or contributions whole numbers."""
    columns = leaves(dtype)
    weighted = run(ReductionToOneDevice(), columns, Fold(ReduceOp.MEAN, weights=weights))
    for column, made in zip(columns, weighted, strict=True):
        hosts = PerReplica([tensor.cpu() for tensor in column])
        expected = ReductionToOneDevice().reduce("mean", hosts, hosts, weights=list(weights))
        for tensor in made:
            assert_same_bits(BACKEND.host_view(tensor.cpu()), BACKEND.host_view(expected.values[0]))


def test_callbacks_are_the_backends_work():
    columns = leaves()
    called = run(ReductionToOneDevice(), columns, Fold(ReduceOp.SUM, accumulation_fn=lambda arrays: sum(arrays[1:])))
    for column, made in zip(columns, called, strict=True):
        assert torch.equal(made[0], sum(column[1:]))


def test_inputs_are_left_alone():
    base = torch.arange(12.0, device=DEVICE)
    column = [base.reshape(3, 4).T, torch.ones((), device=DEVICE).expand(4, 3)]
    before = [tensor.clone() for tensor in column]
    (made,) = run(ReductionToOneDevice(), [column], Fold(ReduceOp.SUM))
    assert torch.equal(made[0], before[0] + before[1])
    assert all(itertools.starmap(torch.equal, zip(column, before, strict=True)))
    assert np.prod(made[0].shape) == 12
