"""Validation of ``weights``: one real number for each replica, in an order."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Sequence
from typing import Any, TypeGuard

from treefold.backends import ArrayBackend, backend_of
from treefold.dtypes import FLOATS, INTEGERS
from treefold.errors import ArgumentError
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp


def read_weights(weights: object, op: ReduceOp) -> tuple[float, ...] | None:
    """Return the weights of a MEAN as floats in the ratio of the given ones.

    Raises:
        ArgumentError: the op is not MEAN; they are no sequence or one-dimensional array of real numbers; one of them is
            negative or not finite, or all are 0.

    """
    if weights is None:
        return None
    if op is not ReduceOp.MEAN:
        raise ArgumentError.weights_of_op(op.name)
    if not _is_row(weights):
        raise ArgumentError.option(weights=weights)
    try:
        read = tuple(_read_number(weights[replica]) for replica in range(len(weights)))
    except (TypeError, ValueError, OverflowError):  # no number; too large for a float; more than fit into memory
        raise ArgumentError.option(weights=weights) from None
    if any(weight < 0 for weight in read) or not 0 < sum(read) < math.inf:
        raise ArgumentError.option(weights=weights)
    # Only ratios count, and the products of tiny weights and values would vanish. Powers of two change nothing else.
    exponent = min(0, math.frexp(sum(read))[1])
    return tuple(math.ldexp(weight, -exponent) for weight in read)


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


def _read_number(weight: Any) -> float:
    """Return one weight as a float.

    Raises:
        TypeError: it is no real number. Text, which ``float`` would read, is none.
        OverflowError: it is larger than any float.

    """
    if not isinstance(weight, numbers.Real | decimal.Decimal):
        backend = _backend_of(weight)
        if backend is None or backend.shape_dtype(weight) not in _SCALARS:
            raise TypeError
    return float(weight)


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
