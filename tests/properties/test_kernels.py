import numpy as np
import pytest
from folding_cases import NUMBERS, OP_DTYPES, accumulations, cases, counts, replicas_of, seeds
from hostile_arrays import LAYOUTS, Hostile
from hypothesis import given
from hypothesis import strategies as st

from treefold.backends.numpy_fold import fold_block
from treefold.calls.arguments import read_weights
from treefold.execution import native
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import assert_same_bits, owned

# Around the blocks of the kernels and the vectors inside them, primes, and more than one block of NumPy's.
LENGTHS = (1, 2, 3, 7, 8, 9, 31, 64, 127, 1_023, 1_024, 1_025, 2_053, 4_096, 32_767, 32_769, 70_001)
# The reference weighs with whole numbers, which takes long; blocks of all kinds of folds have the same ends.
WEIGHED = (*(length for length in LENGTHS if length < 2_000), 4_096)
weights = st.lists(st.floats(1e-3, 1e3), min_size=17, max_size=17)


def folded(arrays, fold, dtype):
    return fold_block(arrays, fold, dtype=dtype, divisor=len(arrays), result=fold.result_dtype(dtype))


class TestKernel:
    def test_is_named(self):
        assert native.kernel() in {"native-flag", "native-integers", "native-none", "numpy"}

    @pytest.mark.parametrize(("op", "dtype"), OP_DTYPES)
    @cases(0.3)
    @given(counts, st.sampled_from(LENGTHS), seeds, accumulations)
    def test_gives_the_bits_of_the_numpy_fold(self, op, dtype, count, length, seed, accumulate):
        fold = Fold(ReduceOp(op), accumulate)
        arrays = replicas_of(seed, count, (length,), dtype)
        targets = [np.empty(length, fold.result_dtype(dtype)) for _ in range(1 + seed % 3)]
        expected = folded(arrays, fold, dtype)
        fold_into(arrays, targets, fold, dtype)
        for target in targets:
            assert_same_bits(target, expected)

    @pytest.mark.parametrize(("op", "dtype"), OP_DTYPES)
    @pytest.mark.parametrize("accumulate", ["exact", "native"])
    def test_copies_a_single_contribution(self, op, dtype, accumulate):
        [array] = replicas_of(0, 1, (9,), dtype)
        assert not np.shares_memory(folded([array], Fold(ReduceOp(op), accumulate), dtype), array)

    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.2)
    @given(counts, st.sampled_from(WEIGHED), seeds, weights)
    def test_weighs_as_the_numpy_fold_does(self, dtype, count, length, seed, all_weights):
        fold = Fold(ReduceOp.MEAN, weights=read_weights(all_weights[:count], ReduceOp.MEAN))
        arrays = replicas_of(seed, count, (length,), dtype)
        target = np.empty(length, fold.result_dtype(dtype))
        fold_into(arrays, [target], fold, dtype)
        assert_same_bits(target, folded(arrays, fold, dtype))

    @cases()
    @given(st.sampled_from(OP_DTYPES), counts, st.integers(0, 2_100), seeds, st.sampled_from(LAYOUTS))
    def test_writes_its_target_only(self, op_dtype, count, length, seed, layout):
        op, dtype = op_dtype
        fold = Fold(ReduceOp(op))
        arrays = replicas_of(seed, count, (length,), dtype)
        target = Hostile(owned(1, (length,), fold.result_dtype(dtype)), layout)
        fold_into(arrays, [target.array], fold, dtype)
        assert_same_bits(target.array, folded(arrays, fold, dtype))
        assert not target.guards_changed()

    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.2)
    @given(st.data(), counts, st.sampled_from(LENGTHS), seeds)
    def test_folds_in_place(self, dtype, data, count, length, seed):
        arrays = replicas_of(seed, count, (length,), dtype)
        arrays = [array.copy() for array in arrays]
        expected = folded(arrays, Fold(ReduceOp.SUM), dtype)
        targets = data.draw(st.permutations(arrays))[: data.draw(st.integers(1, count))]
        fold_into(arrays, [*targets, np.empty_like(arrays[0])], Fold(ReduceOp.SUM), dtype)
        for target in targets:
            assert_same_bits(target, expected)
