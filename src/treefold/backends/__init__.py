"""Backends: what treefold knows about each array framework."""

from treefold.backends.interface import ArrayBackend, DeviceRow, HostArray, Node, Refusal
from treefold.backends.registry import additional_backend, backend_of, glancing_backend, loaded_backends

__all__ = [
    "ArrayBackend",
    "DeviceRow",
    "HostArray",
    "Node",
    "Refusal",
    "additional_backend",
    "backend_of",
    "glancing_backend",
    "loaded_backends",
]
