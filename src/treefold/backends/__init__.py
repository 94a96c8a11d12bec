"""Backends: the adapters of array frameworks.

Frameworks are found among the loaded modules; none is imported to find out.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from treefold.backends.interface import ArrayBackend, Container, HostArray, Refusal, Row
from treefold.backends.numpy import NumpyBackend
from treefold.devices import canonical_device
from treefold.errors.words import short

__all__ = [
    "ArrayBackend",
    "Container",
    "HostArray",
    "Refusal",
    "Row",
    "additional_backend",
    "backend_of",
    "loaded_backends",
    "read_device",
    "read_row",
    "refusal_of",
]

#: framework module → (treefold module, class): one line adds a framework.
_FRAMEWORKS: dict[str, tuple[str, str]] = {
    "torch": ("treefold.backends.torch", "TorchBackend"),
    "jax": ("treefold.backends.jax", "JaxBackend"),
    "tensorflow": ("treefold.backends.tensorflow", "TensorflowBackend"),
}

_numpy = NumpyBackend()
_loaded: dict[str, ArrayBackend] = {"numpy": _numpy}
#: Types that belong to no framework.
_PLAIN = frozenset({dict, list, tuple, int, float, type(None)})
_extra: list[ArrayBackend] = []
_of_rows: dict[type, ArrayBackend] = dict.fromkeys(_numpy.row_types, _numpy)


def loaded_backends() -> tuple[ArrayBackend, ...]:
    """Return the backends of all frameworks that this process has imported, NumPy first."""
    for framework, (module, name) in _FRAMEWORKS.items():
        if framework not in _loaded and sys.modules.get(framework) is not None:
            backend: ArrayBackend = getattr(importlib.import_module(module), name)()
            _loaded[framework] = backend
            _of_rows.update(dict.fromkeys(backend.row_types, backend))
    return (*_loaded.values(), *_extra)


def backend_of(value: object) -> ArrayBackend | None:
    """Return the backend that owns a value, or None if no loaded framework does."""
    return next((backend for backend in loaded_backends() if backend.owns(value)), None)


def refusal_of(value: object) -> Refusal | None:
    """Return why a framework's value that is not an array, such as one made of several, is refused; None for others."""
    for backend in loaded_backends():
        for kind, advice in backend.not_arrays:
            if isinstance(value, kind):
                return Refusal(f"{short(value)} of {backend.name}", advice)
    return None


def read_device(device: object) -> str:
    """Return the canonical name of a device, given by a name or by an object of a loaded framework.

    Raises:
        DeviceError: It is neither, its name does not parse, or it belongs to another process.

    """
    if isinstance(device, str):
        return canonical_device(device)
    names = (backend.name_of(device) for backend in loaded_backends())
    return canonical_device(next((name for name in names if name is not None), device))


def read_row(arrays: tuple[Any, ...]) -> Row | None:
    """Return arrays, at least one, as a row, by the backend of the first one's exact type; None if they are none."""
    kind = type(arrays[0])
    backend = _of_rows.get(kind)
    if backend is None and kind not in _PLAIN:
        loaded_backends()  # its framework may be new
        backend = _of_rows.get(kind)
    return None if backend is None else backend.read(arrays)


@contextlib.contextmanager
def additional_backend(backend: ArrayBackend) -> Iterator[ArrayBackend]:
    """Register one more backend inside the ``with`` block: for tests, and for frameworks unknown to treefold."""
    _extra.append(backend)
    try:
        yield backend
    finally:
        _extra.remove(backend)
