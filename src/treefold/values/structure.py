"""Pytrees: take a component apart into leaves, name the leaves, and put results back together."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import optree

from treefold.backends import ArrayBackend, loaded_backends
from treefold.errors import ArgumentError
from treefold.values.sparse import IndexedSlices

#: Dataclasses that treefold registers on sight are known in this namespace only, not to the user's own optree calls.
_NAMESPACE = "treefold"
_registered: set[type] = set()
#: Leaves that need no second look.
_plain_types = frozenset({np.ndarray, int, float, type(None), IndexedSlices})

#: Errors that arrays raise when they are asked for a truth value. Any other error in a comparison comes from a signal
#: handler, and passes through.
_INCOMPARABLE = (TypeError, ValueError, RuntimeError)


def flatten(component: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves of a component and its structure. None and ``IndexedSlices`` are leaves.

    Dictionaries are flattened in order of their keys, plain dataclasses by their fields.

    Raises:
        ArgumentError: It is nested too deeply, or contains itself.

    """
    leaves, spec = _flatten(component)
    while any(_is_registered(leaf) for leaf in leaves if type(leaf) not in _plain_types):
        leaves, spec = _flatten(component)
    return leaves, spec


def unflatten(spec: optree.PyTreeSpec, leaves: list[Any]) -> Any:
    """Return a component of the given structure with other leaves."""
    return optree.tree_unflatten(spec, leaves)


def leaf_paths(spec: optree.PyTreeSpec) -> list[str]:
    """Return each leaf's path as Python code behind the component: ``"['dense']['kernel']"``, or ``""``."""
    return [accessor.codify("") for accessor in spec.accessors()]


def are_same(one: optree.PyTreeSpec, other: optree.PyTreeSpec) -> bool:
    """Return whether two structures are the same, static data of their classes included.

    Raises:
        ArgumentError: ``==`` does not compare some static data, such as an array.

    """
    try:
        return bool(one == other)
    except _INCOMPARABLE as error:
        raise ArgumentError(
            "Two structures cannot be compared, because == of the static data of a pytree class does not give a bool. "
            "Bring arrays as children of their class, not as static data."
        ) from error


class StructureKey:
    """A structure as a part of a key. Structures that cannot be compared are unequal."""

    __slots__ = ("_spec",)

    def __init__(self, spec: optree.PyTreeSpec) -> None:
        """Hold the structure."""
        self._spec = spec

    def __hash__(self) -> int:
        """Return the structure's own hash, which leaves out static data: these may have none."""
        return hash(self._spec)

    def __eq__(self, other: object) -> bool:
        """Compare the structures."""
        try:
            return isinstance(other, StructureKey) and are_same(self._spec, other._spec)
        except ArgumentError:
            return False


def _flatten(component: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    # IndexedSlices is registered nowhere, and so a leaf; an is_leaf function would be called for every node.
    try:
        return optree.tree_flatten(component, none_is_leaf=True, namespace=_NAMESPACE)
    except RecursionError:
        raise ArgumentError(
            f"A value is nested more than {optree.MAX_RECURSION_DEPTH} levels deep, or contains itself. Bring its "
            "arrays in a list or dict."
        ) from None


def _is_registered(leaf: object) -> bool:
    """Register the class of a leaf that is a container, and return whether it is one."""
    # Arrays of some frameworks are dataclasses too; anything with a shape is a leaf. The type is asked first, because
    # the shape of some arrays cannot be read.
    if isinstance(leaf, type | IndexedSlices) or hasattr(type(leaf), "shape") or hasattr(leaf, "shape"):
        return False
    # A framework knows which fields of its users' dataclasses hold arrays.
    for backend in loaded_backends():
        node = backend.take_apart(leaf)
        if node is not None:
            _register_framework_node(type(leaf), backend, node.entry_type)
            return True
    if not dataclasses.is_dataclass(leaf):
        return False
    _register_dataclass(type(leaf))
    return True


def _register_framework_node(kind: type, backend: ArrayBackend, entry_type: type[optree.PyTreeEntry]) -> None:
    def take_apart(value: Any) -> tuple[Iterable[Any], Hashable, tuple[Any, ...]]:
        node = backend.take_apart(value)
        if node is None:
            raise AssertionError(kind)
        return node.children, node.rest, node.names

    _register(kind, take_apart, backend.put_together, entry_type)


def _register_dataclass(kind: type) -> None:
    names = tuple(field.name for field in dataclasses.fields(kind))

    def take_apart(value: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
        return tuple(getattr(value, name) for name in names), None, names

    def put_together(_: object, children: Iterable[Any]) -> Any:
        # Not through __init__: fields may have init=False, and __post_init__ may have effects.
        value: Any = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)
        return value

    _register(kind, take_apart, put_together, optree.GetAttrEntry)


def _register(kind: type, take_apart: Any, put_together: Any, entry_type: type[optree.PyTreeEntry]) -> None:
    if kind in _registered:
        return
    try:
        optree.register_pytree_node(kind, take_apart, put_together, path_entry_type=entry_type, namespace=_NAMESPACE)
    except ValueError:
        # Fine if another thread, or a signal handler in this one, has registered it meanwhile; else it stays unknown.
        if optree.register_pytree_node.get(kind, namespace=_NAMESPACE) is None:
            raise
    _registered.add(kind)
