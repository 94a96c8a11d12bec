import numpy as np
import pytest
from folding_cases import (
    DTYPES,
    OP_DTYPES,
    OPS,
    accumulations,
    all_ops,
    batches,
    cases,
    counts,
    destinations,
    num_packs,
    op_dtypes,
    options,
    replicas_of,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.backends.numpy import NumpyBackend
from treefold.execution import LOCAL, Operand
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import assert_same_bits, owned, owned_sum


def have_op(op):
    return [dtype for name, dtype in OP_DTYPES if name == op]


class TestPackingAndPlanClass:
    @pytest.mark.parametrize("op", OPS)
    @cases(2.0)
    @given(st.data(), accumulations)
    def test_change_no_bit(self, op, data, accumulate):
        """A batch gives the bits of its values one by one, whatever the class, the packs, the limits, the options."""
        batch = data.draw(batches(have_op(op)))
        pairs = [(PerReplica(arrays), PerReplica(arrays)) for arrays in batch]
        ops = data.draw(all_ops(accumulate))
        results = ops.batch_reduce(op, pairs, data.draw(options))
        plain = ReductionToOneDevice(accumulate=accumulate)
        for (value, _), result in zip(pairs, results, strict=True):
            expected = plain.reduce(op, value, "cpu:0")[0]
            assert len(result) == len(value)
            for component in result:
                assert_same_bits(component, expected)

    @pytest.mark.parametrize("packs", [*range(21), "auto"])
    @cases(0.1)
    @given(batches())
    def test_every_number_of_packs(self, packs, batch):
        pairs = [(PerReplica(arrays), PerReplica(arrays)) for arrays in batch if arrays[0].dtype != bool]
        results = HierarchicalCopyAllReduce(packs).batch_reduce("sum", pairs)
        expected = HierarchicalCopyAllReduce(0).batch_reduce("sum", pairs)
        assert len(results) == len(pairs)
        for one, other in zip(results, expected, strict=True):
            assert_same_bits(one[0], other[0])


class TestDestinations:
    @cases(5.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds, options)
    def test_all_get_the_same_bits_in_their_order(self, data, op_dtype, count, shape, seed, option):
        """String, list, array, slices, PerReplica, Mirrored; the same devices, another order, one, others."""
        op, dtype = op_dtype
        arrays = replicas_of(seed, count, shape, dtype)
        where, devices = data.draw(destinations(count))
        result = data.draw(all_ops()).reduce(op, PerReplica(arrays), where, option)
        expected = ReductionToOneDevice().reduce(op, PerReplica(arrays), "cpu:0")[0]
        assert result.devices == tuple(devices)
        assert {component.tobytes() for component in result} == {result[0].tobytes()}
        assert_same_bits(result[0], expected)
        assert result.on(devices[-1]) is result[devices.index(devices[-1])]

    @cases()
    @given(st.data())
    def test_differ_within_a_batch(self, data):
        batch = data.draw(batches(have_op("SUM")))
        count = len(batch[0])
        places = [data.draw(destinations(count)) for _ in batch]
        pairs = [(PerReplica(arrays), where) for arrays, (where, _) in zip(batch, places, strict=True)]
        results = data.draw(all_ops()).batch_reduce("sum", pairs, data.draw(options))
        for result, arrays, (_, devices) in zip(results, batch, places, strict=True):
            assert result.devices == tuple(devices)
            for component in result:
                assert_same_bits(component, treefold.all_reduce(arrays)[0])


class TestSplitting:
    @cases(3.0)
    @given(st.data(), op_dtypes, counts, seeds, accumulations)
    def test_changes_no_bit(self, data, op_dtype, count, seed, accumulate):
        op, dtype = op_dtype
        arrays = replicas_of(seed, count, (data.draw(st.integers(0, 60)),), dtype)
        cut = data.draw(st.integers(0, len(arrays[0])))
        ops = data.draw(all_ops(accumulate))
        whole = ops.reduce(op, PerReplica(arrays), "cpu:0")[0]
        halves = [[array[:cut] for array in arrays], [array[cut:] for array in arrays]]
        results = ops.batch_reduce(op, [(PerReplica(half), "cpu:0") for half in halves])
        assert_same_bits(np.concatenate([result[0] for result in results]), whole)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("length", [1_000, 1_025, 32_769, 70_001])
    def test_long_arrays_are_the_repetition_of_short_ones(self, dtype, length):
        op = "max" if dtype == "bool" else "mean"
        short = replicas_of(length, 3, (250,), dtype)
        long = [np.resize(array, length) for array in short]
        expected = np.resize(treefold.all_reduce(short, op)[0], length)
        got = treefold.all_reduce(long, op)[0]
        is_equal = (got == expected) | ((got != got) & (expected != expected))  # noqa: PLR0124
        assert got.shape == expected.shape
        assert is_equal.all()


class TestRepetition:
    @cases()
    @given(st.data(), op_dtypes, counts, shapes, seeds)
    def test_gives_the_same_bits(self, data, op_dtype, count, shape, seed):
        op, dtype = op_dtype
        arrays = replicas_of(seed, count, shape, dtype)
        packs = data.draw(num_packs)
        ops = HierarchicalCopyAllReduce(packs)
        value = PerReplica(arrays)
        runs = [each.reduce(op, value, value) for each in (ops, ops, HierarchicalCopyAllReduce(packs))]
        assert len({run[0].tobytes() for run in runs}) == 1


def walk(ops, op, batch, places):
    """Run the plan of a batch step by step along its trees, as on devices, with NumPy as backend."""
    backend = NumpyBackend()
    pairs = [(PerReplica(arrays), where) for arrays, where in zip(batch, places, strict=True)]
    operands = [Operand(backend, tuple(arrays), arrays[0].shape) for arrays in batch]
    return LOCAL.run(ops.plan(pairs, walked=True), operands, Fold(ReduceOp(op)), None)


class TestWalkedPlans:
    @cases(5.0)
    @given(st.data(), counts)
    def test_every_tree_folds_and_unfolds_exactly_once(self, data, count):
        """Walked step by step, every plan brings the sum of 2**r to every destination: none lost, none twice."""
        count = min(count, 8)
        specs = data.draw(st.lists(st.tuples(shapes, st.sampled_from(["float32", "int32", "float16"])), min_size=1))
        batch = [[owned(replica, shape, dtype) for replica in range(count)] for shape, dtype in specs]
        places = [data.draw(destinations(count)) for _ in batch]
        results = walk(data.draw(all_ops()), "sum", batch, [where for where, _ in places])
        for (shape, dtype), components, (_, devices) in zip(specs, results, places, strict=True):
            assert len(components) == len(devices)
            for component in components:
                assert_same_bits(component, owned_sum(count, shape, dtype))

    @cases(2.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds)
    def test_a_star_gives_the_bits_of_the_host(self, data, op_dtype, count, shape, seed):
        """Where all contributions meet on one device, walking the tree gives the bits of the host's one pass."""
        op, dtype = op_dtype
        arrays = replicas_of(seed, count, shape, dtype)
        ops = ReductionToOneDevice()
        where, _ = data.draw(destinations(count))
        walked = walk(ops, op, [arrays], [where])[0]
        assert_same_bits(walked[-1], ops.reduce(op, PerReplica(arrays), where)[0])

    @cases(2.0)
    @given(st.data(), st.sampled_from(["MIN", "MAX"]), counts, shapes, seeds)
    def test_extremes_do_not_depend_on_the_tree(self, data, op, count, shape, seed):
        """MIN and MAX round nothing, so that every tree gives the bits of the host, NaN and zeros included."""
        arrays = replicas_of(seed, count, shape, data.draw(st.sampled_from(have_op(op))))
        where, _ = data.draw(destinations(count))
        ops = data.draw(all_ops())
        walked = walk(ops, op, [arrays], [where])[0]
        assert_same_bits(walked[-1], ops.reduce(op, PerReplica(arrays), where)[0])
