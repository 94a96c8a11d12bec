"""Calls on arrays of a graph that is being traced: they are made when it runs, in the order of the program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from treefold.backends import ArrayBackend, backend_of, refusal_of
from treefold.backends.tracing import Like
from treefold.errors import ArgumentError, TreefoldError
from treefold.group.transport.link import GroupLink, one_call
from treefold.values import DistributedValues, IndexedSlices, PerReplica, flatten, unflatten

_OWNER = "The value"
#: Says what a leaf's array will be in the result; ``is_rows``: it is the values or the indices of sparse rows.
Describe = Callable[[Any, bool], Like]


class TracedCalls:
    """Parts of the calls of one group, some of which are made when a graph runs."""

    def __init__(self, link: GroupLink) -> None:
        """Use a link."""
        self._link = link

    def _when_run(self, part: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Make a call from a graph that runs, and keep its error: the graph raises one of the framework's own."""
        try:
            return self._as_one_call(part, *given, **options)
        except TreefoldError as error:
            self._link.error_in_graph = copy.copy(error)  # without its traceback, which holds what the call has used
            raise

    @one_call
    def _as_one_call(self, part: Callable[..., Any], *given: Any, **options: Any) -> Any:
        return part(*given, **options)


def tracing_backend(value: Any) -> ArrayBackend | None:
    """Return the backend that is tracing a graph with some array of the value in it; None if there is none."""
    for component in value.values if isinstance(value, DistributedValues) else (value,):
        for leaf in flatten(component)[0]:
            backend = backend_of(leaf.values if isinstance(leaf, IndexedSlices) else leaf)
            if backend is not None and backend.is_later(leaf):
                return backend
    return None


def check_untraced(call: str, out: Any) -> None:
    """Refuse ``out`` where a graph is traced: nothing can be written while the graph is made.

    Raises:
        ArgumentError: there is an ``out``.

    """
    if out is not None:
        raise ArgumentError.traced(call)


def call_later(
    backend: ArrayBackend, value: Any, call: Callable[[Any], Any], describe: Describe, *, is_wanted: bool = True
) -> Any:
    """Return what ``call`` will return for the value: the first component's structure with arrays as described.

    ``is_wanted``: whether it returns anything but None on this rank.
    """
    components = value.values if isinstance(value, DistributedValues) else (value,)
    flat = [flatten(component) for component in components]

    def make(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        made = [unflatten(structure, [_filled(leaf, given) for leaf in leaves]) for leaves, structure in flat]
        result = call(PerReplica(made) if isinstance(value, DistributedValues) else made[0])
        return [array for leaf in flatten(result)[0] for array in _arrays(leaf)] if is_wanted else []

    leaves, structure = flat[0]
    likes = [_like(leaf, describe, array) for leaf in leaves for array in _arrays(leaf)] if is_wanted else []
    arrays = [array for leaves, _ in flat for leaf in leaves for array in _arrays(leaf)]
    for refusal in filter(None, map(refusal_of, arrays)):
        raise ArgumentError.unsupported_array(_OWNER, "", refusal.got, refusal.advice)
    made = iter(backend.call_later(make, arrays, likes))
    return unflatten(structure, [_filled(leaf, made) for leaf in leaves]) if is_wanted else None


def _arrays(leaf: Any) -> Sequence[Any]:
    """Return the arrays of a leaf: none for None, two for sparse rows."""
    return (leaf.values, leaf.indices) if isinstance(leaf, IndexedSlices) else () if leaf is None else (leaf,)


def _filled(leaf: Any, arrays: Any) -> Any:
    """Return a leaf with the next of other arrays in the places of its own."""
    if isinstance(leaf, IndexedSlices):
        return IndexedSlices(next(arrays), next(arrays), leaf.dense_shape)
    return None if leaf is None else next(arrays)


def _like(leaf: Any, describe: Describe, array: Any) -> Like:
    if isinstance(leaf, IndexedSlices) and array is leaf.indices:
        return Like(array, axis=0)
    return describe(array, isinstance(leaf, IndexedSlices))
