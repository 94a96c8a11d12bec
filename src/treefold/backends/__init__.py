"""Backends: what treefold knows about each array framework."""

from treefold.backends.interface import ArrayBackend, HostArray
from treefold.backends.registry import additional_backend, backend_of, loaded_backends

__all__ = ["ArrayBackend", "HostArray", "additional_backend", "backend_of", "loaded_backends"]
