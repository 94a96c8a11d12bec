import itertools
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import torch
from pretended import pretended_gpus
from wide_reference import fold_block

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.backends.numpy_fold import scale_block
from treefold.backends.torch_fold import fold_on_device, folds_on_device, scale_on_device
from treefold.calls.arguments import read_weights
from treefold.dtypes import FLOATS, REDUCIBLE
from treefold.errors import OutputError
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import CONFORMANCE, Adapter, assert_same_bits, mixed_values

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DEVICES = ("gpu:0", "gpu:1", "gpu:2")


def tensor_of(array):
    if array.dtype == BFLOAT16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def array_of(tensor):
    return (
        tensor.contiguous().view(torch.int16).numpy().view(BFLOAT16)
        if tensor.dtype is torch.bfloat16
        else tensor.numpy()
    )


@pytest.fixture
def elsewhere():
    """Return a backend with three devices that takes the place of PyTorch's for the test."""
    with pretended_gpus(len(DEVICES)) as backend:
        yield backend


class TestConformance:
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds_step_by_step(self, case, elsewhere):
        def make(array, device):
            return elsewhere.put(tensor_of(array), device)

        assert case.run(Adapter(elsewhere, DEVICES, make, array_of, ("bfloat16", "int32"))) is None

    def test_names_the_executor(self, elsewhere):
        value = PerReplica([elsewhere.put(torch.full((3,), 2.0**r), f"gpu:{r}") for r in range(3)])
        result = HierarchicalCopyAllReduce().reduce("sum", value, value)
        assert result.plan.executor == "local"
        assert result.devices == DEVICES
        assert [elsewhere.device_of(tensor) for tensor in result] == list(DEVICES)
        assert all(torch.equal(tensor, torch.full((3,), 7.0)) for tensor in result)

    def test_carries_no_gradients(self, elsewhere):
        leaves = [elsewhere.put(torch.full((3,), 2.0**r).requires_grad_(), f"gpu:{r}") for r in range(3)]
        value = PerReplica(leaves)
        assert not ReductionToOneDevice().reduce("mean", value, "gpu:1")[0].requires_grad
        with torch.no_grad():
            HierarchicalCopyAllReduce().reduce("sum", value, value, out=value)
        assert all(leaf.is_leaf and leaf._version == 1 and (leaf == 7).all() for leaf in leaves)


class TestOut:
    """Memory that overlaps other memory, and is not exactly one contribution's, is refused before any write."""

    @pytest.mark.parametrize("devices", [("gpu:0", "gpu:0"), ("gpu:0", "gpu:1")])
    @pytest.mark.parametrize(
        ("starts", "sentence"),
        [
            ((4, 2000), "Component 0 of out overlaps replica 0's array"),
            ((2000, 2000), "Component 1 of out overlaps component 0's array"),
            ((2000, 2999), "Component 1 of out overlaps component 0's array"),
            ((0, 1000), None),
            ((1000, 0), None),
            ((2000, 3000), None),
        ],
    )
    def test_is_apart_or_in_place(self, starts, sentence, devices, elsewhere):
        memory = torch.arange(4000.0)
        before = memory.clone()
        value = PerReplica([memory[:1000], memory[1000:2000]])
        out = PerReplica([memory[start : start + 1000] for start in starts])
        with mock.patch.object(elsewhere, "device_of", lambda t: devices[id(t) in {id(value[1]), id(out[1])}]):
            if sentence is None:
                ReductionToOneDevice().reduce("sum", value, devices, out=out)
                assert all(torch.equal(target, before[:1000] + before[1000:2000]) for target in out)
                return
            with pytest.raises(OutputError, match=sentence):
                ReductionToOneDevice().reduce("sum", value, devices, out=out)
        assert torch.equal(memory, before)

    def test_of_a_batch_is_no_contribution_of_another_value(self, elsewhere):
        memory = elsewhere.put(torch.arange(32.0), "gpu:0")
        first, second = PerReplica([memory[:8], memory[8:16]]), PerReplica([memory[16:24], memory[24:]])
        with pytest.raises(OutputError, match=r"^Component 0 of out at \[1\] overlaps replica 0's array"):
            ReductionToOneDevice().batch_reduce("sum", [(first, first), (second, second)], out=[first, first])
        assert torch.equal(memory, torch.arange(32.0))

    def test_may_lie_between_the_elements_of_another(self, elsewhere):
        memory = elsewhere.put(torch.arange(40.0), "gpu:0")
        value = PerReplica([memory[0:20:2], memory[20::2]])
        out = PerReplica([memory[1:20:2], memory[21::2]])
        expected = value[0] + value[1]
        ReductionToOneDevice().reduce("sum", value, ("gpu:0", "gpu:0"), out=out)
        assert all(torch.equal(target, expected) for target in out)


def folded(arrays, fold, dtype, divisor):
    """Return a fold by PyTorch's operations, and by the reference."""
    result = fold.result_dtype(dtype) if divisor else fold.partial_dtype(dtype)
    tensors = [tensor_of(array) for array in arrays]
    kinds = {"dtype": dtype, "divisor": divisor}
    found = fold_on_device(tensors, fold, **kinds, result=getattr(torch, result))
    return array_of(found), fold_block(arrays, fold, **kinds, result=result)


class TestFoldOnDevice:
    """PyTorch's operations give the bits of the reference."""

    @pytest.mark.parametrize("accumulate", ["exact", "native"])
    @pytest.mark.parametrize("dtype", REDUCIBLE)
    @pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MIN, ReduceOp.MAX])
    def test_of_special_and_random_values(self, op, dtype, accumulate):
        fold = Fold(op, accumulate)
        if not folds_on_device(fold, dtype) or (dtype.startswith("complex") and op in {ReduceOp.MIN, ReduceOp.MAX}):
            assert dtype in {"int64", "uint64", "complex64", "complex128"}
            return
        for seed in range(4):
            arrays = [mixed_values(seed * 8 + replica, (301,), dtype) for replica in range(2 + seed)]
            for divisor in (None, len(arrays)):
                assert_same_bits(*folded(arrays, fold, dtype, divisor))

    @pytest.mark.parametrize("dtype", [*FLOATS, "int32", "complex64"])
    def test_with_weights(self, dtype):
        arrays = [mixed_values(replica, (301,), dtype) for replica in range(4)]
        for weights in ((1.0, 2.0, 0.0, 5.0), (1e308, 1e-300, 1e-9, 0.0), (5e-324, 1e-323, 0.0, 5e-324)):
            fold = Fold(ReduceOp.MEAN, weights=read_weights(weights, ReduceOp.MEAN))
            assert_same_bits(*folded(arrays, fold, dtype, 4))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float64", "float32"])
    def test_that_overflows_on_the_way(self, dtype):
        largest = np.full(3, ml_dtypes.finfo(dtype).max, dtype)
        found, expected = folded([largest, largest, largest], Fold(ReduceOp.MEAN), dtype, 3)
        assert_same_bits(found, expected)
        assert_same_bits(found, largest)

    @pytest.mark.parametrize(
        "fold", [Fold(ReduceOp.SUM), Fold(ReduceOp.MEAN), Fold(ReduceOp.MEAN, weights=(10**300, 1, 10**300))]
    )
    @pytest.mark.parametrize("dtype", [*FLOATS, "complex128"])
    def test_of_an_infinity_beside_an_overflow(self, dtype, fold):
        most = ml_dtypes.finfo("float64" if dtype == "complex128" else dtype).max
        for order in itertools.permutations([-most, -most, np.inf]):
            arrays = [np.full(2, value, dtype) for value in order]
            with np.errstate(invalid="ignore"):
                found, expected = folded(arrays, fold, dtype, 3)
            assert_same_bits(found, expected)
            assert (found.real == np.inf).all()

    @pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
    def test_of_flags(self, op):
        arrays = [np.array([False, False, True, True]), np.array([False, True, False, True])]
        assert_same_bits(*folded(arrays, Fold(op), "bool", 2))

    def test_leaves_its_inputs_alone(self):
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            tensor = torch.ones(3)
            made = fold_on_device([tensor], Fold(op), dtype="float32", divisor=1, result=torch.float32)
            assert made.data_ptr() != tensor.data_ptr()


class TestScaleOnDevice:
    @pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint32", "int32", "complex64", "complex128"])
    def test_rounds_once(self, dtype):
        array = mixed_values(3, (301,), dtype)
        result = Fold(ReduceOp.MEAN).result_dtype(dtype)
        found = scale_on_device(tensor_of(array), 7, getattr(torch, result))
        assert_same_bits(array_of(found), scale_block(array, 7, result))
