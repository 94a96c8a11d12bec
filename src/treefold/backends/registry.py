"""Which backends there are. Frameworks are found among the loaded modules, never imported to find out."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from treefold.backends.interface import ArrayBackend
from treefold.backends.numpy import NumpyBackend

#: framework module → (treefold module, class): one line adds a framework.
_FRAMEWORKS: dict[str, tuple[str, str]] = {
    "torch": ("treefold.backends.torch", "TorchBackend"),
    "jax": ("treefold.backends.jax", "JaxBackend"),
    "tensorflow": ("treefold.backends.tensorflow", "TensorflowBackend"),
}

_numpy = NumpyBackend()
_loaded: dict[str, ArrayBackend] = {"numpy": _numpy}
_extra: list[ArrayBackend] = []
_glancing: dict[type, ArrayBackend] = dict.fromkeys(_numpy.glanced_types, _numpy)


def loaded_backends() -> tuple[ArrayBackend, ...]:
    """Return the backends of all frameworks that this process has imported, NumPy first."""
    for framework, (module, name) in _FRAMEWORKS.items():
        if framework not in _loaded and sys.modules.get(framework) is not None:
            backend: ArrayBackend = getattr(importlib.import_module(module), name)()
            _loaded[framework] = backend
            _glancing.update(dict.fromkeys(backend.glanced_types, backend))
    return (*_loaded.values(), *_extra)


def backend_of(value: object) -> ArrayBackend | None:
    """Return the backend that owns a value, or None if no loaded framework does."""
    return next((backend for backend in loaded_backends() if backend.owns(value)), None)


def glancing_backend(kind: type) -> ArrayBackend | None:
    """Return the backend that reads arrays of exactly this type at a glance; None until its framework was seen."""
    return _glancing.get(kind)


@contextlib.contextmanager
def additional_backend(backend: ArrayBackend) -> Iterator[ArrayBackend]:
    """Know one more backend inside the ``with`` block: for tests, and for frameworks that treefold does not know."""
    _extra.append(backend)
    try:
        yield backend
    finally:
        _extra.remove(backend)
