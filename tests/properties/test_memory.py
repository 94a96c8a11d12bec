import numpy as np
import pytest
from folding_cases import OP_DTYPES, all_ops, batches, cases, counts, op_dtypes, options, replicas_of, seeds, shapes
from hostile_arrays import INPUT_LAYOUTS, LAYOUTS, Hostile
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import PerReplica, ReduceOp, ReductionToOneDevice
from treefold.testing import assert_same_bits, owned, owned_sum, result_dtype

input_layouts = st.lists(st.sampled_from(INPUT_LAYOUTS), min_size=17, max_size=17)
output_layouts = st.lists(st.sampled_from(LAYOUTS), min_size=17, max_size=17)


def plain(op, arrays):
    copies = [np.array(array, array.dtype.newbyteorder("="), order="C") for array in arrays]
    return ReductionToOneDevice().reduce(op, PerReplica(copies), "cpu:0")[0]


def outputs(count, shape, dtype, layouts):
    """Return guarded arrays that take results; what is in them should not matter."""
    return [
        Hostile(owned(replica % 4 + 1, shape, dtype), layout)
        for replica, layout in zip(range(count), layouts, strict=False)
    ]


class TestLayouts:
    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    @pytest.mark.parametrize("op", ["SUM", "MEAN", "MIN", "PRODUCT"])
    @cases(0.5)
    @given(st.data(), counts, shapes, seeds)
    def test_of_inputs_change_no_bit(self, layout, op, data, count, shape, seed):
        dtype = data.draw(st.sampled_from([kind for name, kind in OP_DTYPES if name == op]))
        inputs = [Hostile(values, layout) for values in replicas_of(seed, count, shape, dtype)]
        arrays = [hostile.array for hostile in inputs]
        result = data.draw(all_ops()).reduce(op, PerReplica(arrays), PerReplica(arrays), data.draw(options))
        expected = plain(op, arrays)
        for component in result:
            assert_same_bits(component, expected)
        assert not any(hostile.anything_changed() for hostile in inputs)

    @cases(3.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds, input_layouts)
    def test_may_differ_between_replicas(self, data, op_dtype, count, shape, seed, layouts):
        op, dtype = op_dtype
        values = replicas_of(seed, count, shape, dtype)
        arrays = [Hostile(array, layout).array for array, layout in zip(values, layouts, strict=False)]
        result = data.draw(all_ops()).reduce(op, PerReplica(arrays), "cpu:0")
        assert_same_bits(result[0], plain(op, arrays))

    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    @cases(0.3)
    @given(st.data(), counts, seeds)
    def test_of_gathered_and_broadcast_values_change_no_bit(self, layout, data, count, seed):
        shape, dtype = data.draw(st.sampled_from([(3,), (2, 3), (2, 0, 3), (4, 1, 2)])), data.draw(op_dtypes)[1]
        arrays = [Hostile(values, layout).array for values in replicas_of(seed, count, shape, dtype)]
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        gathered = treefold.ReductionToOneDevice().gather(PerReplica(arrays), ["cpu:0", "cpu:1"], axis)
        for component in gathered:
            assert_same_bits(component, np.concatenate(arrays, axis))
        for copy in treefold.broadcast(arrays[0], ["cpu:0", "cpu:1"]):
            assert_same_bits(copy, arrays[0])
            assert not np.shares_memory(copy, arrays[0])


class TestInputs:
    @cases(2.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds, input_layouts, output_layouts)
    def test_are_never_modified(self, data, op_dtype, count, shape, seed, layouts, out_layouts):
        op, dtype = op_dtype
        values = replicas_of(seed, count, shape, dtype)
        inputs = [Hostile(array, layout) for array, layout in zip(values, layouts, strict=False)]
        replicas = PerReplica([hostile.array for hostile in inputs])
        out = outputs(count, shape, result_dtype(ReduceOp(op), dtype), out_layouts)
        targets = data.draw(st.sampled_from([None, PerReplica([hostile.array for hostile in out])]))
        result = data.draw(all_ops()).reduce(op, replicas, replicas, out=targets)
        assert len(result) == count
        assert not any(hostile.anything_changed() for hostile in inputs)

    @cases()
    @given(st.data(), op_dtypes, counts, shapes, seeds)
    def test_are_never_aliased_by_results(self, data, op_dtype, count, shape, seed):
        op, dtype = op_dtype
        arrays = replicas_of(seed, count, shape, dtype)
        result = data.draw(all_ops()).reduce(op, PerReplica(arrays), PerReplica(arrays))
        for index, component in enumerate(result):
            others = [*arrays, *result[:index]]
            assert component.flags.writeable
            assert not any(np.shares_memory(component, other) for other in others)


class TestOut:
    @cases(3.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds, output_layouts)
    def test_gets_the_bits_of_a_new_result_and_nothing_else_is_written(
        self, data, op_dtype, count, shape, seed, layouts
    ):
        op, dtype = op_dtype
        replicas = PerReplica(replicas_of(seed, count, shape, dtype))
        num_components = data.draw(st.integers(1, 5))
        where = [f"cpu:{index}" for index in range(num_components)]
        out = outputs(num_components, shape, result_dtype(ReduceOp(op), dtype), layouts)
        ops = data.draw(all_ops())
        result = ops.reduce(op, replicas, where, out=PerReplica([hostile.array for hostile in out]))
        expected = ops.reduce(op, replicas, where)
        for index, hostile in enumerate(out):
            assert result[index] is hostile.array
            assert_same_bits(hostile.array, expected[index])
            assert not hostile.guards_changed()

    @cases(3.0)
    @given(st.data(), op_dtypes, counts, shapes, seeds, output_layouts)
    def test_in_place_equals_out_of_place(self, data, op_dtype, count, shape, seed, layouts):
        op, dtype = op_dtype
        if result_dtype(ReduceOp(op), dtype) != dtype:
            op = "SUM"
        values = replicas_of(seed, count, shape, dtype)
        inputs = [Hostile(array, layout) for array, layout in zip(values, layouts, strict=False)]
        replicas = PerReplica([hostile.array for hostile in inputs])
        expected = plain(op, values)
        result = data.draw(all_ops()).reduce(op, replicas, replicas, data.draw(options), out=replicas)
        for index, hostile in enumerate(inputs):
            assert result[index] is hostile.array
            assert_same_bits(hostile.array, expected)
            assert not hostile.guards_changed()

    @cases()
    @given(st.data())
    def test_of_a_batch_in_place(self, data):
        batch = data.draw(batches([dtype for op, dtype in OP_DTYPES if op == "PRODUCT"]))
        expected = [plain("product", arrays) for arrays in batch]
        pairs = [(PerReplica(arrays), PerReplica(arrays)) for arrays in batch]
        data.draw(all_ops()).batch_reduce("product", pairs, data.draw(options), out=[value for value, _ in pairs])
        for arrays, result in zip(batch, expected, strict=True):
            for array in arrays:
                assert_same_bits(array, result)

    @cases()
    @given(st.integers(2, 17), shapes, st.data())
    def test_may_be_some_of_the_inputs(self, count, shape, data):
        arrays = [owned(replica, shape, "int64") for replica in range(count)]
        kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
        out = [array if keep else np.empty_like(array) for array, keep in zip(arrays, kept, strict=True)]
        treefold.all_reduce(arrays, out=out)
        for component in out:
            assert_same_bits(component, owned_sum(count, shape, "int64"))
        untouched = [r for r in range(count) if not kept[r]]
        for replica in untouched:
            assert_same_bits(arrays[replica], owned(replica, shape, "int64"))
