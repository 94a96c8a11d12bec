"""The table of what is accumulated, rounded and sent in which dtype."""

import pytest

from treefold.dtypes import INTEGERS, REDUCIBLE
from treefold.errors import DtypeError
from treefold.fold import Fold, headroom
from treefold.reduce_op import ReduceOp

FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
EXTREMES = (ReduceOp.MIN, ReduceOp.MAX)
SUMS = (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT)
WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}


class TestAccumulator:
    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @pytest.mark.parametrize("op", SUMS)
    def test_of_floats_is_wide_unless_asked_otherwise(self, op, dtype):
        assert Fold(op).accumulator_dtype(dtype) == WIDE.get(dtype, dtype)
        assert Fold(op, "native").accumulator_dtype(dtype) == dtype

    @pytest.mark.parametrize("dtype", INTEGERS)
    @pytest.mark.parametrize("op", SUMS)
    def test_of_integers_has_64_bits(self, op, dtype):
        for accumulate in ("exact", "native"):
            assert Fold(op, accumulate).accumulator_dtype(dtype) == ("uint64" if dtype[0] == "u" else "int64")

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
    @pytest.mark.parametrize("op", EXTREMES)
    def test_of_extremes_is_the_dtype(self, op, dtype):
        assert Fold(op).accumulator_dtype(dtype) == dtype


class TestPartial:
    @pytest.mark.parametrize("dtype", REDUCIBLE)
    def test_of_a_mean_cannot_wrap(self, dtype):
        """Integers travel in 64 bits; 16-bit floats as float32, to be rounded once; all else as it is."""
        wide = "uint64" if dtype[0] == "u" else "int64"
        expected = wide if dtype in INTEGERS else {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
        assert Fold(ReduceOp.MEAN).partial_dtype(dtype) == expected

    @pytest.mark.parametrize("dtype", REDUCIBLE)
    @pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT])
    def test_of_a_sum_travels_as_it_is(self, op, dtype):
        expected = {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype)
        assert Fold(op).partial_dtype(dtype) == expected

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_of_a_native_sum_is_native(self, dtype):
        assert Fold(ReduceOp.SUM, "native").partial_dtype(dtype) == dtype
        assert Fold(ReduceOp.MAX).partial_dtype(dtype) == dtype


class TestResult:
    @pytest.mark.parametrize("dtype", REDUCIBLE)
    def test_is_the_dtype_but_for_means_of_integers(self, dtype):
        small = dtype.endswith(("int8", "int16"))
        mean = dtype if dtype not in INTEGERS else "float32" if small else "float64"
        assert Fold(ReduceOp.MEAN).result_dtype(dtype) == mean
        assert Fold(ReduceOp.SUM).result_dtype(dtype) == dtype


class TestMeaning:
    @pytest.mark.parametrize("op", list(ReduceOp))
    def test_is_refused_where_there_is_none(self, op):
        for dtype, has_meaning in [
            ("bool", op in EXTREMES),
            ("complex64", op not in EXTREMES),
            ("float16", True),
            ("str", False),
        ]:
            if has_meaning:
                Fold(op).check_dtype(dtype)
            else:
                with pytest.raises(DtypeError):
                    Fold(op).check_dtype(dtype)


class TestWeights:
    def test_are_floats_for_devices(self):
        """The largest in [1, 2); none make 0, and three of them their sum."""
        assert Fold(ReduceOp.MEAN).weight_sum == 0
        assert Fold(ReduceOp.MEAN, weights=(4, 2, 1)).scaled_weights == (1.0, 0.5, 0.25)
        assert Fold(ReduceOp.MEAN, weights=(4, 2, 1)).weight_sum == 1.75
        assert Fold(ReduceOp.MEAN, weights=(1 << 4000, 0, 1)).scaled_weights == (1.0, 0.0, 5e-324)

    @pytest.mark.parametrize(
        ("weights", "are_long"), [((3, 7), False), ((2**53 - 1, 2**900), False), ((2**53 + 1, 2), True)]
    )
    def test_of_many_bits_are_known(self, weights, are_long):
        assert Fold(ReduceOp.MEAN, weights=weights).are_weights_long == are_long

    def test_are_none_by_default(self):
        fold = Fold(ReduceOp.MEAN)
        assert (fold.accumulate, fold.weights, fold.accumulation_fn) == ("exact", None, None)


class TestHeadroom:
    def test_is_the_least_power_of_two_that_no_sum_exceeds(self):
        """As many terms as it is, of the largest finite value each, do not overflow once they are divided by it."""
        for count in range(1, 1025):
            assert headroom(count) >= count > headroom(count) // 2
            assert headroom(count).bit_count() == 1
