"""Arrays cut into one part for each rank."""

from __future__ import annotations

from typing import Any

from treefold.backends import backend_of, refusal_of
from treefold.errors import ArgumentError

_OWNER = "The value"


def cut_equally(array: Any, axis: object, count: int) -> list[Any]:
    """Return ``count`` parts of an array, equal in length along ``axis``, in its framework.

    Raises:
        ArgumentError: it is no array, has no such axis, or ``count`` does not divide its length there.

    """
    backend = backend_of(array)
    refusal = refusal_of(array) if backend is None else backend.refusal(array)
    if refusal is not None:
        raise ArgumentError.unsupported_array(_OWNER, "", refusal.got, refusal.advice)
    if backend is None:
        raise ArgumentError.not_a_value(array, _OWNER)
    shape, _ = backend.shape_dtype(array)
    is_axis = isinstance(axis, int) and not isinstance(axis, bool) and -len(shape) <= axis < len(shape)
    if not isinstance(axis, int) or not is_axis or shape[axis] % count:
        raise ArgumentError.unequal_parts(shape, axis, count)
    axis %= len(shape)
    first = backend.moveaxis(array, axis, 0)
    flat = backend.ravel_concat([first])
    lengths = (shape[axis] // count, *shape[:axis], *shape[axis + 1 :])
    step = flat.shape[0] // count
    parts = [backend.reshape(backend.split(flat, i * step, (i + 1) * step), lengths) for i in range(count)]
    return [backend.moveaxis(part, 0, axis) for part in parts] if axis else parts
