import itertools
from fractions import Fraction

import numpy as np
import pytest
from folding_cases import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    all_ops,
    cases,
    counts,
    replicas_of,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import PerReplica, ReduceOp
from treefold.testing import assert_same_bits, mixed_values, result_dtype, rounded

weights = st.lists(st.floats(0, 1e6).filter(lambda weight: weight == 0 or weight > 1e-6), min_size=17, max_size=17)


def given_weights(all_weights, count):
    return [*all_weights[: count - 1], all_weights[count - 1] + 1.0]


def parts_of(array):
    """Return the real numbers that an array consists of, in float64."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.name in COMPLEX:
        flat = flat.view("float32" if flat.dtype.name == "complex64" else "float64")
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value here
        return flat.astype("float64")


def assert_in_hull(mean, arrays):
    """Fail unless each part of the mean is finite and among or between the contributions' parts."""
    parts = np.stack([parts_of(array) for array in arrays])
    assert np.isfinite(parts_of(mean)).all()
    assert (parts.min(axis=0) <= parts_of(mean)).all()
    assert (parts_of(mean) <= parts.max(axis=0)).all()


class TestMeanOfFiniteValues:
    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @cases()
    @given(st.data(), counts, shapes, seeds)
    def test_is_finite_and_in_the_hull(self, dtype, data, count, shape, seed):
        """It never overflows and lies between the smallest and the largest, part by part for complex values."""
        arrays = replicas_of(seed, count, shape, dtype, is_finite=True)
        assert_in_hull(data.draw(all_ops()).reduce("mean", PerReplica(arrays), "cpu:0")[0], arrays)

    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @cases()
    @given(counts, shapes, seeds, weights)
    def test_is_in_the_hull_with_weights_too(self, dtype, count, shape, seed, all_weights):
        arrays = replicas_of(seed, count, shape, dtype, is_finite=True)
        own = given_weights(all_weights, count)
        mean = treefold.all_reduce(arrays, "mean", weights=own)[0]
        assert_in_hull(mean, [array for array, weight in zip(arrays, own, strict=True) if weight])

    @pytest.mark.parametrize("dtype", FLOATS)
    @cases()
    @given(st.integers(2, 17), seeds)
    def test_of_neighbours_is_in_the_hull(self, dtype, count, seed):
        """Values one unit in the last place apart leave no room for a rounding error."""
        rng = np.random.default_rng(seed)
        first = mixed_values(seed, (30,), dtype, is_finite=True)
        bits = first.view(f"uint{8 * first.dtype.itemsize}")
        last = np.array(np.inf, dtype).view(bits.dtype)
        magnitudes = bits & (last - 1 | last)
        steps = [np.minimum(magnitudes + rng.integers(0, 2, 30).astype(bits.dtype), last - 1) for _ in range(count)]
        arrays = [step.view(dtype) for step in steps]
        assert_in_hull(treefold.all_reduce(arrays, "mean")[0], arrays)

    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *INTEGERS])
    @cases(0.5)
    @given(counts, seeds, st.one_of(st.none(), weights))
    def test_of_equal_values_is_that_value(self, dtype, count, seed, all_weights):
        value = mixed_values(seed, (30,), dtype, is_finite=True)
        own = all_weights and given_weights(all_weights, count)
        mean = treefold.all_reduce([value] * count, "mean", weights=own)[0]
        assert_same_bits(mean, value.astype(result_dtype(ReduceOp.MEAN, dtype)))


#: Means that peers get wrong: the contributions, their dtype, the mean.
KNOWN_TRAPS = {
    "float16 60000": ([60000.0] * 4, "float16", 60000.0),
    "float16 65504": ([65504.0] * 17, "float16", 65504.0),
    "bfloat16 3e38": ([3e38] * 16, "bfloat16", 3e38),
    "float32 3e38": ([3e38] * 4, "float32", 3e38),
    **{f"float64 1.7e308 x {n}": ([1.7e308] * n, "float64", 1.7e308) for n in (2, 3, 7, 16, 17)},
    "float64 0.1 x 3": ([0.1] * 3, "float64", 0.1),
    "float64 both ends": ([1.7e308, -1.7e308, 1.7e308, -1.7e308], "float64", 0.0),
    "int64 2**53 + 1": ([2**53 + 1] * 2, "int64", float(2**53)),
    "int64 largest": ([2**63 - 1] * 3, "int64", 2.0**63),
    "int64 smallest": ([-(2**63)] * 3, "int64", -(2.0**63)),
    "uint64 largest": ([2**64 - 1] * 16, "uint64", 2.0**64),
    "uint8": ([100, 100, 100, 101], "uint8", 100.25),
    "int8": ([-128, -128, -127], "int8", np.float32(-383 / 3)),
    "int32": ([1, 2, 3, 4], "int32", 2.5),
}


class TestKnownTraps:
    @pytest.mark.parametrize(("values", "dtype", "mean"), KNOWN_TRAPS.values(), ids=KNOWN_TRAPS)
    @pytest.mark.parametrize("is_weighted", [False, True], ids=["plain", "weighted"])
    def test_mean_is_right(self, values, dtype, mean, is_weighted):
        """Each of these is wrong, infinite or refused somewhere else; equal weights change nothing."""
        arrays = [np.array([value, value], dtype) for value in values]
        got = treefold.all_reduce(arrays, "mean", weights=[2.0] * len(values) if is_weighted else None)
        expected = np.array([mean, mean], dtype if dtype in FLOATS else result_dtype(ReduceOp.MEAN, dtype))
        for component in got:
            assert_same_bits(component, expected)

    @pytest.mark.parametrize("dtype", COMPLEX)
    @pytest.mark.parametrize("count", [2, 3, 4, 17])
    def test_complex_mean_does_not_overflow(self, dtype, count):
        largest = float(np.finfo(dtype).max)
        arrays = [np.full(3, complex(largest, -largest), dtype)] * count
        for component in treefold.all_reduce(arrays, "mean"):
            assert_same_bits(component, arrays[0])


class TestMeanOfIntegers:
    @pytest.mark.parametrize("dtype", INTEGERS)
    @cases(0.5)
    @given(counts, seeds)
    def test_is_the_true_sum_divided_and_rounded_once(self, dtype, count, seed):
        """float(Fraction) rounds correctly, and so does the mean, whatever the sum would do to the dtype."""
        arrays = replicas_of(seed, count, (40,), dtype)
        mean = treefold.all_reduce(arrays, "mean")[0]
        exact = [float(Fraction(sum(int(array[i]) for array in arrays), count)) for i in range(40)]
        assert_same_bits(mean, np.array(exact).astype(result_dtype(ReduceOp.MEAN, dtype)))

    @pytest.mark.parametrize("dtype", ["int64", "uint64"])
    @cases()
    @given(counts, seeds)
    def test_is_right_beside_a_tie(self, dtype, count, seed):
        """Sums that are a half unit in the last place of float64, or one third of one, off a float64."""
        rng = np.random.default_rng(seed)
        base = 2 ** int(rng.integers(53, 62)) + int(rng.integers(2**40))
        arrays = [np.array([base + int(step) for step in rng.integers(-3, 4, 20)], dtype) for _ in range(count)]
        exact = [float(Fraction(sum(int(array[i]) for array in arrays), count)) for i in range(20)]
        assert_same_bits(treefold.all_reduce(arrays, "mean")[0], np.array(exact))


class TestWeightedMean:
    @cases()
    @given(counts, seeds, weights)
    def test_is_near_the_exact_one(self, count, seed, all_weights):
        """Rounding in float64 leaves 2·(n + 2) units in the last place of Σ|wᵢxᵢ|/Σwᵢ at most."""
        rng = np.random.default_rng(seed)
        arrays, own = [rng.normal(size=20) for _ in range(count)], given_weights(all_weights, count)
        mean = treefold.all_reduce(arrays, "mean", weights=own)[0]
        scale = sum(map(Fraction, own))
        for element in range(20):
            terms = [Fraction(w) * Fraction(float(array[element])) for w, array in zip(own, arrays, strict=True)]
            bound = 2 * (count + 2) * Fraction(1, 2**53) * sum(map(abs, terms)) / scale
            assert abs(Fraction(float(mean[element])) - sum(terms) / scale) <= bound

    @cases()
    @given(st.integers(2, 17), seeds)
    def test_of_values_that_overflow_when_weighted_is_near_the_exact_one(self, count, seed):
        rng = np.random.default_rng(seed)
        arrays = [rng.uniform(0.5, 1, 5) * 1.7e308 for _ in range(count)]
        own = (rng.uniform(0.5, 1, count) * 1e300).tolist()
        mean = treefold.all_reduce(arrays, "mean", weights=own)[0]
        for element in range(5):
            terms = [Fraction(w) * Fraction(float(array[element])) for w, array in zip(own, arrays, strict=True)]
            exact = sum(terms) / sum(map(Fraction, own))
            assert abs(Fraction(float(mean[element])) - exact) <= 2 * (count + 2) * Fraction(1, 2**53) * exact

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("holder", [0, 1, 2])
    def test_leaves_out_a_replica_of_weight_zero(self, dtype, holder):
        arrays = [np.array([1.0, 2.0], dtype) for _ in range(3)]
        arrays[holder] = np.array([np.nan, np.inf], dtype)
        own = [float(replica != holder) for replica in range(3)]
        assert_same_bits(treefold.all_reduce(arrays, "mean", weights=own)[0], np.array([1.0, 2.0], dtype))

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @cases(0.5)
    @given(st.permutations(range(4)))
    def test_weights_stay_with_their_replicas(self, dtype, order):
        values = [np.array([100.0**replica], dtype) for replica in order]
        own = [2.0**replica for replica in order]
        exact = sum(2**replica * 100**replica for replica in range(4)) / 15
        assert_same_bits(treefold.all_reduce(values, "mean", weights=own)[0], np.array([exact], dtype))


class TestMeanOfSparseRows:
    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @cases(0.3)
    @given(counts, seeds)
    def test_divides_each_row_and_rounds_once(self, dtype, count, seed):
        """Rows are concatenated, and every part of them is its n-th, correctly rounded; infinite ones stay so."""
        rows = replicas_of(seed, count, (3, 4), dtype)
        slices = [treefold.IndexedSlices(values, np.arange(3)) for values in rows]
        mean = treefold.all_reduce(slices, "mean")[0].values
        for got, value in zip(parts_of(mean), itertools.chain(*map(parts_of, rows)), strict=True):
            part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
            expected = rounded(Fraction(value) / count, part) if np.isfinite(value) and value else value
            assert_same_bits(got, expected)
