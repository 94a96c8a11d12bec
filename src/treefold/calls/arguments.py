"""Validation of what stands beside the values: destinations, pairs, options."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from treefold.backends import backend_of, loaded_backends, read_device
from treefold.errors import ArgumentError, CallError
from treefold.execution import Executor
from treefold.options import CommunicationOptions
from treefold.values import DistributedValues, IndexedSlices

NO_OPTIONS = CommunicationOptions()
#: Stands for destinations that are the device of the first replica, which is known once the values are read.
FIRST_REPLICA = object()


def read_destinations(destinations: object) -> tuple[str, ...]:
    """Return the canonical device of each component that the result is to have.

    Raises:
        ArgumentError: not one of the forms, or empty.
        DeviceError: a device does not parse or is another process's.

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
    """Return a device as the caller has written it among destinations; if it came otherwise, its canonical name."""
    words = (str(word) for word in _listed(destinations) or () if read_device(word) == device)
    return next(words, device)


def _listed(destinations: object) -> Sequence[object] | None:
    """Return destinations that are devices as a sequence of these; None for anything else."""
    if _is_device(destinations):
        return (destinations,)
    return destinations if isinstance(destinations, list | tuple) else None


def _is_device(value: object) -> bool:
    """Tell whether a value is a name, or a device of a loaded framework: TensorFlow's are tuples, too."""
    return isinstance(value, str) or any(backend.name_of(value) is not None for backend in loaded_backends())


def read_pairs(pairs: object) -> list[tuple[Any, Any]]:
    """Return the (value, destinations) pairs of a batch as a list.

    Raises:
        ArgumentError: it is no sequence or iterator, or an element is not a tuple of two.

    """
    is_unordered = isinstance(pairs, str | bytes | Mapping | AbstractSet | DistributedValues)
    if is_unordered or not isinstance(pairs, Iterable) or backend_of(pairs) is not None:
        raise ArgumentError.option(value_destination_pairs=pairs)
    read = list(pairs)
    for index, pair in enumerate(read):
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004
            raise ArgumentError.not_a_pair(index, pair)
    return read


def check_accumulate(accumulate: object) -> None:
    """Refuse what is no way to accumulate.

    Raises:
        ArgumentError: saying which there are.

    """
    if is_word(accumulate, ("wide",)):
        raise ArgumentError(
            'accumulate="wide" is gone: sums and means are exact now, and rounded once. Leave accumulate out, or take'
            ' "native", which rounds every addition.'
        )
    if not is_word(accumulate, ("exact", "native")):
        raise ArgumentError.option(accumulate=accumulate)


def is_word(value: object, words: Container[str]) -> bool:
    """Tell whether a value is one of these words. Arrays, which compare element by element, are none."""
    return isinstance(value, str) and value in words


def read_options(options: object, experimental_hints: object) -> CommunicationOptions:
    """Return the options of a call, under whichever of their two names they came.

    Raises:
        CallError: they came under both.
        ArgumentError: they are something else.

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
        ArgumentError: a time-out, or an implementation that is not this executor.

    """
    who = f"the {executor.name} executor, which runs this plan"
    if options.timeout_seconds is not None and not executor.honours_timeout:
        raise ArgumentError.not_honoured(who, timeout_seconds=options.timeout_seconds)
    if options.implementation not in executor.implementations:
        raise ArgumentError.not_honoured(who, implementation=options.implementation.name)


def read_sequence(values: object, what: str) -> Sequence[Any]:
    """Return the values of a short form: a list or tuple, or distributed values.

    Raises:
        ArgumentError: it is something else, or empty.

    """
    if isinstance(values, DistributedValues):
        return values.values
    if not isinstance(values, list | tuple):
        raise ArgumentError.not_components(what, values)
    if not values:
        raise ArgumentError.no_replicas(what)
    return values
