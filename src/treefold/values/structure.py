"""Pytrees: taking a component apart into leaves, naming them, and putting results back together."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import optree

from treefold.values.sparse import IndexedSlices

#: Dataclasses that treefold registers on sight are known in this namespace only, not to the user's own optree calls.
_NAMESPACE = "treefold"
_registering = threading.Lock()
_registered: set[type] = set()
#: Leaves that need no second look.
_plain_types = frozenset({np.ndarray, int, float, type(None), IndexedSlices})


def flatten(component: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves of a component and its structure. None and ``IndexedSlices`` are leaves.

    Dictionaries are taken in order of their keys. Plain dataclasses are taken apart by their fields.
    """
    leaves, spec = _flatten(component)
    while new := {type(leaf) for leaf in leaves if type(leaf) not in _plain_types and _is_new_dataclass(leaf)}:
        for kind in new:
            _register(kind)
        leaves, spec = _flatten(component)
    return leaves, spec


def unflatten(spec: optree.PyTreeSpec, leaves: list[Any]) -> Any:
    """Return a component of the given structure with other leaves."""
    return optree.tree_unflatten(spec, leaves)


def leaf_paths(spec: optree.PyTreeSpec) -> list[str]:
    """Return each leaf's path as one would write it behind the component: ``"['dense']['kernel']"``, or ``""``."""
    return [accessor.codify("") for accessor in spec.accessors()]


def _flatten(component: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    # IndexedSlices is registered nowhere, and so a leaf; an is_leaf function would be called for every node.
    return optree.tree_flatten(component, none_is_leaf=True, namespace=_NAMESPACE)


def _is_new_dataclass(leaf: object) -> bool:
    # Arrays of some frameworks are dataclasses too; what has a shape is a leaf.
    is_dataclass = dataclasses.is_dataclass(leaf) and not isinstance(leaf, type | IndexedSlices)
    return is_dataclass and not hasattr(leaf, "shape")


def _register(kind: type) -> None:
    names = tuple(field.name for field in dataclasses.fields(kind))

    def take_apart(value: Any) -> tuple[tuple[Any, ...], None, tuple[str, ...]]:
        return tuple(getattr(value, name) for name in names), None, names

    def put_together(_: object, children: Iterable[Any]) -> Any:
        # Not through __init__: fields may have init=False, and __post_init__ may have effects.
        value: Any = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(value, name, child)
        return value

    with _registering:
        if kind not in _registered:
            optree.register_pytree_node(
                kind, take_apart, put_together, path_entry_type=optree.GetAttrEntry, namespace=_NAMESPACE
            )
            _registered.add(kind)
