"""Weights of inputs: as options say them, or for a learning rate that is not decayed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from treefold.averaging.arithmetic import Combination, Op
from treefold.calls.arguments import read_fractions, read_weights
from treefold.errors import AverageOptionError
from treefold.errors.words import counted, reason_of
from treefold.reduce_op import ReduceOp

DECAYS = ("linear", "cosine", "1-sqrt")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?(/\d+)?")
_MOST_CHARACTERS = 1_000
_MOST_FILE_BYTES = 1 << 22


def read_text(text: str) -> list[Fraction]:
    """Return numbers as they are written: ``0.3,0.7``, ``1/3,2/3``, or ``@file`` with one number per line or comma.

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
    """Return the weights of the last ``count`` checkpoints that stand for a learning rate that decays over them.

    Checkpoint i of n holds the updates of all steps up to it, so the mean scales the updates between checkpoints i − 1
    and i by the weights of i and all later ones. Weights wᵢ = d(i/n) − d((i + 1)/n) make that factor the decayed rate
    d(i/n), for i from 0 to n − 1, where d falls from 1 to 0: 1 − t, (1 + cos πt)/2 or 1 − √t.

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
    """Return what to compute of ``count`` inputs, the first of which is the base if there is one.

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
