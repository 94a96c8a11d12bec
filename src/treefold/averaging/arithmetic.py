"""The arithmetic of averaging: treefold's own fold for floats, whole numbers for integers, and one rule for the rest.

Every operation is a combination: whole numbers times contributions, over a whole number. Floats are its exact value,
rounded once to their dtype; integers that count the nearest whole number to it, halves to even; what has no arithmetic,
or may be a code, is kept where it is the same everywhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.averaging.tensors import Spec
from treefold.averaging.whole import are_equal, nearest_whole
from treefold.backends.numpy_exact import FORMATS, exact_fold
from treefold.backends.numpy_rounding import rounded
from treefold.dtypes import COMPLEX, INTEGERS, REAL, TRAVELLING
from treefold.errors import CheckpointError, CheckpointFormatError, CommandError
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

#: What is kept if it is the same in all inputs, and refused otherwise: there is no mean of it.
CARRIED = ("bool", *TRAVELLING)

#: Contributions of whole numbers to a sum are repeated up to so often; beyond, they are folded as weighted ones.
_MOST_REPEATED = 64


class Op(enum.StrEnum):
    """What becomes of the inputs."""

    MEAN = "mean"
    SUM = "sum"
    COMBINE = "combine"


class Rule(enum.StrEnum):
    """What becomes of a tensor: its combination, what all inputs agree on, or what the first input has."""

    FOLD = "fold"
    EQUAL = "equal"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Combination:
    """Σ numerators·contributions / divisor, in whole numbers. ``op`` says what it means to integers and flags."""

    op: Op
    numerators: tuple[int, ...]
    divisor: int

    @classmethod
    def mean(cls, weights: Sequence[int]) -> Combination:
        """Return the mean with whole weights, at least one of which is above 0."""
        common = math.gcd(*weights)
        numerators = tuple(weight // common for weight in weights)
        return cls(Op.MEAN, numerators, sum(numerators))

    @classmethod
    def sum(cls, count: int) -> Combination:
        """Return the sum."""
        return cls(Op.SUM, (1,) * count, 1)

    @classmethod
    def of(cls, weights: Sequence[Fraction]) -> Combination:
        """Return the combination with weights of any sign."""
        divisor = math.lcm(*(weight.denominator for weight in weights))
        return cls(Op.COMBINE, tuple(int(weight * divisor) for weight in weights), divisor)

    def among(self, present: Sequence[int]) -> Combination:
        """Return the mean over some of the inputs; all their weights may not be 0."""
        return Combination.mean([self.numerators[index] for index in present])


def check_meaning(name: str, spec: Spec, combination: Combination) -> None:
    """Refuse tensors that the op has no meaning for, or whose dtype NumPy does not know.

    Raises:
        CheckpointError: the sum of flags or of 8-bit floats.
        CommandError: the package for a dtype is missing.

    """
    try:
        spec.numpy_dtype  # noqa: B018 - imports it
    except ImportError:
        raise CommandError.missing_packages(["ml_dtypes"], ["files"]) from None
    if spec.dtype in CARRIED and combination.op is Op.SUM:
        raise CheckpointError(
            f"The sum of {spec.dtype} at {name!r} is not defined. Cast it, or take the mean of equal ones."
        )


def combine(
    name: str, dtype: str, parts: Sequence[Array], combination: Combination, out: Array, rule: Rule = Rule.FOLD
) -> None:
    """Write a combination of one part of a tensor in all inputs into ``out``, of their dtype.

    Raises:
        CheckpointError: what has no mean, or must be equal by the rule, differs; a combination of integers is beyond
            their dtype.

    """
    # A weight of 0 leaves its input out, NaN and all.
    chosen = [(part, number) for part, number in zip(parts, combination.numerators, strict=True) if number]
    if not chosen:
        out[...] = 0
        return
    parts, numerators = [part for part, _ in chosen], [number for _, number in chosen]
    if rule is not Rule.FOLD or dtype in CARRIED:
        if rule is not Rule.FIRST and not are_equal(parts):
            raise _differing(name, dtype, rule)
        out[...] = parts[0]
    elif dtype in INTEGERS and combination.op is not Op.SUM:
        whole = nearest_whole(parts, numerators, combination.divisor)
        if whole is None:
            raise CheckpointFormatError.whole_range(name, dtype)
        out[...] = whole
    else:
        _fold_floats(parts, numerators, combination.divisor, out, dtype)


def rounded_once(
    result: Array, parts: Sequence[Array], combination: Combination, dtype: str, work: str
) -> npt.NDArray[Any]:
    """Return the exact combination of floats rounded to ``dtype``, given the one rounded to their own, wider dtype.

    Where that lies in the middle between two neighbours of ``dtype``, the exact value is beside it or on it: the sign
    of their exact difference says where. Everywhere else a second rounding goes where the only one would.
    """
    places = _find_middles(result, dtype, work)
    if places.size:
        middles = result[places]
        kept = [(part[places], number) for part, number in zip(parts, combination.numerators, strict=True) if number]
        sides = np.empty_like(middles)
        numerators = [*(number for _, number in kept), -combination.divisor]
        _fold_floats([*(part for part, _ in kept), middles], numerators, 1, sides, work)
        beyond = np.copysign(np.asarray(np.inf, middles.dtype), sides)
        result[places] = np.where(sides == 0, middles, np.nextafter(middles, beyond))
    with np.errstate(all="ignore"):  # what is too large for a dtype is infinite
        return rounded(result, dtype)


def _find_middles(values: Array, dtype: str, work: str) -> npt.NDArray[np.intp]:
    """Return the places of floats in the middle between two neighbours of a narrower dtype, by their bits."""
    wide, narrow = FORMATS[work], FORMATS[dtype]
    words = values.view(wide.word)
    # A middle ends in a one, which is cut off, and zeros: of most floats this is all that is looked at.
    zeros = words.dtype.type((1 << (wide.precision - narrow.precision - 1)) - 1)
    places = np.flatnonzero(words & zeros == 0)
    found = words[places].astype(np.int64)
    fields = (found >> (wide.precision - 1)) & wide.most
    hidden = 1 << (wide.precision - 1)
    significands = found & (hidden - 1) | np.where(fields > 0, hidden, 0)
    unit = np.maximum(fields, 1) - 1 + wide.least_unit
    # How many bits a rounding cuts off: more than there are where even half the least number is larger.
    cut = np.maximum(unit + wide.precision - narrow.precision, narrow.least_unit) - unit
    cut = np.minimum(cut, wide.precision + 1)
    middles: npt.NDArray[np.intp] = places[significands & ((1 << cut) - 1) == 1 << (cut - 1)]
    return middles


def _differing(name: str, dtype: str, rule: Rule) -> CheckpointError:
    if rule is Rule.EQUAL:
        is_float = dtype in TRAVELLING
        return CheckpointFormatError.scaled(name, dtype) if is_float else CheckpointFormatError.codes(name, dtype)
    return (
        CheckpointError(
            f"The files differ in {name!r}, and the mean of {dtype} is not defined: only equal ones are kept. "
            f"Cast it, or leave it out. Nothing was written."
        )
        if dtype == "bool"
        else CheckpointFormatError.eight_bits(name, dtype)
    )


def _fold_floats(parts: list[Array], numerators: list[int], divisor: int, out: Array, dtype: str) -> None:
    """Fold floats, or the sum of integers modulo 2^w, by the native core wherever its ops say the same."""
    # Negation is exact, so a negative weight is a positive one on the negated contribution.
    parts = [_negated(part) if number < 0 else part for part, number in zip(parts, numerators, strict=True)]
    weights = [abs(number) for number in numerators]
    total = sum(weights)
    if divisor == 1 and total <= max(_MOST_REPEATED, len(parts)):
        repeated = [part for part, weight in zip(parts, weights, strict=True) for _ in range(weight)]
        fold_into(repeated, [out], Fold(ReduceOp.SUM), dtype)
    elif total == divisor:
        is_equal = len(set(weights)) == 1
        fold_into(parts, [out], Fold(ReduceOp.MEAN, weights=None if is_equal else tuple(weights)), dtype)
    elif total < divisor:
        # A contribution of -0, which no sum notices, makes the weights add up to the divisor.
        nothing = _negated(np.zeros_like(parts[0]))  # by its bits: -0.0 as a complex number is -0 + 0j
        fold_into([*parts, nothing], [out], Fold(ReduceOp.MEAN, weights=(*weights, divisor - total)), dtype)
    else:
        # The core divides by the sum of the weights alone. NumPy's fold has the same bits.
        real = REAL[dtype] if dtype in COMPLEX else dtype
        views = [np.ascontiguousarray(part).reshape(-1).view(real) for part in parts]
        out.reshape(-1).view(real)[...] = exact_fold(views, real, weights=weights, divisor=divisor)


def _negated(part: Array) -> Array:
    """Return floats with the other sign, by their bits: NumPy would have to know each dtype."""
    if part.dtype.kind in "iu":
        negated: Array = -part
        return negated
    width = part.dtype.itemsize // (2 if part.dtype.kind == "c" else 1)
    words = np.ascontiguousarray(part).reshape(-1).view(f"uint{8 * width}")
    flipped: Array = (words ^ words.dtype.type(1 << (8 * width - 1))).view(part.dtype).reshape(part.shape)
    return flipped
