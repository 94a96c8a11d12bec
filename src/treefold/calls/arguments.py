"""Validation of a call's arguments beside the values: destinations, pairs, options, weights."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from treefold.backends import ArrayBackend, backend_of, loaded_backends, read_device
from treefold.dtypes import FLOATS, INTEGERS
from treefold.errors import ArgumentError, CallError
from treefold.execution import Executor
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, IndexedSlices

NO_OPTIONS = CommunicationOptions()
#: Stands, as destinations, for the device of the first replica, which is known once the values are read.
FIRST_REPLICA = object()


def read_destinations(destinations: object) -> tuple[str, ...]:
    """Return the canonical device of each component that the result is to have.

    Raises:
        ArgumentError: They are not in one of the forms, or empty.
        DeviceError: A device does not parse or belongs to another process.

    """
    if isinstance(destinations, DistributedValues):
        return destinations.devices
    if isinstance(destinations, IndexedSlices):
        return read_destinations(destinations.values)
    if isinstance(destinations, str) and not destinations:
        raise ArgumentError.no_destinations()
    listed = _listed(destinations)
    if listed is not None:
        if not listed:
            raise ArgumentError.no_destinations()
        for device in listed:
            if not _is_device(device) or not device:
                raise ArgumentError.destinations(destinations)
        return tuple(read_device(device) for device in listed)
    backend = None if isinstance(destinations, int | float | complex) else backend_of(destinations)
    if backend is None:
        raise ArgumentError.destinations(destinations)
    return (backend.device_of(destinations) or "cpu:0",)


def as_asked(device: str, destinations: object) -> str:
    """Return a device in the caller's spelling among destinations, or by its canonical name if it is not there."""
    words = (str(word) for word in _listed(destinations) or () if read_device(word) == device)
    return next(words, device)


def _listed(destinations: object) -> Sequence[object] | None:
    """Return destinations as a sequence if they are devices; None if they are anything else."""
    if _is_device(destinations):
        return (destinations,)
    return destinations if isinstance(destinations, list | tuple) else None


def _is_device(value: object) -> bool:
    """Return whether a value is a name, or a device of a loaded framework: TensorFlow's are tuples, too."""
    return isinstance(value, str) or any(backend.name_of(value) is not None for backend in loaded_backends())


def read_pairs(pairs: object) -> list[tuple[Any, Any]]:
    """Return the (value, destinations) pairs of a batch as a list.

    Raises:
        ArgumentError: It is no sequence or iterator, or an element is not a tuple of two.

    """
    is_unordered = isinstance(pairs, str | bytes | Mapping | AbstractSet | DistributedValues)
    if is_unordered or not isinstance(pairs, Iterable) or backend_of(pairs) is not None:
        raise ArgumentError.option(value_destination_pairs=pairs)
    read = list(pairs)
    for index, pair in enumerate(read):
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004
            length = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
            raise ArgumentError(
                f"Element {index} of value_destination_pairs is a {type(pair).__name__}{length}. "
                f"Each must be a tuple of two: (value, destinations)."
            )
    return read


def check_accumulate(accumulate: object) -> None:
    """Refuse a value of ``accumulate`` that does not exist.

    Raises:
        ArgumentError: Its sentence lists the values that do.

    """
    if is_word(accumulate, ("wide",)):
        raise ArgumentError(
            'accumulate="wide" is gone: sums and means are exact now, and rounded once. Leave accumulate out, or take'
            ' "native", which rounds every addition.'
        )
    if not is_word(accumulate, ("exact", "native")):
        raise ArgumentError.option(accumulate=accumulate)


def is_word(value: object, words: Container[str]) -> bool:
    """Return whether a value is one of these words. An array, which compares element by element, is not."""
    return isinstance(value, str) and value in words


def read_options(options: object, experimental_hints: object) -> CommunicationOptions:
    """Return the options of a call, which come under either of two names.

    Raises:
        CallError: Both names are given.
        ArgumentError: They are not ``CommunicationOptions``.

    """
    if options is not None and experimental_hints is not None:
        raise CallError.both_option_names()
    given = experimental_hints if options is None else options
    if given is None:
        return NO_OPTIONS
    if not isinstance(given, CommunicationOptions):
        raise ArgumentError.option(options=given)
    return given


def check_honoured(options: CommunicationOptions, executor: Executor) -> None:
    """Refuse options that an executor would have to drop.

    Raises:
        ArgumentError: A time-out, or an implementation that is not this executor.

    """
    who = f"the {executor.name} executor, which runs this plan"
    if options.timeout_seconds is not None and not executor.honours_timeout:
        raise ArgumentError.not_honoured(who, timeout_seconds=options.timeout_seconds)
    if options.implementation not in executor.implementations:
        raise ArgumentError.not_honoured(who, implementation=options.implementation.name)


def read_sequence(values: object, what: str) -> Sequence[Any]:
    """Return the values of a short form: a list or tuple, or distributed values.

    Raises:
        ArgumentError: It is something else, or empty.

    """
    if isinstance(values, DistributedValues):
        return values.values
    if not isinstance(values, list | tuple):
        raise ArgumentError.not_components(what, values)
    if not values:
        raise ArgumentError.no_replicas(what)
    return values


_MOST_BITS = 4096


def read_weights(weights: object, op: ReduceOp) -> tuple[int, ...] | None:
    """Return the weights of a MEAN as whole numbers without a common divisor, exactly in the ratio of the given ones.

    Raises:
        ArgumentError: The op is not MEAN; they are not a sequence or 1-d array of real numbers; one is negative or not
            finite, or all are 0; or, as whole numbers, they have more than 4,096 bits.

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
    """Return the weights of a MEAN, or of some of its replicas, as exact fractions.

    ``are_signed``: whether they may be below 0, as those of a combination.

    Raises:
        ArgumentError: As in ``read_weights``, but all may be 0.

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
        read = tuple(read_number(weights[replica]) for replica in range(len(weights)))
    except ArgumentError:
        raise
    except (TypeError, ValueError, OverflowError):  # no number; not finite; more than fit into memory
        raise ArgumentError.option(weights=weights) from None
    if not are_signed and any(weight < 0 for weight in read):
        raise ArgumentError.option(weights=weights)
    return read


def _is_row(values: object) -> TypeGuard[Sequence[Any]]:
    """Return whether values have an order: a sequence or a 1-d array. A dict would give its keys, a set any order."""
    if isinstance(values, Sequence):
        return not isinstance(values, str | bytes | bytearray | memoryview)
    backend = _backend_of(values)
    return backend is not None and len(backend.shape_dtype(values)[0]) == 1


def read_number(weight: Any) -> Fraction:
    """Return the exact value of one weight; a float's is its binary value.

    Raises:
        ArgumentError: It is a real number of a class that does not give its exact value.
        TypeError: It is not a real number. Text is not one, although ``Fraction`` would read it.
        ValueError: It is NaN.
        OverflowError: It is infinite, or a ``Decimal`` that would fill the memory.

    """
    if isinstance(weight, decimal.Decimal):
        if weight.is_finite() and weight and abs(weight.adjusted()) > _MOST_BITS:  # digits have 3 bits and more
            raise OverflowError
        return Fraction(weight)
    if isinstance(weight, numbers.Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))  # NumPy's would overflow
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
    """Return the backend of an array that can be read, or None if it is not an array.

    Raises:
        ArgumentError: It is an array that its framework cannot read here and now, such as a tracer.

    """
    backend = backend_of(array)
    refusal = None if backend is None else backend.refusal(array)
    if refusal is not None:
        raise ArgumentError.unsupported_array(owner="weights", where="", got=refusal.got, advice=refusal.advice)
    return backend
