import numpy as np
import pytest
from folding_cases import COMPLEX, FLOATS, OPS, all_ops, cases, counts, largest, seeds
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import PerReplica
from treefold.testing import assert_same_bits, mixed_values, rounded

CONTINUOUS = (*FLOATS, *COMPLEX)


def is_nan(array):
    """Tell, element by element, whether an array is NaN; NumPy's own test does not know every dtype."""
    return array != array  # noqa: PLR0124


class TestNan:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("op", OPS)
    @cases(0.5)
    @given(st.data(), counts, seeds)
    def test_propagates_from_any_replica_in_every_op(self, dtype, op, data, count, seed):
        arrays = [mixed_values(seed + r, (9,), dtype, is_finite=True) for r in range(count)]
        holder, position = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 8))
        ops = data.draw(all_ops(data.draw(st.sampled_from(["exact", "native"]))))
        before = ops.reduce(op, PerReplica(arrays), PerReplica(arrays))
        arrays[holder][position] = np.nan
        after = ops.reduce(op, PerReplica(arrays), PerReplica(arrays))
        others = np.arange(9) != position
        for one, other in zip(before, after, strict=True):
            assert is_nan(other)[position]
            assert_same_bits(other[others], one[others])

    @pytest.mark.parametrize("dtype", COMPLEX)
    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    def test_stays_in_its_part_of_a_complex_sum(self, dtype, op):
        arrays = [np.array([complex(1, 2)], dtype), np.array([complex(np.nan, 2)], dtype)]
        result = treefold.all_reduce(arrays, op)[0]
        assert np.isnan(result.real).all()
        assert result.imag == (4 if op == "SUM" else 2)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_is_the_sum_of_opposite_infinities(self, dtype):
        arrays = [np.array([value], dtype) for value in (np.inf, 1, -np.inf)]
        for op in ("sum", "mean"):
            assert is_nan(treefold.all_reduce(arrays, op)[0]).all()


class TestInfinity:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("op", ["SUM", "MEAN", "MAX"])
    @cases(0.3)
    @given(counts, seeds, st.data())
    def test_wins_over_everything_finite(self, dtype, op, count, seed, data):
        arrays = [np.abs(mixed_values(seed + r, (9,), dtype, is_finite=True)) for r in range(count)]
        arrays[data.draw(st.integers(0, count - 1))][4] = np.inf
        assert treefold.all_reduce(arrays, op)[0][4] == np.inf

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_is_the_sum_of_what_is_too_large(self, dtype):
        most = largest(dtype)
        assert is_infinite(treefold.all_reduce([most, most])[0])
        assert_same_bits(treefold.all_reduce([most, most, -most])[0], most)


def is_infinite(array):
    return bool((np.abs(array.astype("float64")) == np.inf).all())


class TestZeros:
    @pytest.mark.parametrize("dtype", CONTINUOUS)
    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    @pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
    def test_minus_zero_survives_sums(self, dtype, op, count):
        zero = np.array([complex(-0.0, -0.0) if dtype in COMPLEX else -0.0], dtype)
        for component in treefold.all_reduce([zero] * count, op):
            assert_same_bits(component, zero)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("holder", [0, 1, 2])
    def test_minus_zero_is_less_than_plus_zero(self, dtype, holder):
        plus, minus = np.array([0.0], dtype), np.array([-0.0], dtype)
        mostly_plus = [minus if replica == holder else plus for replica in range(3)]
        mostly_minus = [plus if replica == holder else minus for replica in range(3)]
        assert_same_bits(treefold.all_reduce(mostly_plus, "min")[0], minus)
        assert_same_bits(treefold.all_reduce(mostly_minus, "max")[0], plus)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_sign_of_a_product(self, dtype):
        arrays = [np.array([value], dtype) for value in (0.0, -3.0)]
        assert_same_bits(treefold.all_reduce(arrays, "product")[0], np.array([-0.0], dtype))


#: The exponents of the smallest denormals.
SMALLEST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}


class TestDenormals:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_survive_sums_means_and_extremes(self, dtype, count):
        unit = 2.0 ** SMALLEST[dtype]
        arrays = [np.array([unit * 2**replica], dtype) for replica in range(count)]
        total = unit * (2**count - 1)
        expected = {"SUM": total, "MEAN": rounded(total / count, dtype), "MIN": unit, "MAX": unit * 2 ** (count - 1)}
        for op, value in expected.items():
            assert_same_bits(treefold.all_reduce(arrays, op)[0], np.array([value], dtype))

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_come_out_of_products(self, dtype):
        arrays = [np.array([2.0 ** (SMALLEST[dtype] + 1)], dtype), np.array([0.5], dtype)]
        assert_same_bits(treefold.all_reduce(arrays, "product")[0], np.array([2.0 ** SMALLEST[dtype]], dtype))


class TestBooleans:
    @cases()
    @given(counts, seeds)
    def test_min_is_and_max_is_or(self, count, seed):
        arrays = [mixed_values(seed + replica, (20,), "bool") for replica in range(count)]
        assert_same_bits(treefold.all_reduce(arrays, "min")[0], np.logical_and.reduce(arrays))
        assert_same_bits(treefold.all_reduce(arrays, "max")[0], np.logical_or.reduce(arrays))
