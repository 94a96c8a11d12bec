"""Reading one leaf of a value: its kind, shape and dtype, agreed on by all replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from treefold.backends import ArrayBackend, backend_of
from treefold.errors import ArgumentError, MismatchError
from treefold.execution import Operand
from treefold.fold import Fold
from treefold.ops.entry import LeafForm, Part, at, check_taken, common_backend, is_shape, read_shape, shape_dtype
from treefold.plan.ir import Goal
from treefold.reduce_op import ReduceOp
from treefold.values import IndexedSlices

_NOTHING = LeafForm(0)
_ARRAY = LeafForm(1)


def read_folded_leaf(path: str, leaves: list[Any], fold: Fold | None) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be reduced: arrays, sparse rows, both, or None in every replica.

    Without ``fold``, some op must have a meaning for the dtype; that is what planning needs.

    Raises:
        MismatchError: the replicas disagree.
        DtypeError: the op has no meaning for the dtype.
        ArgumentError: a leaf is no array, or the op has no meaning for sparse rows.

    """
    if _all_none(path, leaves):
        return _NOTHING, []
    if fold is not None:  # else only shapes matter
        check_taken(path, leaves)
    sparse = [isinstance(leaf, IndexedSlices) for leaf in leaves]
    if not any(sparse):
        part = _dense_part(path, leaves)
        _check_dtype(fold, part)
        return _ARRAY, [part]
    if fold is not None and fold.op not in {ReduceOp.SUM, ReduceOp.MEAN}:
        raise ArgumentError.sparse_op(fold.op.name, at(path))
    _check_slices(path, leaves)
    if all(sparse):
        form, parts = _sparse_parts(path, leaves)
    else:
        form, parts = _ARRAY, [_dense_part(path, _made_dense(path, leaves))]
    _check_dtype(fold, parts[0])
    return form, parts


def read_copied_leaf(path: str, leaves: list[Any]) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be broadcast: one array of any dtype, sparse rows, or None."""
    [leaf] = leaves
    if leaf is None:
        return _NOTHING, []
    if not isinstance(leaf, IndexedSlices) and backend_of(leaf) is None:
        raise ArgumentError.not_a_value(leaf, f"tensor{at(path)}")
    check_taken(path, leaves, "tensor")
    if isinstance(leaf, IndexedSlices):
        _check_slices(path, leaves)
        values, indices = (_plain_part(path, [a], Goal.COPY) for a in (leaf.values, leaf.indices))
        return LeafForm(2, leaf.dense_shape), [values, indices]
    return _ARRAY, [_plain_part(path, leaves, Goal.COPY)]


def read_gathered_leaf(path: str, leaves: list[Any], axis: int) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be gathered along ``axis``: arrays whose shapes differ there only.

    The operand's arrays have that axis first, so that flat concatenation gathers.
    """
    if _all_none(path, leaves):
        return _NOTHING, []
    if any(isinstance(leaf, IndexedSlices) for leaf in leaves):
        raise ArgumentError.gather_sparse(at(path))
    check_taken(path, leaves)
    backend = common_backend(path, leaves)
    specs = [shape_dtype(backend, leaf) for leaf in leaves]
    rank = len(specs[0][0])
    if rank == 0:
        raise ArgumentError.gather_scalar(at(path))
    if not -rank <= axis < rank:
        raise ArgumentError.gather_axis(axis, at(path), rank)
    axis %= rank
    for replica, (shape, dtype) in enumerate(specs):
        if dtype != specs[0][1]:
            raise _mismatch(replica, path, (shape, dtype), specs[0], "dtype")
        if _without(shape, axis) != _without(specs[0][0], axis):
            first = f"{specs[0][1]} {specs[0][0]}"
            raise MismatchError.gather_shape(replica, at(path), f"{dtype} {shape}", first, axis)
    arrays = tuple(backend.moveaxis(leaf, axis, 0) if backend.owns(leaf) else leaf for leaf in leaves)
    shape = (sum(shape[axis] for shape, _ in specs), *_without(specs[0][0], axis))
    lengths = tuple(math.prod(shape) for shape, _ in specs)
    return _ARRAY, [Part(path, specs[0][1], Goal.GATHER, lengths, Operand(backend, arrays, shape))]


def _check_dtype(fold: Fold | None, part: Part) -> None:
    if fold is None:
        fold = Fold(ReduceOp.MAX if part.dtype == "bool" else ReduceOp.SUM)
    fold.check_dtype(part.dtype, at(part.path))


def _all_none(path: str, leaves: list[Any]) -> bool:
    missing = [leaf is None for leaf in leaves]
    if any(missing) and not all(missing):
        replica = missing.index(not missing[0])
        words = {True: "None", False: "a value"}
        raise MismatchError.leaf(replica, at(path), words[missing[replica]], words[missing[0]])
    return all(missing)


def _dense_part(path: str, leaves: Sequence[Any]) -> Part:
    return _plain_part(path, leaves, Goal.FOLD)


def _plain_part(path: str, leaves: Sequence[Any], goal: Goal) -> Part:
    backend = common_backend(path, leaves)
    shape, dtype = shape_dtype(backend, leaves[0])
    _check_agreement(path, backend, leaves, shape, dtype)
    length = math.prod(shape)
    return Part(path, dtype, goal, (length,) * len(leaves), Operand(backend, tuple(leaves), shape))


def _check_agreement(
    path: str, backend: ArrayBackend, leaves: Sequence[Any], shape: tuple[int, ...], dtype: str
) -> None:
    for replica, leaf in enumerate(leaves):
        found = shape_dtype(backend, leaf)
        if found != (shape, dtype):
            what = "shape" if found[0] != shape else "dtype"
            raise _mismatch(replica, path, found, (shape, dtype), what)


def _mismatch(
    replica: int, path: str, got: tuple[tuple[int, ...], str], first: tuple[tuple[int, ...], str], what: str
) -> MismatchError:
    return MismatchError.spec(replica, at(path), f"{got[1]} {got[0]}", f"{first[1]} {first[0]}", what)


def _sparse_parts(path: str, leaves: list[IndexedSlices]) -> tuple[LeafForm, list[Part]]:
    values, indices = [leaf.values for leaf in leaves], [leaf.indices for leaf in leaves]
    shapes = {read_shape(leaf.dense_shape): leaf.dense_shape for leaf in leaves if leaf.dense_shape is not None}
    first = next(iter(shapes), None)
    for replica, leaf in enumerate(leaves):
        if leaf.dense_shape is not None and read_shape(leaf.dense_shape) != first:
            raise MismatchError.dense_shape(replica, at(path), read_shape(leaf.dense_shape), first)
    form = LeafForm(2, next(iter(shapes.values()), None))
    return form, [_rows_part(path, values, Goal.ROWS), _rows_part(path, indices, Goal.GATHER)]


def _rows_part(path: str, arrays: list[Any], goal: Goal) -> Part:
    backend = common_backend(path, arrays)
    specs = [shape_dtype(backend, array) for array in arrays]
    for replica, (shape, dtype) in enumerate(specs):
        if dtype != specs[0][1]:
            raise _mismatch(replica, path, (shape, dtype), specs[0], "dtype")
        if shape[1:] != specs[0][0][1:]:
            raise _mismatch(replica, path, (shape, dtype), specs[0], "shape")
    shape = (sum(shape[0] for shape, _ in specs), *specs[0][0][1:])
    lengths = tuple(math.prod(shape) for shape, _ in specs)
    return Part(path, specs[0][1], goal, lengths, Operand(backend, tuple(arrays), shape))


def _check_slices(path: str, leaves: list[Any]) -> None:
    """Check each ``IndexedSlices`` by itself: its parts must fit."""
    for replica, leaf in enumerate(leaves):
        if not isinstance(leaf, IndexedSlices):
            continue
        backend = common_backend(path, [leaf.values])
        if (backend_of(leaf.indices) or backend) is not backend or not is_shape(leaf.indices):
            raise ArgumentError.slices_indices(replica, at(path), type(leaf.indices).__name__, ())
        (shape, _), (rows, kind) = (shape_dtype(backend, a) for a in (leaf.values, leaf.indices))
        if kind not in {"int32", "int64"} or len(rows) != 1:
            raise ArgumentError.slices_indices(replica, at(path), kind, rows)
        if not shape or shape[0] != rows[0]:
            raise ArgumentError.slices_rows(replica, at(path), shape, rows[0])
        if leaf.dense_shape is not None and read_shape(leaf.dense_shape)[1:] != shape[1:]:
            raise ArgumentError.slices_shape(replica, at(path), shape, read_shape(leaf.dense_shape))


def _made_dense(path: str, leaves: list[Any]) -> list[Any]:
    """Return the contributions with sparse ones made dense, each on its own device."""
    dense = []
    for replica, leaf in enumerate(leaves):
        if not isinstance(leaf, IndexedSlices):
            dense.append(leaf)
            continue
        if leaf.dense_shape is None:
            raise MismatchError.mixed_sparse(at(path))
        backend, shape = common_backend(path, [leaf.values]), read_shape(leaf.dense_shape)
        if shape_dtype(backend, leaf.indices)[0][0]:
            low, high = backend.index_bounds(leaf.indices)
            if low < 0 or high >= shape[0]:
                raise ArgumentError.slices_bounds(replica, at(path), low, high, shape[0])
        dense.append(backend.densify(leaf.values, leaf.indices, shape))
    return dense


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
