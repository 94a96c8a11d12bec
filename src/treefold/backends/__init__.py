"""Backends: what treefold knows about each array framework."""

from treefold.backends.interface import ArrayBackend, HostArray, Node, Refusal
from treefold.backends.registry import (
    additional_backend,
    backend_of,
    loaded_backends,
    read_device,
    read_row,
    refusal_of,
)
from treefold.backends.rows import Row

__all__ = [
    "ArrayBackend",
    "HostArray",
    "Node",
    "Refusal",
    "Row",
    "additional_backend",
    "backend_of",
    "loaded_backends",
    "read_device",
    "read_row",
    "refusal_of",
]
