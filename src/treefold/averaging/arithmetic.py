"""The arithmetic of averaging: treefold's own fold for floats, whole numbers for integers, and one rule for the rest.

Every operation is a combination: whole numbers times contributions, over a whole number. Floats get the exact value,
rounded once to their dtype. Integers that count get the nearest whole number, halves to even. Tensors that have no
arithmetic, or may hold codes, are kept if they are equal in all inputs. Weights are given as options, or derived from a
learning rate that decays.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.averaging.tensors import Spec
from treefold.backends.numpy_exact import FORMATS, exact_fold
from treefold.backends.numpy_fold import rounded
from treefold.calls.arguments import read_fractions, read_weights
from treefold.dtypes import COMPLEX, INTEGERS, REAL, TRAVELLING, itemsize
from treefold.errors import AverageOptionError, CheckpointError, CheckpointFormatError, CommandError
from treefold.errors.words import counted, reason_of
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

#: Dtypes without a mean: their tensors are kept if they are equal in all inputs, and refused otherwise.
CARRIED = ("bool", *TRAVELLING)

#: A sum with whole weights repeats its contributions if this many are enough; else it folds them with weights.
_MOST_REPEATED = 64
_SIGNED_BITS = 63
DECAYS = ("linear", "cosine", "1-sqrt")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?(/\d+)?")
_MOST_CHARACTERS = 1_000
_MOST_FILE_BYTES = 1 << 22


class Op(enum.StrEnum):
    """The operation on the inputs."""

    MEAN = "mean"
    SUM = "sum"
    COMBINE = "combine"


class Rule(enum.StrEnum):
    """The rule for a tensor: combine the inputs (FOLD), require equal inputs (EQUAL), or take the first (FIRST)."""

    FOLD = "fold"
    EQUAL = "equal"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Combination:
    """Σ numerators·contributions / divisor, in whole numbers. ``op`` decides about integers and flags."""

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
        """Return the mean over some of the inputs, at least one of which has a weight above 0."""
        return Combination.mean([self.numerators[index] for index in present])


def check_meaning(name: str, spec: Spec, combination: Combination) -> None:
    """Refuse tensors of a dtype for which the op is not defined, or which NumPy does not know.

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
    """Write the combination of one part of a tensor over all inputs into ``out``, which has the same dtype.

    Raises:
        CheckpointError: parts differ that must be equal, by the rule or because there is no mean of them; or a
            combination of integers is beyond their dtype.

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
    """Return the exact combination of floats rounded once to ``dtype``, given its rounding to their own, wider dtype.

    A second rounding gives the right result unless ``result`` lies in the middle between two neighbours of ``dtype``.
    There, the sign of the exact difference between the combination and the middle decides.
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
    with np.errstate(all="ignore"):  # numbers too large for a dtype become infinite
        return rounded(result, dtype)


def _find_middles(values: Array, dtype: str, work: str) -> npt.NDArray[np.intp]:
    """Return the indexes of floats in the middle between two neighbours of a narrower dtype, found by their bits."""
    wide, narrow = FORMATS[work], FORMATS[dtype]
    words = values.view(wide.word)
    # A middle ends in a one, which is cut off, and zeros: this test alone excludes most floats.
    zeros = words.dtype.type((1 << (wide.precision - narrow.precision - 1)) - 1)
    places = np.flatnonzero(words & zeros == 0)
    found = words[places].astype(np.int64)
    fields = (found >> (wide.precision - 1)) & wide.most
    hidden = 1 << (wide.precision - 1)
    significands = found & (hidden - 1) | np.where(fields > 0, hidden, 0)
    unit = np.maximum(fields, 1) - 1 + wide.least_unit
    # The number of bits that rounding cuts off: more than there are if even half the least number is larger.
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
    """Fold floats, or the sum of integers modulo 2^w, by the native core if one of its ops has the same meaning."""
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
    """Return floats with the opposite sign, by their bits, because NumPy does not know every dtype."""
    if part.dtype.kind in "iu":
        negated: Array = -part
        return negated
    width = part.dtype.itemsize // (2 if part.dtype.kind == "c" else 1)
    words = np.ascontiguousarray(part).reshape(-1).view(f"uint{8 * width}")
    flipped: Array = (words ^ words.dtype.type(1 << (8 * width - 1))).view(part.dtype).reshape(part.shape)
    return flipped


def nearest_whole(parts: Sequence[Array], numerators: Sequence[int], divisor: int) -> Array | None:
    """Return the whole numbers nearest to a combination of integers, halves to even, in their own dtype.

    Args:
        parts: Arrays of one integer dtype and shape, at least one.
        numerators: A whole number for each.
        divisor: A whole number above 0.

    Returns:
        An array; None if one of the results is beyond the dtype.

    >>> nearest_whole([np.array([1, 2]), np.array([2, 5])], [1, 1], 2)
    array([2, 4])

    """
    if sum(numerators) == divisor and are_equal(parts):
        return parts[0]
    dtype = parts[0].dtype
    total = sum(abs(number) for number in numerators)
    fits = max(total, divisor).bit_length() + 8 * itemsize(dtype.name) + 1 <= _SIGNED_BITS
    work = np.int64 if fits else np.object_  # Python's integers: slow, and never too small
    exact = sum(number * part.astype(work) for number, part in zip(numerators, parts, strict=True))
    whole, rest = np.asarray(exact // divisor), np.asarray(exact % divisor)
    is_up = (2 * rest > divisor) | ((2 * rest == divisor) & (whole % 2 == 1))
    nearest = whole + is_up
    bounds = np.iinfo(dtype)
    if nearest.size and (nearest.min() < bounds.min or nearest.max() > bounds.max):
        return None
    rounded: Array = nearest.astype(dtype)
    return rounded


def are_equal(parts: Iterable[Array]) -> bool:
    """Tell whether arrays of one dtype and shape hold the same bytes."""
    first, *others = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
    return all(np.array_equal(first, other) for other in others)


def read_text(text: str) -> list[Fraction]:
    """Return the numbers of a text: ``0.3,0.7``, ``1/3,2/3``, or ``@file`` with one number per line or comma.

    Raises:
        AverageOptionError: one of them is no number, or the file cannot be read.

    """
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            with path.open(encoding="utf-8") as file:
                contents = file.read(_MOST_FILE_BYTES)
        except (OSError, ValueError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "it is no text"
            raise AverageOptionError(
                f"--weights cannot read {str(path)!r}: {reason}. It takes a text file of one number per input."
            ) from None
        words = contents.replace(",", " ").split()
    else:
        words = [word.strip() for word in text.split(",")]
    if not words or any(len(word) > _MOST_CHARACTERS or not _NUMBER.fullmatch(word) for word in words):
        raise AverageOptionError.weights_text(text)
    try:
        return [_fraction(word) for word in words]
    except ZeroDivisionError:
        raise AverageOptionError.weights_text(text) from None


def _fraction(word: str) -> Fraction:
    number, _, divisor = word.partition("/")
    return Fraction(number) / int(divisor or 1)


def decay_weights(shape: str, count: int) -> list[Fraction]:
    """Return weights of the last ``count`` checkpoints with the effect of a learning rate that decays over them.

    Checkpoint i of n holds the updates of all steps up to it. The mean therefore scales the updates between checkpoints
    i − 1 and i by the sum of the weights of i and all later ones. With weights wᵢ = d(i/n) − d((i + 1)/n), this factor
    is the decayed rate d(i/n), for i from 0 to n − 1. The decay d falls from 1 to 0: 1 − t, (1 + cos πt)/2 or 1 − √t.

    Source: Tian et al., "WSM: Decay-Free Learning Rate Schedule via Checkpoint Merging for LLM Pre-training", 2025.

    Raises:
        AverageOptionError: another word for ``shape``.

    >>> [str(weight) for weight in decay_weights("linear", 4)]
    ['1/4', '1/4', '1/4', '1/4']
    """
    if shape not in DECAYS:
        raise AverageOptionError.value("--decay", shape, "linear, cosine or 1-sqrt")
    if shape == "linear":
        return [Fraction(1, count)] * count

    def rate(step: int) -> Fraction:
        at = step / count
        return Fraction((1 + math.cos(math.pi * at)) / 2 if shape == "cosine" else 1 - math.sqrt(at))

    rates = [Fraction(1), *(rate(step) for step in range(1, count)), Fraction(0)]
    return [before - after for before, after in itertools.pairwise(rates)]


def make_combination(
    op: Op, weights: str | Sequence[object] | None, count: int, *, decay: str | None = None, has_base: bool = False
) -> Combination:
    """Return the combination of ``count`` inputs, the first of which is the base if there is one.

    Raises:
        AverageOptionError: options that do not go together, or weights that are not one per input.
        ArgumentError: weights that are no numbers, or that a mean does not take.

    """
    _check_options(op, weights is not None, decay is not None, has_base)
    num_weighted = count - has_base
    given: Sequence[object] | None = read_text(weights) if isinstance(weights, str) else weights
    if decay is not None:
        given = decay_weights(decay, num_weighted)
    numbers = read_fractions(given, ReduceOp.MEAN, are_signed=True)
    if numbers is not None and len(numbers) != num_weighted:
        raise AverageOptionError(
            f"--weights has {counted(len(numbers), 'number')} for {counted(num_weighted, 'file')}. Give one for each "
            "file."
        )
    if op is Op.MEAN and numbers is not None and (min(numbers) < 0 or not any(numbers)):
        raise AverageOptionError(
            "--weights of a mean are numbers ≥ 0, not all 0. --op combine takes numbers of any sign."
        )
    if op is Op.SUM:
        return Combination.sum(count)
    if numbers is None:
        numbers = (Fraction(1),) * num_weighted
    if op is Op.MEAN:
        whole = read_weights(numbers, ReduceOp.MEAN) or ()
        if not has_base:
            return Combination.mean(whole)
        numbers = tuple(Fraction(weight, sum(whole)) for weight in whole)
    return Combination.of([Fraction(1) - sum(numbers, Fraction(0)), *numbers] if has_base else numbers)


def _check_options(op: Op, has_weights: bool, has_decay: bool, has_base: bool) -> None:  # noqa: FBT001 - four facts
    if has_weights and has_decay:
        raise AverageOptionError("--weights and --decay say the same thing in two ways; give one of them.")
    if has_decay and op is not Op.MEAN:
        raise AverageOptionError.goes_with("--decay", "--op mean")
    if op is Op.SUM and has_weights:
        raise AverageOptionError.goes_with("--weights", "--op mean or --op combine")
    if op is Op.SUM and has_base:
        raise AverageOptionError.goes_with("--base", "--op mean or --op combine")
    if op is Op.COMBINE and not has_weights:
        raise AverageOptionError.goes_with("--op combine", "--weights, one number of any sign for each input")
