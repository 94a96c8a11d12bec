"""Which backends there are. Frameworks are found among the loaded modules, never imported to find out."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from treefold.backends.interface import ArrayBackend
from treefold.backends.numpy import NumpyBackend

#: framework module → (treefold module, class): one line adds a framework.
_FRAMEWORKS: dict[str, tuple[str, str]] = {}

_loaded: dict[str, ArrayBackend] = {"numpy": NumpyBackend()}
_extra: list[ArrayBackend] = []


def loaded_backends() -> tuple[ArrayBackend, ...]:
    """Return the backends of all frameworks that this process has imported, NumPy first."""
    for framework, (module, name) in _FRAMEWORKS.items():
        if framework in sys.modules and framework not in _loaded:
            _loaded[framework] = getattr(importlib.import_module(module), name)()
    return (*_loaded.values(), *_extra)


def backend_of(value: object) -> ArrayBackend | None:
    """Return the backend that owns a value, or None if no loaded framework does."""
    return next((backend for backend in loaded_backends() if backend.owns(value)), None)


@contextlib.contextmanager
def additional_backend(backend: ArrayBackend) -> Iterator[ArrayBackend]:
    """Know one more backend inside the ``with`` block: for tests, and for frameworks that treefold does not know."""
    _extra.append(backend)
    try:
        yield backend
    finally:
        _extra.remove(backend)
