"""Sums over whole arrays before they are rounded, of every kind, level and certificate, against fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from exact_oracle import KINDS, WIDTHS, any_bits, near_one
from native_cases import IS_FULL, LEVELS
from whole_oracle import number

from treefold import _native
from treefold.backends.numpy_whole_sums import exact_sum
from treefold.execution import native

#: Nothing, parts of a vector, whole chunks and a little more, and several of them.
LENGTHS = (0, 1, 31, 32, 257, 1024, 1025, 3000)
LONG = 10_000_000
#: The sum is in units of the least float64, that of products in their squares.
UNITS = {False: 1074, True: 2148}


def summed(dtype, terms, level=0, certificate="flag"):
    _native.set_certificate(_native.CERTIFICATES.index(certificate))
    words, *found = _native.exact_sum(native.DTYPES[dtype], terms, len(terms[0]) > 1, level)
    return int.from_bytes(words, "little", signed=True), *found


def right_sum(dtype, columns):
    """Return the exact sum of the products of columns of bits, in units, and what of it is no number."""
    width, precision = WIDTHS[dtype]
    most, hidden = (1 << (width - precision)) - 1, 1 << (precision - 1)
    least = 1074 - ((1 << (width - precision - 1)) + precision - 3)
    odd, sums = set(), {}
    for row in zip(*(column.tolist() for column in columns), strict=True):
        whole, place = 1, 0
        for bits in row:
            field = bits >> (precision - 1) & most
            if field == most:
                odd.add(row)
                break
            size = bits & (hidden - 1) | (hidden if field else 0)
            whole, place = whole * (-size if bits >> (width - 1) else size), place + max(field, 1) - 1 + least
        else:
            sums[place] = sums.get(place, 0) + whole
    total = sum(whole << place for place, whole in sums.items())
    _, *found = (
        sum_of_fractions(dtype, [np.array(column, columns[0].dtype) for column in zip(*odd, strict=True)])
        if odd
        else [0] * 4
    )
    return total, *map(bool, found)


def drawn(rng, kind, dtype, length, factors):
    form = WIDTHS[dtype]
    return [kind(rng, form, (1, length))[0].astype(f"u{form[0] // 8}") for _ in range(factors)]


@pytest.mark.parametrize("factors", [1, 2])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_every_sum_is_right(dtype, factors):
    """Nothing is rounded, whatever adds it up, the reference among them."""
    rng, wrong = np.random.default_rng(len(dtype) + factors), []
    for kind, length in itertools.product(KINDS, LENGTHS):
        columns = drawn(rng, kind, dtype, length, factors)
        right = right_sum(dtype, columns)
        terms = [tuple(column.view(dtype) for column in columns)]
        found = {
            (level, certificate): summed(dtype, terms, level, certificate)
            for level, certificate in itertools.product(range(len(LEVELS)), ("flag", "none"))
        }
        found["integers"] = summed(dtype, terms, 0, "integers")
        found["reference"] = exact_sum(dtype, terms, is_product=factors > 1)
        wrong += [(kind.__name__, length, how) for how, made in found.items() if tuple(made) != right]
    assert not wrong


@pytest.mark.parametrize("factors", [1, 2])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_numbers_that_fit_no_bin_among_others(dtype, factors):
    """Chunks that bins hold, and between them a speck, an infinity, the least and the largest numbers."""
    rng, (width, precision) = np.random.default_rng(5), WIDTHS[dtype]
    infinity = ((1 << (width - precision)) - 1) << (precision - 1)
    for odd in (1, 1 << (width - 1), infinity - 1, infinity, infinity | 1 << (width - 1), infinity + 1):
        columns = drawn(rng, near_one, dtype, 5_000, factors)
        for column in columns:
            column[rng.integers(5_000, size=3)] = odd
        right = right_sum(dtype, columns)
        terms = [tuple(column.view(dtype) for column in columns)]
        assert [summed(dtype, terms, level) for level in range(len(LEVELS))] == [right] * len(LEVELS)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_sizes_that_grow_and_shrink(dtype, start):
    """The bins move with the sizes, chunk by chunk, and nothing is lost."""
    rng, (width, precision) = np.random.default_rng(start), WIDTHS[dtype]
    fields = np.repeat(rng.integers(0, (1 << (width - precision)) - 1, 40), rng.integers(1, 1500, 40))
    bits = near_one(rng, (width, precision), (1, len(fields)))[0] & ~np.uint64(
        ((1 << (width - precision)) - 1) << (precision - 1)
    )
    column = (bits | fields.astype(np.uint64) << np.uint64(precision - 1)).astype(f"u{width // 8}")[start:]
    for factors in (1, 2):
        right = right_sum(dtype, [column] * factors)
        for level in range(len(LEVELS)):
            assert summed(dtype, [(column.view(dtype),) * factors], level) == right


@pytest.mark.parametrize("value", [1.0, 1.5, -1.0, 1 - 2.0**-24, 2.0**-149, 3.4e38])
def test_many_equal_numbers(value):
    """Bins are emptied before they are full, and so are sums of significands."""
    array = np.full(3_000_001, value, np.float32)
    exact = Fraction(float(np.float32(value))) * len(array) * 2**1074
    squares = Fraction(float(np.float32(value))) ** 2 * len(array) * 2**2148
    for level, certificate in itertools.product(range(len(LEVELS)), ("flag", "none")):
        assert summed("float32", [(array,)], level, certificate)[0] == exact
        assert summed("float32", [(array, array)], level, certificate)[0] == squares
    largest = np.full(100_000, -(2.0**53 - 1))
    assert summed("float64", [(largest, largest)])[0] == (2**53 - 1) ** 2 * 100_000 * 2**2148
    assert summed("float64", [(largest,)])[0] == -(2**53 - 1) * 100_000 * 2**1074


def test_arrays_add_up_on_any_number_of_threads():
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=n).astype(np.float32) for n in (400_009, 0, 7, 262_144, 1)]
    sums = set()
    for count in (1, 2, 3, 8):
        native.set_num_threads(count)
        sums |= {summed("float32", [(one,) for one in order]) for order in (arrays, arrays[::-1])}
    assert len(sums) == 1
    [(total, *_)] = sums
    assert total == sum(Fraction(float(one)) for array in arrays for one in array.tolist()) * 2**1074


def test_what_is_no_array_of_the_dtype_is_refused():
    one, number_of = np.ones(4, np.float32), native.DTYPES
    for dtype, terms, is_product, says in (
        (number_of["int8"], [(np.ones(4, np.int8),)], False, "knows no dtype"),
        (99, [(one,)], False, "knows no dtype"),
        (number_of["float32"], [one], False, "tuples of arrays"),
        (number_of["float32"], [(one,)], True, "tuples of arrays"),
        (number_of["float32"], [(one[::2],)], False, "row-major"),
        (number_of["float64"], [(one,)], False, "elements of 4 bytes"),
        (number_of["float32"], [(one, one[:3])], True, "3 elements"),
        (number_of["float32"], [([1.0],)], False, "no NumPy array"),
    ):
        with pytest.raises(ValueError, match=says):
            _native.exact_sum(dtype, terms, is_product, 0)


@pytest.mark.skipif(not IS_FULL, reason="takes minutes: `make test-long` runs it")
@pytest.mark.parametrize("factors", [1, 2])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_ten_million_elements(dtype, factors):
    """Each kind of number in turn, in arrays of many lengths; every level and certificate adds up some."""
    rng, elements, case = np.random.default_rng(9), 0, 0
    while elements < LONG:
        kind = KINDS[case % len(KINDS)]
        length = int(rng.integers(1, 300_000))
        columns = drawn(rng, kind, dtype, length, factors)
        certificate = ("flag", "flag", "none", "integers")[case % 4]
        terms = [tuple(column.view(dtype) for column in columns)]
        assert summed(dtype, terms, case % len(LEVELS), certificate) == right_sum(dtype, columns), (kind, length, case)
        elements, case = elements + length, case + 1


def sum_of_fractions(dtype, columns):
    """Return the exact sum of the products of columns of bits, in units, and what of it is no number."""
    names, total, odd = {}, 0, set()
    unit = Fraction(1, 1 << UNITS[len(columns) > 1])
    for row in zip(*(column.tolist() for column in columns), strict=True):
        factors = [names.setdefault(bits, number(dtype, bits)) for bits in row]
        if any(isinstance(one, float) for one in factors):
            product = 1.0
            for one in factors:
                product *= float(one > 0) - float(one < 0) if isinstance(one, Fraction) else one
            odd.add(repr(product))
        else:
            product = factors[0] * (factors[1] if len(factors) > 1 else 1) / unit
            assert product.denominator == 1
            total += product.numerator
    return total, "nan" in odd, "inf" in odd, "-inf" in odd


def test_the_quick_oracle_is_the_slow_one():
    rng = np.random.default_rng(2)
    for dtype, factors in itertools.product(WIDTHS, (1, 2)):
        columns = drawn(rng, any_bits, dtype, 500, factors)
        assert right_sum(dtype, columns) == sum_of_fractions(dtype, columns)
