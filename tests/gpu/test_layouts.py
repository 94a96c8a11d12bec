"""On a real GPU: tensors however they lie in memory, and batches of all kinds. `make test-gpu` runs these."""

import numpy as np
import pytest

from treefold import PerReplica, ReduceOp, ReductionToOneDevice
from treefold.testing import assert_same_bits, owned, owned_sum

torch = pytest.importorskip("torch")
BACKEND = pytest.importorskip("treefold.backends.torch").TorchBackend()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here"),
]
SHAPE = (2, 6, 35, 17)
COUNT = 4
DTYPES = ("float32", "bfloat16", "float64", "uint8", "complex64")
PLACES = ["gpu:0"] * COUNT


@pytest.fixture(autouse=True)
def _cuda_executor(monkeypatch):
    """Let plans on GPUs run on their own executor."""
    monkeypatch.setenv("TREEFOLD_GPU_EXECUTOR", "cuda")


def on_host(tensor):
    """Return the contents of a tensor as NumPy sees them."""
    return BACKEND.host_view(tensor.cpu().contiguous())


def on_gpu(array):
    """Return a tensor with an array's contents, row by row."""
    return BACKEND.from_host(np.array(array), "cpu:0").cuda()


def strided(tensor):
    """Every second element of the last axis."""
    return torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 9, dtype=tensor.dtype, device="cuda")[..., ::2]


def transposed(tensor):
    """Column by column."""
    return torch.empty_like(tensor.mT.contiguous()).mT


def channels_last(tensor):
    """As convolutions like it."""
    return torch.empty_like(tensor, memory_format=torch.channels_last)


def unaligned(tensor):
    """One element behind a multiple of 16 bytes."""
    return torch.full((tensor.numel() + 1,), 9, dtype=tensor.dtype, device="cuda")[1:].view(tensor.shape)


def rows(tensor):
    """As they come."""
    return torch.empty_like(tensor)


LAYOUTS = (strided, transposed, channels_last, unaligned, rows)


def laid(layout, array):
    """Return an array's contents on the GPU in a layout."""
    tensor = on_gpu(array)
    return layout(tensor).copy_(tensor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_right_in_every_layout(layout, dtype):
    ops = ReductionToOneDevice()
    tensors = [laid(layout, owned(replica, SHAPE, dtype)) for replica in range(COUNT)]
    value = PerReplica(tensors, PLACES)
    made = ops.reduce("sum", value, value)
    assert made.plan.executor == "cuda"
    expected = owned_sum(COUNT, SHAPE, dtype)
    for replica, (result, tensor) in enumerate(zip(made.values, tensors, strict=True)):
        assert_same_bits(on_host(result), expected)
        assert_same_bits(on_host(tensor), owned(replica, SHAPE, dtype))
    ops.reduce("sum", value, value, out=value)
    for tensor in tensors:
        assert_same_bits(on_host(tensor), expected)
        if layout is strided:
            beside = tensor.as_strided((tensor.numel(),), (2,), 1)
            assert bool((beside == 9).all())
        if layout is unaligned:
            assert bool(tensor.as_strided((1,), (1,), 0)[0] == 9)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX])
def test_each_replica_has_its_own_layout(op):
    ops = ReductionToOneDevice()
    arrays = [owned(replica, SHAPE) for replica in range(COUNT)]
    tensors = [laid(layout, array) for layout, array in zip(LAYOUTS, arrays, strict=False)]
    given = [laid(layout, np.zeros(SHAPE, "float32")) for layout in LAYOUTS[1:]]
    value, host = PerReplica(tensors, PLACES), PerReplica(arrays)
    ops.reduce(op, value, value, out=PerReplica(given, PLACES))
    expected = ops.reduce(op, host, "cpu:0").values[0]
    for tensor, replica, array in zip(given, tensors, arrays, strict=True):
        assert_same_bits(on_host(tensor), expected)
        assert_same_bits(on_host(replica), array)


def test_expanded_tensors_are_read():
    wide = [on_gpu(owned(replica, (1, 40))).expand(30, 40) for replica in range(COUNT)]
    value = PerReplica(wide, PLACES)
    made = ReductionToOneDevice().reduce("sum", value, value)
    for result in made.values:
        assert_same_bits(on_host(result), np.broadcast_to(owned_sum(COUNT, (1, 40)), (30, 40)).copy())
    with pytest.raises(ValueError, match="whose elements share memory"):
        ReductionToOneDevice().reduce("sum", value, value, out=value)
    for replica, tensor in enumerate(wide):
        assert_same_bits(on_host(tensor[0]), owned(replica, (40,)))


def test_lazily_conjugated_tensors_are_read():
    arrays = [owned(replica, (50,), "complex64") for replica in range(COUNT)]
    value = PerReplica([on_gpu(array).conj() for array in arrays], PLACES)
    made = ReductionToOneDevice().reduce("sum", value, value)
    assert_same_bits(on_host(made.values[0]), owned_sum(COUNT, (50,), "complex64").conj())


@pytest.mark.parametrize("is_in_place", [False, True])
def test_batches_of_all_dtypes_and_sizes(is_in_place):
    shapes = ((0,), (), (1,), (3, 0), (1023,), (1024,), (5, 7, 11), (100_001,))
    forms = [(shape, dtype) for shape in shapes for dtype in (*DTYPES, "int64", "int8", "float16")]
    columns = [[on_gpu(owned(replica, shape, dtype)) for replica in range(COUNT)] for shape, dtype in forms]
    values = [PerReplica(column, PLACES) for column in columns]
    out = values if is_in_place else None
    results = ReductionToOneDevice().batch_reduce("sum", [(value, value) for value in values], out=out)
    assert results[0].plan.executor == "cuda"
    for (shape, dtype), result, column in zip(forms, results, columns, strict=True):
        for replica, (made, tensor) in enumerate(zip(result.values, column, strict=True)):
            assert_same_bits(on_host(made), owned_sum(COUNT, shape, dtype))
            left = owned_sum(COUNT, shape, dtype) if is_in_place else owned(replica, shape, dtype)
            assert_same_bits(on_host(tensor), left)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 33])
def test_any_number_of_replicas(count):
    """More than are unrolled, and one, which is copied."""
    arrays = [owned(replica % 8, (5000,), "int32") for replica in range(count)]
    value = PerReplica([on_gpu(array) for array in arrays], ["gpu:0"] * count)
    made = ReductionToOneDevice().reduce("sum", value, value)
    for result in made.values:
        assert_same_bits(on_host(result), np.add.reduce(arrays, dtype="int32"))
