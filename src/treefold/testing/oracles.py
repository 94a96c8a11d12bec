"""The oracle of reductions, computed one element at a time in plain Python: no kernel, no vector code.

The code is slow and obvious. Sums and means are ``fractions.Fraction``, rounded once. Other ops are rounded where the
kernels round, in replica order.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.dtypes import COMPLEX, INTEGERS, SIGNED
from treefold.reduce_op import ReduceOp, ReduceOpLike

Array = npt.NDArray[Any]

_WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "float64": "float64"}
_PART = {"complex64": "float32", "complex128": "float64"}
_FLOAT64_MEAN = ("int32", "int64", "uint32", "uint64")


@dataclass(frozen=True, slots=True)
class _FloatFormat:
    """A binary floating-point format: the bits of its significand, its least normal and its largest exponent."""

    precision: int
    smallest: int
    largest: int


_FORMATS = {
    "float16": _FloatFormat(11, -14, 15),
    "bfloat16": _FloatFormat(8, -126, 127),
    "float32": _FloatFormat(24, -126, 127),
    "float64": _FloatFormat(53, -1022, 1023),
}


def rounded(value: float | Fraction, dtype: str) -> float:
    """Return a number rounded to a float dtype, once, to nearest with ties to even; overflow gives infinity.

    Args:
        value: The number.
        dtype: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.

    Returns:
        The rounded number, as a Python float.

    >>> rounded(Fraction(1, 3), "bfloat16"), rounded(65520.0, "float16")
    (0.333984375, inf)
    """
    if isinstance(value, float) and (value == 0 or not math.isfinite(value) or dtype == "float64"):
        return value
    exact, form = Fraction(value), _FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, form.smallest) - form.precision + 1)
    nearest = round(size / step) * step  # Python rounds ties to even
    result = math.inf if nearest >= Fraction(2) ** (form.largest + 1) else float(nearest)
    return -result if exact < 0 else result


def result_dtype(op: ReduceOp, dtype: str) -> str:
    """Return the dtype of a result: that of the input, but float for the MEAN of integers.

    Args:
        op: The reduce op.
        dtype: The dtype of the contributions. A MEAN of integers of 32 and 64 bits is float64, of shorter ones float32.

    Returns:
        The dtype, by NumPy's name.

    """
    if op is ReduceOp.MEAN and dtype in INTEGERS:
        return "float64" if dtype in _FLOAT64_MEAN else "float32"
    return dtype


def fold_arrays(
    arrays: Sequence[Array],
    op: ReduceOpLike,
    *,
    accumulate: str = "exact",
    weights: Sequence[float | Fraction] | None = None,
) -> Array:
    """Return the reduction of arrays, by ``fold_numbers`` for each element.

    Args:
        arrays: The contributions, of one shape and dtype, in replica order.
        op: A ``ReduceOp`` or its name.
        accumulate: ``"exact"``, or ``"native"``: every addition is rounded to the dtype.
        weights: One number per array, for MEAN only; None: all weigh the same.

    Returns:
        An array of the contributions' shape; of dtype ``result_dtype(op, dtype)``.

    """
    op, first = ReduceOp.parse(op), np.asarray(arrays[0])
    dtype = first.dtype.name
    columns = zip(*(_numbers(array) for array in arrays), strict=True)
    results = [fold_numbers(column, op, dtype, accumulate=accumulate, weights=weights) for column in columns]
    return np.array(results, result_dtype(op, dtype)).reshape(first.shape)


def fold_numbers(
    numbers: Sequence[Any],
    op: ReduceOp,
    dtype: str,
    *,
    accumulate: str = "exact",
    weights: Sequence[float | Fraction] | None = None,
) -> Any:
    """Return the reduction of one element's contributions.

    Args:
        numbers: Python numbers, in replica order.
        op: The reduce op.
        dtype: The dtype of the contributions.
        accumulate: ``"exact"``, or ``"native"``: every addition is rounded to the dtype.
        weights: One number per contribution, for MEAN only; None: all weigh the same.

    Returns:
        A Python number, rounded to the dtype of the result.

    """
    if dtype in COMPLEX:
        return _fold_complex(numbers, op, dtype, accumulate=accumulate, weights=weights)
    if op in {ReduceOp.MIN, ReduceOp.MAX}:
        return _extreme(numbers, op)
    if weights is not None:
        divisor = sum((Fraction(weight) for weight in weights), Fraction(0))
        return _exact(numbers, weights, divisor, result_dtype(op, dtype))
    if dtype in INTEGERS:
        return _fold_integers(numbers, op, dtype)
    return _fold_floats(numbers, op, dtype, accumulate)


def assert_same_bits(got: Any, expected: Any) -> None:
    """Fail unless two arrays agree in dtype, shape and every bit; all NaN count as equal.

    Args:
        got: The array under test.
        expected: The right one.

    Raises:
        AssertionError: Its message names the first element that differs.

    """
    got, expected = np.asarray(got), np.asarray(expected)
    form = (got.dtype.name, got.shape), (expected.dtype.name, expected.shape)
    if form[0] != form[1]:
        message = f"got {form[0]}, expected {form[1]}"
        raise AssertionError(message)
    if got.dtype == expected.dtype and got.tobytes() == expected.tobytes():
        return  # fast path
    for position, (one, other) in enumerate(zip(_numbers(got), _numbers(expected), strict=True)):
        if _spelled(one) != _spelled(other):
            message = f"element {position} of {got.size} is {one!r}, expected {other!r} ({got.dtype.name} {got.shape})"
            raise AssertionError(message)


def _fold_integers(numbers: Sequence[int], op: ReduceOp, dtype: str) -> int | float:
    if op is ReduceOp.MEAN:
        return rounded(Fraction(sum(numbers), len(numbers)), result_dtype(op, dtype))
    exact = sum(numbers) if op is ReduceOp.SUM else math.prod(numbers)
    modulus = 1 << (8 * np.dtype(dtype).itemsize)
    wrapped = exact % modulus
    return wrapped - modulus if dtype in SIGNED and wrapped >= modulus // 2 else wrapped


def _fold_floats(numbers: Sequence[float], op: ReduceOp, dtype: str, accumulate: str) -> float:
    if accumulate == "native":
        total = _accumulate(numbers, _STEP[op], dtype)
        # The count may not fit a 16-bit float, so the division is wide even here.
        return rounded(total / len(numbers), dtype) if op is ReduceOp.MEAN else total
    if op is ReduceOp.PRODUCT:
        return rounded(_product(numbers, _WIDER[dtype]), dtype)
    count = len(numbers)
    return _exact(numbers, [1] * count, Fraction(count if op is ReduceOp.MEAN else 1), dtype)


def _exact(numbers: Sequence[float], weights: Sequence[float | Fraction], divisor: Fraction, dtype: str) -> float:
    """Return Σwᵢxᵢ over a divisor as a number, rounded once; a weight of 0 leaves its number out."""
    chosen = [(Fraction(weight), number) for weight, number in zip(weights, numbers, strict=True) if weight]
    decisive = [number for _, number in chosen if not math.isfinite(number)]
    if decisive:
        return sum(decisive)
    exact = sum(weight * Fraction(number) for weight, number in chosen) / divisor
    if exact:
        return rounded(exact, dtype)
    # A sum of zeros, or of terms that cancel, is -0 only if all terms are.
    return -0.0 if all(number == 0 and math.copysign(1, number) < 0 for _, number in chosen) else 0.0


_STEP: dict[ReduceOp, Callable[[float, float], float]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.MEAN: operator.add,
    ReduceOp.PRODUCT: operator.mul,
}


def _accumulate(numbers: Sequence[float], step: Callable[[float, float], float], dtype: str) -> float:
    """Fold from the first number on, never from 0, and round every step to ``dtype``."""
    # Rounding to float64 first changes nothing: 53 bits are at least twice 24, and two more (Figueroa, 1995).
    return functools.reduce(lambda total, number: rounded(step(total, number), dtype), numbers)


def _product(numbers: Sequence[float], dtype: str) -> float:
    """Multiply in ``dtype``; in float64 without bounds if a term is not normal though no factor of it is 0."""
    total, is_lossy = numbers[0], False
    for number in numbers[1:]:
        term = rounded(total * number, dtype)
        is_lossy |= _is_lossy(term, total, number, dtype)
        total = term
    if not is_lossy and math.isfinite(total):
        return total
    return _bounded(functools.reduce(_times, map(_unbounded, numbers)))


def _is_lossy(term: float, one: float, other: float, dtype: str) -> bool:
    is_normal = math.isfinite(term) and abs(term) >= 2.0 ** _FORMATS[dtype].smallest
    return one != 0 and other != 0 and not is_normal


#: A number of float64's 53 bits without bounds of its exponent; 0, infinities and NaN are floats.
_Unbounded = Fraction | float


def _unbounded(number: float) -> _Unbounded:
    return Fraction(number) if number and math.isfinite(number) else number


def _bounded(number: _Unbounded) -> float:
    return rounded(number, "float64") if isinstance(number, Fraction) else number


def _times(one: _Unbounded, other: _Unbounded) -> _Unbounded:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return _to_53_bits(one * other)
    return _sign(one) * _sign(other)


def _plus(one: _Unbounded, other: _Unbounded) -> _Unbounded:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return _to_53_bits(one + other) if one + other else 0.0
    for zero, rest in ((one, other), (other, one)):
        if zero == 0 and isinstance(rest, Fraction):
            return rest
    return _sign(one) + _sign(other)


def _sign(number: _Unbounded) -> float:
    """Return a stand-in for a number beside 0, infinities and NaN, where only its sign counts."""
    return (1.0 if number > 0 else -1.0) if isinstance(number, Fraction) else number


def _to_53_bits(exact: Fraction) -> Fraction:
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    step = Fraction(2) ** (exponent - (abs(exact) < Fraction(2) ** exponent) - 52)
    return round(exact / step) * step


def _fold_complex(
    numbers: Sequence[complex], op: ReduceOp, dtype: str, *, accumulate: str, weights: Sequence[float | Fraction] | None
) -> complex:
    part = _PART[dtype]
    if op is not ReduceOp.PRODUCT:
        parts = ([number.real for number in numbers], [number.imag for number in numbers])
        folded = [fold_numbers(p, op, part, accumulate=accumulate, weights=weights) for p in parts]
        return complex(*folded)
    wide = _WIDER[part] if accumulate == "exact" else part
    real, imaginary = _complex_product(numbers, wide, is_bounded=accumulate == "native")
    return complex(rounded(real, part), rounded(imaginary, part))


def _complex_product(numbers: Sequence[complex], dtype: str, *, is_bounded: bool) -> tuple[float, float]:
    """Multiply part by part in ``dtype``; in float64 without bounds if a term is not normal though no factor is 0."""
    real, imaginary = numbers[0].real, numbers[0].imag
    is_lossy = False
    for number in numbers[1:]:
        pairs = (real, number.real), (imaginary, number.imag), (real, number.imag), (imaginary, number.real)
        terms = [rounded(one * other, dtype) for one, other in pairs]
        is_lossy |= any(_is_lossy(term, *pair, dtype) for pair, term in zip(pairs, terms, strict=True))
        real, imaginary = rounded(terms[0] - terms[1], dtype), rounded(terms[2] + terms[3], dtype)
    if is_bounded or not (is_lossy or not math.isfinite(real) or not math.isfinite(imaginary)):
        return real, imaginary
    re, im = _unbounded(numbers[0].real), _unbounded(numbers[0].imag)
    for number in numbers[1:]:
        x, y = _unbounded(number.real), _unbounded(number.imag)
        re, im = _plus(_times(re, x), -_times(im, y)), _plus(_times(re, y), _times(im, x))
    return _bounded(re), _bounded(im)


def _extreme(numbers: Sequence[Any], op: ReduceOp) -> Any:
    """Return the smallest or largest number; a NaN wins, and -0 counts as less than +0."""
    unordered = [number for number in numbers if math.isnan(number)]
    if unordered:
        return unordered[0]
    choose = min if op is ReduceOp.MIN else max
    return choose(numbers, key=lambda number: (number, math.copysign(1, number)))


def _numbers(array: Any) -> list[Any]:
    """Return the elements as Python numbers in row-major order."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.name == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value here
            flat = flat.astype("float64")
    return list(flat.tolist())


def _spelled(number: Any) -> str:
    """Return a text that is equal for two numbers exactly if their bits are; all NaN have the same."""
    if isinstance(number, complex):
        return f"{_spelled(number.real)} {_spelled(number.imag)}"
    return "nan" if math.isnan(number) else repr(number)
