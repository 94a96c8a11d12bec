import math
from fractions import Fraction

import numpy as np
import pytest
from folding_cases import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    OP_DTYPES,
    accumulations,
    all_ops,
    cases,
    counts,
    destinations,
    options,
    replicas_of,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.testing import assert_same_bits, fold_arrays, owned, owned_sum, rounded

weights = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 1e-3, 12345.678]), min_size=17, max_size=17)


class TestEveryOpAndDtype:
    @pytest.mark.parametrize(("op", "dtype"), OP_DTYPES)
    @cases(0.3)
    @given(st.data(), counts, shapes, seeds, accumulations, options)
    def test_equals_the_scalar_oracle(self, op, dtype, data, count, shape, seed, accumulate, option):
        arrays = replicas_of(seed, count, shape, dtype)
        ops = data.draw(all_ops(accumulate))
        where, devices = data.draw(destinations(count))
        result = ops.reduce(op, PerReplica(arrays), where, option)
        assert result.devices == tuple(devices)
        expected = fold_arrays(arrays, op, accumulate=accumulate)
        for component in result:
            assert_same_bits(component, expected)

    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.3)
    @given(counts, shapes, seeds, weights)
    def test_weighted_mean_equals_the_scalar_oracle(self, dtype, count, shape, seed, all_weights):
        """A weighted mean is Σwᵢxᵢ/Σwᵢ in float64, kept in the hull and rounded once; smaller where that overflows."""
        own = [*all_weights[: count - 1], all_weights[count - 1] or 1.0]
        arrays = replicas_of(seed, count, shape, dtype)
        for component in treefold.all_reduce(arrays, "mean", weights=own):
            assert_same_bits(component, fold_arrays(arrays, "mean", weights=own))


class TestSum:
    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.2)
    @given(counts, shapes)
    def test_counts_every_replica_once(self, dtype, count, shape):
        count = min(count, {"float16": 8, "bfloat16": 5}.get(dtype, count))
        arrays = [owned(replica, shape, dtype) for replica in range(count)]
        for component in treefold.all_reduce(arrays):
            assert_same_bits(component, owned_sum(count, shape, dtype))

    @cases()
    @given(counts, seeds)
    def test_of_float32_is_the_exact_sum_rounded_where_float64_holds_it(self, count, seed):
        """Values within 24 binary orders of magnitude add up exactly in float64, so only one rounding is left."""
        rng = np.random.default_rng(seed)
        arrays = [rng.uniform(-1, 1, 60).astype("float32") for _ in range(count)]
        exact = [math.fsum(float(array[i]) for array in arrays) for i in range(60)]
        assert_same_bits(treefold.all_reduce(arrays)[0], np.array([rounded(x, "float32") for x in exact], "float32"))

    @pytest.mark.parametrize("dtype", INTEGERS)
    @cases(0.2)
    @given(counts, seeds)
    def test_of_integers_wraps_as_the_dtype_does(self, dtype, count, seed):
        arrays = replicas_of(seed, count, (41,), dtype)
        bits = np.iinfo(dtype).bits
        for element, total in enumerate(treefold.all_reduce(arrays)[0].tolist()):
            assert (total - sum(int(array[element]) for array in arrays)) % 2**bits == 0


class TestProduct:
    @pytest.mark.parametrize("dtype", FLOATS)
    @cases(0.3)
    @given(counts, seeds)
    def test_survives_an_overflow_on_the_way(self, dtype, count, seed):
        """Huge factors first, tiny ones behind: the product is finite where the true one is, and near it."""
        rng = np.random.default_rng(seed)
        largest = float(np.finfo(np.float32).max if dtype == "bfloat16" else np.finfo(dtype).max)
        shape = (20,)
        huge = [(largest * rng.uniform(0.5, 0.7, shape)).astype(dtype) for _ in range(count)]
        tiny = [(1 / largest * rng.uniform(1.5, 2, shape)).astype(dtype) for _ in range(count)]
        got = treefold.all_reduce([*huge, *tiny], "product")[0].astype("float64")
        # 34 roundings of an accumulator that is as wide as float64 where it overflowed, then one of the dtype.
        bound = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 0.0}[dtype] + 34 * 2.0**-53
        for element in range(20):
            exact = math.prod(Fraction(float(array[element])) for array in (*huge, *tiny))
            assert abs(Fraction(got[element]) - exact) <= Fraction(bound) * exact


class TestOrderOfReplicas:
    @pytest.mark.parametrize("op", ["SUM", "MEAN", "MIN", "MAX"])
    @pytest.mark.parametrize("dtype", ["float32", "float64", *INTEGERS])
    @cases(0.1)
    @given(st.data(), counts, shapes, seeds)
    def test_does_not_matter_for_exact_values(self, op, dtype, data, count, shape, seed):
        rng = np.random.default_rng(seed)
        arrays = [rng.integers(0, 100, shape).astype(dtype) * np.array(r + 1, dtype) for r in range(count)]
        permuted = data.draw(st.permutations(arrays))
        expected, got = (HierarchicalCopyAllReduce().reduce(op, PerReplica(a), "cpu:0")[0] for a in (arrays, permuted))
        assert_same_bits(got, expected)

    @pytest.mark.parametrize("op", ["MIN", "MAX"])
    @cases(0.3)
    @given(st.data(), counts, seeds)
    def test_does_not_matter_for_extremes(self, op, data, count, seed):
        arrays = replicas_of(seed, count, (37,), "float32")
        permuted = data.draw(st.permutations(arrays))
        assert_same_bits(treefold.all_reduce(permuted, op)[0], treefold.all_reduce(arrays, op)[0])
