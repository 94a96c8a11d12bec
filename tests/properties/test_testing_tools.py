"""The oracles and inputs that the other properties rest on, proved by themselves."""

import struct
from fractions import Fraction

import numpy as np
import pytest
from folding_cases import DTYPES, FLOATS, NUMBERS, cases, counts, seeds, shapes
from hostile_arrays import INPUT_LAYOUTS, LAYOUTS, Hostile
from hypothesis import given
from hypothesis import strategies as st

from treefold.testing import assert_same_bits, fold_arrays, mixed_values, owned, owned_sum, rounded, special_values


def next_to(number, end):
    with np.errstate(over="ignore"):  # the neighbour of the largest is infinite
        return np.nextafter(number, np.array(end, number.dtype))


class TestRounded:
    @pytest.mark.parametrize(("dtype", "code"), [("float16", "e"), ("float32", "f")])
    @cases(3.0)
    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_agrees_with_the_interpreter(self, dtype, code, value):
        try:
            expected = struct.unpack(code, struct.pack(code, value))[0]
        except OverflowError:
            expected = float("inf") if value > 0 else float("-inf")
        assert_same_bits(rounded(value, dtype), expected)

    @pytest.mark.parametrize("dtype", FLOATS)
    @cases(3.0)
    @given(seeds, st.integers(1, 2**20))
    def test_is_the_nearest_of_both_neighbours(self, dtype, seed, denominator):
        value = float(mixed_values(seed, (1,), dtype, is_finite=True)[0])
        exact = Fraction(value) / denominator
        nearest = np.array(rounded(exact, dtype), dtype)
        for end in (np.inf, -np.inf):
            neighbour = next_to(nearest, end)
            if np.abs(neighbour) != np.inf:
                assert abs(Fraction(float(nearest)) - exact) <= abs(Fraction(float(neighbour)) - exact)

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_takes_ties_to_even(self, dtype):
        step = float(next_to(np.array(1, dtype), 2)) - 1
        assert rounded(1 + Fraction(step) / 2, dtype) == 1
        assert rounded(1 + 3 * Fraction(step) / 2, dtype) == 1 + 2 * step


class TestOwned:
    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.2)
    @given(counts, shapes)
    def test_adds_up_to_owned_sum(self, dtype, count, shape):
        count = min(count, {"float16": 8, "bfloat16": 5}.get(dtype, count))
        arrays = [owned(replica, shape, dtype) for replica in range(count)]
        assert_same_bits(fold_arrays(arrays, "sum"), owned_sum(count, shape, dtype))

    @pytest.mark.parametrize("lost", range(8))
    def test_betrays_who_is_missing(self, lost):
        arrays = [owned(replica, (11,)) for replica in range(8) if replica != lost]
        assert_same_bits(owned_sum(8, (11,)) - fold_arrays(arrays, "sum"), owned(lost, (11,)))


class TestValues:
    @pytest.mark.parametrize("dtype", DTYPES)
    @cases(0.3)
    @given(seeds, shapes)
    def test_have_their_dtype_and_shape(self, dtype, seed, shape):
        values = mixed_values(seed, shape, dtype)
        assert (values.dtype.name, values.shape) == (dtype, shape)
        assert_same_bits(values, mixed_values(seed, shape, dtype))
        finite = mixed_values(seed, shape, dtype, is_finite=True)
        assert np.isfinite(finite.astype("complex128")).all()

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_specials_contain_every_edge(self, dtype):
        values = [float(value) for value in special_values(dtype)]
        assert {repr(value) for value in values} >= {"0.0", "-0.0", "1.0", "inf", "-inf", "nan"}
        smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[dtype]
        assert min(value for value in values if value > 0) == smallest
        finite = [value for value in values if np.isfinite(value)]
        assert next_to(np.array(max(finite), dtype), np.inf) == np.inf


class TestHostile:
    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    @cases(0.5)
    @given(st.sampled_from(DTYPES), shapes, seeds)
    def test_holds_its_values(self, layout, dtype, shape, seed):
        values = mixed_values(seed, shape, dtype)
        hostile = Hostile(values, layout)
        is_repeated = layout == "broadcast" and values.size
        assert_same_bits(hostile.array, np.full_like(values, values.reshape(-1)[0]) if is_repeated else values)
        assert not hostile.anything_changed()

    def test_lies_as_it_says(self):
        arrays = {layout: Hostile(np.arange(24.0).reshape(2, 3, 4), layout).array for layout in INPUT_LAYOUTS}
        assert arrays["row_major"].flags.carray
        assert arrays["column_major"].flags.farray
        assert min(arrays["strided"].strides) > 8
        assert max(arrays["reversed"].strides) < 0
        assert not arrays["unaligned"].flags.aligned
        assert not arrays["byte_swapped"].dtype.isnative
        assert not arrays["read_only"].flags.writeable
        assert set(arrays["broadcast"].strides) == {0}

    @pytest.mark.parametrize("layout", LAYOUTS)
    @cases(0.5)
    @given(st.sampled_from(NUMBERS), shapes, st.data())
    def test_sees_every_byte_around_it_and_none_of_its_own(self, layout, dtype, shape, data):
        """Writing all elements changes no guard; flipping a bit of any byte that is no element's does."""
        hostile = Hostile(owned(0, shape, dtype), layout)
        hostile.array[...] = owned(1, shape, dtype)
        assert not hostile.guards_changed()
        assert hostile.anything_changed() == (hostile.array.size > 0)
        memory, own = hostile._memory, set(addresses(hostile.array))
        position = data.draw(st.integers(0, len(memory) - 1))
        memory[position] ^= 1
        assert hostile.guards_changed() == (position + memory.ctypes.data not in own)


def addresses(array):
    """Yield the address of every byte of an array's elements."""
    start = array.__array_interface__["data"][0]
    for index in np.ndindex(array.shape):
        at = start + sum(i * stride for i, stride in zip(index, array.strides, strict=True))
        yield from range(at, at + array.itemsize)


class TestAssertSameBits:
    @pytest.mark.parametrize(
        ("got", "expected"),
        [
            (np.float32(1), np.float64(1)),
            (np.zeros(2), np.zeros(3)),
            (np.array([0.0]), np.array([-0.0])),
            (np.array([1 + 0j]), np.array([complex(1, -0.0)])),
            (np.array([1.0]), np.array([1 + 2**-52])),
            (np.array([np.nan]), np.array([1.0])),
        ],
        ids=["dtype", "shape", "sign of zero", "sign of an imaginary zero", "last bit", "NaN"],
    )
    def test_sees_a_difference(self, got, expected):
        with pytest.raises(AssertionError, match="expected"):
            assert_same_bits(got, expected)

    def test_takes_any_nan_for_any_other(self):
        quiet, other = (np.array([bits], "uint32").view("float32") for bits in (0x7FC00000, 0xFFC00001))
        assert assert_same_bits(quiet, other) is None
