"""Averages of models in memory: pytrees of arrays of any framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from treefold.averaging.arithmetic import nearest_whole
from treefold.backends import ArrayBackend, HostArray, backend_of
from treefold.calls.arguments import read_weights
from treefold.dtypes import INTEGERS
from treefold.errors import ArgumentError
from treefold.ops import ReductionToOneDevice
from treefold.reduce_op import ReduceOp
from treefold.values import PerReplica, Weights
from treefold.values.structure import flatten, leaf_paths, unflatten

T = TypeVar("T")

# It holds nothing but plans it has made.
_OPS = ReductionToOneDevice()
#: Replaces leaves of other kinds, so that errors name the right place in the tree.
_NOTHING = np.zeros((), np.float32)


def average(trees: Iterable[T], weights: Weights | None = None) -> T:
    """Return the average of pytrees: models' parameters, as dictionaries, lists and dataclasses of arrays.

    Floating-point and complex leaves get the (weighted) mean, the exact value rounded once, on the device of the first
    tree. Integers keep their dtype, and get the whole number nearest to the exact mean, halves to even. Flags (bool)
    and values that are no numbers must be equal in all trees.

    Args:
        trees: Trees of one structure, with equal shapes and dtypes; at least one.
        weights: One number ≥ 0 per tree, such as the number of examples that each model has seen. All count alike by
            default.

    Returns:
        A new tree of the structure of the first.

    Raises:
        ArgumentError: No trees; weights that are no numbers; leaves that have no mean and are not equal.
        MismatchError: Structures, shapes or dtypes that differ, naming the place.

    >>> import numpy as np
    >>> average([{"w": np.array([1.0]), "step": 10}, {"w": np.array([4.0]), "step": 13}], weights=[1, 2])
    {'w': array([3.]), 'step': 12}
    """
    is_one = isinstance(trees, Mapping | AbstractSet | str | bytes) or backend_of(trees) is not None
    if is_one or not isinstance(trees, Iterable):
        raise ArgumentError.trees(trees)
    trees = list(trees)
    if not trees:
        raise ArgumentError.trees(trees)
    flat = [flatten(tree) for tree in trees]
    kinds = [_kind_of(leaf) for leaf in flat[0][0]]
    floats = PerReplica([_with_only(leaves, spec, kinds, "float") for leaves, spec in flat])
    mean = _OPS.reduce("mean", floats, floats.devices[0], weights=weights)[0]
    leaves, _ = flatten(mean)
    rows = list(zip(*(leaves for leaves, _ in flat), strict=True))
    if "whole" in kinds:  # this compares shapes and dtypes
        whole = PerReplica([_with_only(leaves, spec, kinds, "whole") for leaves, spec in flat])
        _OPS.reduce("max", whole, whole.devices[0])
    shares = read_weights(weights, ReduceOp.MEAN) or (1,) * len(trees)
    for index, (kind, path) in enumerate(zip(kinds, leaf_paths(flat[0][1]), strict=True)):
        if kind == "whole":
            leaves[index] = _nearest(rows[index], shares, path)
        elif kind == "other":
            leaves[index] = _equal(rows[index], path)
        elif type(rows[index][0]) is float:
            leaves[index] = float(leaves[index])
    result: T = unflatten(flat[0][1], leaves)
    return result


def _kind_of(leaf: Any) -> str:
    """Return how a leaf is averaged: as "float", as "whole" (integers and flags), or not at all ("other")."""
    if isinstance(leaf, bool | int):
        return "whole"
    if isinstance(leaf, float | complex):
        return "float"
    backend = backend_of(leaf)
    if backend is None:
        return "other"
    return "whole" if backend.refusal(leaf) is None and backend.shape_dtype(leaf)[1] in {*INTEGERS, "bool"} else "float"


def _with_only(leaves: Sequence[Any], spec: Any, kinds: Sequence[str], kind: str) -> Any:
    """Return a tree in which other kinds of leaves are replaced; its structure stays, so that errors can name it."""
    if len(leaves) != len(kinds):
        return unflatten(spec, [leaf if _kind_of(leaf) == kind else _NOTHING for leaf in leaves])
    return unflatten(spec, [leaf if one == kind else _NOTHING for leaf, one in zip(leaves, kinds, strict=True)])


def _nearest(row: Sequence[Any], shares: Sequence[int], path: str) -> Any:
    """Return the whole number nearest to the mean, or the flag that all trees agree on, in the first leaf's type."""
    first = row[0]
    if isinstance(first, bool):
        return _equal(row, path)
    if isinstance(first, int):
        return round(Fraction(sum(share * leaf for share, leaf in zip(shares, row, strict=True)), sum(shares)))
    backend = backend_of(first)
    assert backend is not None  # noqa: S101 - for mypy: its kind was found so
    hosts = [_on_host(backend_of(leaf) or backend, leaf) for leaf in row]
    chosen = [(host, share) for host, share in zip(hosts, shares, strict=True) if share]
    if hosts[0].dtype == np.bool_:
        if any(not np.array_equal(host, hosts[0]) for host in hosts):
            raise ArgumentError.flags(path)
        mean: Any = hosts[0]
    else:
        mean = nearest_whole([host for host, _ in chosen], [share for _, share in chosen], sum(shares))
    fresh = np.array(mean, order="C")
    device = backend.device_of(first)
    if device is None:
        return backend.from_host(fresh, "cpu:0")
    return backend.copy_to(backend.from_host(fresh, "cpu:0"), device)


def _on_host(backend: ArrayBackend, leaf: Any) -> HostArray:
    view = backend.host_view(leaf)
    if view is None:
        view = backend.host_view(backend.copy_to(leaf, "cpu:0"))
    return np.asarray(view)


def _equal(row: Sequence[Any], path: str) -> Any:
    first, *others = row
    if any(type(other) is not type(first) or other != first for other in others):
        raise ArgumentError.flags(path)
    return first
