"""Validation of ``weights``: one real number for each replica, in an order."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from treefold.backends import ArrayBackend, backend_of
from treefold.dtypes import FLOATS, INTEGERS
from treefold.errors import ArgumentError
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

_MOST_BITS = 4096


def read_weights(weights: object, op: ReduceOp) -> tuple[int, ...] | None:
    """Return the weights of a MEAN as whole numbers without a common divisor, exactly in the ratio of the given ones.

    Raises:
        ArgumentError: the op is not MEAN; they are no sequence or one-dimensional array of real numbers; one of them is
            negative or not finite, or all are 0; as whole numbers they have more than 4,096 bits.

    """
    exact = read_fractions(weights, op)
    if exact is None:
        return None
    if not any(exact):
        raise ArgumentError.option(weights=weights)
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    common = math.gcd(*whole)
    read = tuple([weight // common for weight in whole])
    if max(read).bit_length() > _MOST_BITS:
        raise ArgumentError(
            f"weights, as whole numbers in their ratio, have up to {max(read).bit_length():,} bits, and {_MOST_BITS:,} "
            "are taken. Round them, or leave out those that count for nothing."
        )
    return read


def read_fractions(weights: object, op: ReduceOp, *, are_signed: bool = False) -> tuple[Fraction, ...] | None:
    """Return the weights of a MEAN, or of some of its replicas, as the numbers that they are.

    ``are_signed``: they may be below 0, as those of a combination.

    Raises:
        ArgumentError: as ``read_weights``, but all may be 0.

    """
    if weights is None:
        return None
    if op is not ReduceOp.MEAN:
        raise ArgumentError(
            f"weights goes with MEAN and the op is {op.name}. Leave weights out, or multiply the values yourself."
        )
    if not _is_row(weights):
        raise ArgumentError.option(weights=weights)
    try:
        read = tuple(_read_number(weights[replica]) for replica in range(len(weights)))
    except ArgumentError:
        raise
    except (TypeError, ValueError, OverflowError):  # no number; not finite; more than fit into memory
        raise ArgumentError.option(weights=weights) from None
    if not are_signed and any(weight < 0 for weight in read):
        raise ArgumentError.option(weights=weights)
    return read


def check_weight_count(fold: Fold, num_replicas: int) -> None:
    """Refuse weights that are not one per replica.

    Raises:
        ArgumentError: naming both counts.

    """
    if fold.weights is not None and len(fold.weights) != num_replicas:
        raise ArgumentError.weight_count(len(fold.weights), num_replicas)


def _is_row(values: object) -> TypeGuard[Sequence[Any]]:
    """Tell whether these stand in an order: a sequence, or an array of one axis. A dict gives its keys, a set any."""
    if isinstance(values, Sequence):
        return not isinstance(values, str | bytes | bytearray | memoryview)
    backend = _backend_of(values)
    return backend is not None and len(backend.shape_dtype(values)[0]) == 1


def _read_number(weight: Any) -> Fraction:
    """Return one weight as the number that it is: of a float, its binary value.

    Raises:
        ArgumentError: it is a real number that does not tell its exact value.
        TypeError: it is no real number. Text, which ``Fraction`` would read, is none.
        ValueError: it is NaN.
        OverflowError: it is infinite, or a ``Decimal`` that would fill the memory.

    """
    if isinstance(weight, decimal.Decimal):
        if weight.is_finite() and weight and abs(weight.adjusted()) > _MOST_BITS:  # digits have 3 bits and more
            raise OverflowError
        return Fraction(weight)
    if isinstance(weight, numbers.Rational):
        return Fraction(weight)
    if isinstance(weight, numbers.Real):  # of any precision: float would cut np.longdouble
        if not hasattr(weight, "as_integer_ratio"):
            raise ArgumentError(
                f"weights has a {type(weight).__name__}, which does not tell its exact value. A weight is a whole "
                "number, a float, a Fraction or a Decimal. Multiply the weights until they are whole numbers."
            )
        return Fraction(*weight.as_integer_ratio())
    backend = _backend_of(weight)
    if backend is None or backend.shape_dtype(weight) not in _SCALARS:
        raise TypeError
    # An element of an array: a whole number, which may be larger than a float holds exactly, or a float.
    return Fraction(np.asarray(backend.host_view(weight)).item())


_SCALARS = frozenset(((), dtype) for dtype in (*FLOATS, *INTEGERS, "bool"))


def _backend_of(array: object) -> ArrayBackend | None:
    """Return the backend of an array that can be read, None for what is no array.

    Raises:
        ArgumentError: it is an array that its framework cannot read here and now, such as a tracer.

    """
    backend = backend_of(array)
    refusal = None if backend is None else backend.refusal(array)
    if refusal is not None:
        raise ArgumentError.unsupported_array(owner="weights", where="", got=refusal.got, advice=refusal.advice)
    return backend
