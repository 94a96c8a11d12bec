"""Intermediate results that do not fit a dtype never affect the result: against exact fractions, in any order."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from folding_cases import COMPLEX, FLOATS, cases, counts, largest, seeds
from hypothesis import given

import treefold
from treefold import ReduceOp
from treefold.backends.numpy_fold import fold_block
from treefold.fold import Fold
from treefold.testing import assert_same_bits, rounded

#: Bits of the significand, and the exponents of the smallest normal and of the largest number.
FORMATS = {
    "float16": (11, -14, 15),
    "bfloat16": (8, -126, 127),
    "float32": (24, -126, 127),
    "float64": (53, -1022, 1023),
}
PARTS = {"complex64": "float32", "complex128": "float64"}
INFINITY, NAN = float("inf"), float("nan")


def unit(exact, dtype):
    """Return a unit in the last place of a number in a dtype."""
    precision, smallest, _ = FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() if size else smallest
    exponent -= size < Fraction(2) ** exponent
    return Fraction(2) ** (max(exponent, smallest) - precision + 1)


def exact_product(numbers):
    """Return the product of finite numbers, real or complex, as a pair of fractions."""
    real, imaginary = Fraction(1), Fraction(0)
    for number in map(complex, numbers):
        x, y = Fraction(number.real), Fraction(number.imag)
        real, imaginary = real * x - imaginary * y, real * y + imaginary * x
    return real, imaginary


def factors_of(rng, dtype, count):
    """Return factors of every size, drawn so that their product is one that the dtype can hold, in a random order.

    Half of the cases come out as denormal numbers, or near them.
    """
    precision, smallest, most = FORMATS[dtype]
    exponents = rng.integers(smallest, most, count)
    wanted = int(
        rng.integers(smallest - precision, smallest + 4) if rng.random() < 0.5 else rng.integers(smallest, most - 1)
    )
    for _ in range(10_000):  # moves one exponent after the other, until their sum is the one that is wanted
        excess = int(exponents.sum()) + count // 2 - wanted
        if not excess:
            break
        index = int(rng.integers(count))
        exponents[index] = np.clip(exponents[index] - excess, smallest, most - 1)
    mantissas = np.array([rounded(m, dtype) for m in rng.uniform(1, 2 - 2.0**-7, count)])
    signs = rng.choice([-1.0, 1.0], count)
    return [
        np.array([math.ldexp(s * m, int(e))]).astype(dtype) for s, m, e in zip(signs, mantissas, exponents, strict=True)
    ]


class TestProduct:
    @pytest.mark.parametrize(
        ("dtype", "values", "expected"),
        [
            ("bfloat16", [1e-30, 1e-30, 1e30, 1e30], 1.0),
            ("float16", [2.0**-24] * 6 + [2.0**15] * 9 + [2.0**9], 1.0),
            ("float32", [2.0**-149] * 8 + [2.0**127] * 9 + [2.0**49], 1.0),
            ("float64", [2.0**-600, 2.0**-600, 2.0**600, 2.0**600], 1.0),
            ("float64", [3 * 2.0**-1000, 7 * 2.0**-70, 2.0**1000, 2.0**70], 21.0),
            ("float64", [2.0**600, 2.0**600, 2.0**-600, 2.0**-600], 1.0),
        ],
    )
    def test_of_factors_that_cancel_is_right_in_every_order(self, dtype, values, expected):
        """Powers of two multiply exactly, so only an intermediate overflow or underflow could change the product."""
        rng = np.random.default_rng(0)
        for order in (values, values[::-1], *[rng.permutation(values) for _ in range(10)]):
            got = treefold.all_reduce([np.array([value], dtype) for value in order], "product")[0]
            assert abs(float(got[0]) - expected) <= float(unit(Fraction(expected), dtype))

    @pytest.mark.parametrize("dtype", FLOATS)
    @cases()
    @given(counts, seeds)
    def test_is_within_one_unit_in_the_last_place(self, dtype, count, seed):
        """One unit of the exact product; n units for float64, which is multiplied in itself."""
        arrays = factors_of(np.random.default_rng(seed), dtype, count)
        [got] = treefold.all_reduce(arrays, "product")[0].astype("float64")
        exact, _ = exact_product([float(array[0]) for array in arrays])
        bound = count if dtype == "float64" else 1
        assert math.isfinite(got)
        assert abs(Fraction(float(got)) - exact) <= bound * unit(exact, dtype)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize(
        ("special", "expected"),
        [
            ([INFINITY], INFINITY),
            ([-INFINITY], -INFINITY),
            ([-INFINITY, -INFINITY], INFINITY),
            ([0.0], 0.0),
            ([-0.0], -0.0),
            ([INFINITY, 0.0], NAN),
            ([NAN], NAN),
            ([NAN, 0.0], NAN),
        ],
    )
    def test_with_infinities_zeros_and_nan_is_theirs(self, dtype, special, expected):
        """The tiny and the huge replicas beside them do not turn infinity into NaN, nor zero."""
        most = float(largest(dtype)[0])
        least = {"float16": 2.0**-24, "float64": 1e-300}.get(dtype, 1e-38)
        rng = np.random.default_rng(0)
        for beside in ([least] * 9, [most] * 9, [least, most]):
            for _ in range(5):
                order = rng.permutation([*special, *beside])
                got = treefold.all_reduce([np.array([value], dtype) for value in order], "product")[0]
                assert_same_bits(got, np.array([expected], dtype))

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_that_is_too_large_or_too_small_is_infinite_or_zero(self, dtype):
        most = largest(dtype)
        assert_same_bits(treefold.all_reduce([most, -most, most, most], "product")[0], np.array([-INFINITY], dtype))
        tiny = np.array([2.0 ** (FORMATS[dtype][1] + 1)], dtype)
        assert_same_bits(treefold.all_reduce([tiny, -tiny, tiny], "product")[0], np.array([-0.0], dtype))


class TestComplexProduct:
    @pytest.mark.parametrize("dtype", COMPLEX)
    @cases()
    @given(counts, seeds)
    def test_of_turned_real_numbers_is_as_right_as_theirs(self, dtype, count, seed):
        """Factors that are real or imaginary: nothing cancels, and the part that is not 0 is the product of reals."""
        rng = np.random.default_rng(seed)
        part = PARTS[dtype]
        turns = [complex(*turn) for turn in rng.choice([(1, 0), (0, 1), (-1, 0), (0, -1)], count)]
        reals = factors_of(rng, part, count)
        values = [complex(t.real * float(r[0]), t.imag * float(r[0])) for t, r in zip(turns, reals, strict=True)]
        [got] = treefold.all_reduce([np.array([value], dtype) for value in values], "product")[0]
        bound = count if dtype == "complex128" else 1
        for one, exact in zip((got.real, got.imag), exact_product(values), strict=True):
            assert abs(Fraction(float(one)) - exact) <= bound * unit(exact, part) * (exact != 0)

    @pytest.mark.parametrize("dtype", COMPLEX)
    @cases()
    @given(counts, seeds)
    def test_is_near_for_its_size(self, dtype, count, seed):
        """Each part is right but for 2n roundings of the accumulator, of the product's absolute value, and its own."""
        rng = np.random.default_rng(seed)
        part = PARTS[dtype]
        angles = rng.uniform(0, 2 * math.pi, count)
        sizes = [float(array[0]) for array in factors_of(rng, part, count)]
        values = [
            complex(np.array([complex(size * math.cos(angle), size * math.sin(angle))], dtype)[0])
            for size, angle in zip(sizes, angles, strict=True)
        ]
        [got] = treefold.all_reduce([np.array([value], dtype) for value in values], "product")[0]
        parts = exact_product(values)
        size = max(map(abs, parts))
        for one, exact in zip((got.real, got.imag), parts, strict=True):
            bound = unit(exact, part) + 4 * count * size * Fraction(2) ** -53
            assert abs(Fraction(float(one)) - exact) <= bound

    @pytest.mark.parametrize("dtype", COMPLEX)
    def test_keeps_each_part_however_far_the_other_is(self, dtype):
        """Each part has an exponent of its own: an imaginary part that underflows in between comes back."""
        values = [complex(1, 2.0**-100), *[complex(2.0**-120, 0)] * 11, *[complex(2.0**120, 0)] * 11]
        for order in (values, values[::-1]):
            got = treefold.all_reduce([np.array([value], dtype) for value in order], "product")[0]
            assert_same_bits(got, np.array([values[0]], dtype))


def ordered(values):
    return list(itertools.permutations(values))


def summed(op, values, dtype):
    """Return SUM or MEAN of single numbers, as both parts where the dtype is complex."""
    as_value = (lambda value: complex(value, value)) if dtype in COMPLEX else float
    weights = [2.5] * len(values) if op == "weighted MEAN" else None
    arrays = [np.array([as_value(value)], dtype) for value in values]
    [got] = treefold.all_reduce(arrays, op.split()[-1], weights=weights)[0]
    return [float(got.real), float(got.imag)] if dtype in COMPLEX else [float(got)]


class TestInfinities:
    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @pytest.mark.parametrize("op", ["SUM", "MEAN", "weighted MEAN"])
    @pytest.mark.parametrize("infinity", [INFINITY, -INFINITY])
    def test_of_one_sign_decide(self, dtype, op, infinity):
        """The largest finite numbers, with sums that overflow before the end, against an infinity of the other sign."""
        most = float(largest(PARTS.get(dtype, dtype))[0])
        against = -math.copysign(most, infinity)
        for values in ordered([against, against, infinity]) + ordered([against, infinity, against, infinity]):
            assert summed(op, values, dtype) == [infinity] * (2 if dtype in COMPLEX else 1)

    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @pytest.mark.parametrize("op", ["SUM", "MEAN", "weighted MEAN"])
    @pytest.mark.parametrize("rest", [(INFINITY, -INFINITY), (NAN,), (NAN, INFINITY)])
    def test_of_both_signs_and_nan_give_nan(self, dtype, op, rest):
        most = float(largest(PARTS.get(dtype, dtype))[0])
        for values in ordered([most, most, *rest]):
            assert all(math.isnan(part) for part in summed(op, values, dtype))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
    @pytest.mark.parametrize("infinity", [INFINITY, -INFINITY])
    def test_decide_among_duplicate_rows(self, dtype, infinity):
        against = -np.copysign(float(largest(dtype)[0]), infinity)
        for values in ordered([against, against, infinity]):
            rows = treefold.IndexedSlices(np.array(values, dtype), np.array([1, 1, 1]), (2,))
            got = treefold.all_reduce([np.zeros(2, dtype), rows])[0]
            assert_same_bits(got, np.array([0, infinity], dtype))


class TestPartialFold:
    @pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT])
    def test_that_is_too_large_to_travel_is_infinite(self, op):
        """Between devices 16-bit floats travel as float32; its largest number would be taken for the true sum."""
        parts = [largest("bfloat16")] * 3
        kinds = {"dtype": "bfloat16", "divisor": None, "result": "float32"}
        assert_same_bits(fold_block(parts, Fold(op), **kinds), np.array([INFINITY], "float32"))


class TestWeightedMean:
    @pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
    @pytest.mark.parametrize(("heavy", "light"), [(2.5e299, 1.0), (1e308, 5e-324), (1.0, 1e-300)])
    def test_of_infinity_is_infinite_however_light(self, dtype, heavy, light):
        value = complex if dtype in COMPLEX else float
        arrays = [np.array([value(number)], dtype) for number in (largest(PARTS.get(dtype, dtype))[0], -INFINITY)]
        for order in (1, -1):
            mean = treefold.all_reduce(arrays[::order], "mean", weights=[heavy, light][::order])[0]
            assert mean[0].real == -INFINITY

    @pytest.mark.parametrize("weight", [2.0**-1074, 2.0**-1000, 1.0, 2.0**1000, 2.0**1022])
    @pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
    def test_does_not_depend_on_the_unit_of_weights(self, weight, size):
        arrays = [np.array([size]), np.array([3 * size])]
        mean = treefold.all_reduce(arrays, "mean", weights=[weight, weight])[0]
        assert_same_bits(mean, treefold.all_reduce(arrays, "mean")[0])

    @cases()
    @given(counts, seeds)
    def test_of_weights_of_every_size_is_near_the_exact_one(self, count, seed):
        """Rounding leaves n + 3 units of Σ|wᵢxᵢ|/Σwᵢ; what float64 cannot hold beside the largest, 2⁻¹⁰⁷³ of that."""
        rng = np.random.default_rng(seed)
        own = [float(w) for w in rng.uniform(1, 2, count) * 2.0 ** rng.integers(-1074, 1019, count)]
        arrays = [rng.uniform(-2, 2, 5) * 2.0 ** rng.integers(-1070, 1022, 5) for _ in range(count)]
        mean = treefold.all_reduce(arrays, "mean", weights=own)[0]
        scale = sum(map(Fraction, own))
        for element, got in enumerate(mean):
            numbers = [Fraction(float(array[element])) for array in arrays]
            terms = [Fraction(w) * number for w, number in zip(own, numbers, strict=True)]
            bound = 2 * (count + 3) * sum(map(abs, terms)) / scale * Fraction(1, 2**53)
            bound += count * (max(map(abs, numbers)) * Fraction(1, 2**1073) + Fraction(1, 2**1074))
            assert abs(Fraction(float(got)) - sum(terms) / scale) <= bound
