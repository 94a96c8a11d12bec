"""Validation of one leaf of a value: its kind, shape and dtype, agreed on by all replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treefold.backends import ArrayBackend
from treefold.calls.entry import LeafForm, Part, agreed_backend, at, check_refusals
from treefold.calls.reader import Brought, ReadArray, Slices, read_leaf, read_shape
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import counted
from treefold.execution import Operand
from treefold.fold import Fold
from treefold.plan.ir import Goal
from treefold.reduce_op import ReduceOp

_NOTHING = LeafForm(0)
_ARRAY = LeafForm(1)


def read_folded_leaf(path: str, leaves: list[Brought], fold: Fold | None) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be reduced: arrays, sparse rows, both, or None in every replica.

    Without ``fold``, for planning, the dtype must suit some op.

    Raises:
        MismatchError: The replicas disagree.
        DtypeError: The op has no meaning for the dtype.
        ArgumentError: A leaf is not an array, or the op has no meaning for sparse rows.

    """
    if _all_none(path, leaves):
        return _NOTHING, []
    check_refusals(path, leaves)
    dense, slices = _sorted(leaves)
    if not slices:
        part = _plain_part(path, dense, Goal.FOLD)
        _check_dtype(fold, part)
        return _ARRAY, [part]
    if fold is not None and fold.op not in {ReduceOp.SUM, ReduceOp.MEAN}:
        raise ArgumentError(
            f"{fold.op.name} of IndexedSlices{at(path)} is not defined. Rows take SUM or MEAN; make them dense for "
            f"{fold.op.name}."
        )
    _check_slices(path, leaves)
    if not dense:
        if fold is not None and fold.weights is not None:
            raise ArgumentError(
                f"weights do not go with IndexedSlices{at(path)}: their rows are laid behind each other, and none is "
                "added. Multiply each replica's rows by its share first, or make one of the values dense."
            )
        form, parts = _sparse_parts(path, slices)
    else:
        form, parts = _ARRAY, [_plain_part(path, _made_dense(path, leaves), Goal.FOLD)]
    _check_dtype(fold, parts[0])
    return form, parts


def read_copied_leaf(path: str, leaves: list[Brought]) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be broadcast: one array of any dtype, sparse rows, or None."""
    [leaf] = leaves
    if leaf is None:
        return _NOTHING, []
    check_refusals(path, leaves, "The value")
    if isinstance(leaf, ReadArray) and leaf.backend is None:
        raise ArgumentError.not_a_value(leaf.array, f"The value{at(path)}")
    if isinstance(leaf, Slices):
        _check_slices(path, leaves)
        values, indices = (_plain_part(path, [part], Goal.COPY) for part in (leaf.values, leaf.indices))
        return LeafForm(2, leaf.slices.dense_shape), [values, indices]
    return _ARRAY, [_plain_part(path, [leaf], Goal.COPY)]


def read_gathered_leaf(path: str, leaves: list[Brought], axis: int) -> tuple[LeafForm, list[Part]]:
    """Read a leaf that is to be gathered along ``axis``: their shapes may differ on that axis only.

    The operand's arrays have that axis first, so that concatenating them, flattened, gathers.
    """
    if _all_none(path, leaves):
        return _NOTHING, []
    dense, slices = _sorted(leaves)
    if slices:
        raise ArgumentError.gather_sparse(at(path))
    check_refusals(path, leaves)
    backend, first = agreed_backend(path, dense), dense[0]
    rank = len(first.shape)
    if rank == 0:
        raise ArgumentError(f"gather got scalars{at(path)}, which have no axis to lie along. Reshape each to (1,).")
    if not -rank <= axis < rank:
        raise ArgumentError.gather_axis(axis, at(path), rank)
    axis %= rank
    for replica, leaf in enumerate(dense):
        if leaf.dtype != first.dtype:
            raise _mismatch(replica, path, leaf, first, "dtype")
        if _without(leaf.shape, axis) != _without(first.shape, axis):
            words = f"{first.dtype} {first.shape}"
            raise MismatchError(
                f"Replica {replica} has {leaf.dtype} {leaf.shape}{at(path)} where replica 0 has {words}. "
                f"Shapes may differ along axis {axis} only; reshape one of them."
            )
    arrays = tuple(backend.moveaxis(leaf.array, axis, 0) if backend.owns(leaf.array) else leaf.array for leaf in dense)
    operand = Operand(backend, arrays, _joined_shape(dense, axis))
    return _ARRAY, [Part(path, first.dtype, Goal.GATHER, _lengths(dense), operand, _are_in_host_memory(dense))]


def _check_dtype(fold: Fold | None, part: Part) -> None:
    if fold is None:
        fold = Fold(ReduceOp.MAX if part.dtype == "bool" else ReduceOp.SUM)
    fold.check_dtype(part.dtype, at(part.path))


def _all_none(path: str, leaves: Sequence[Brought]) -> bool:
    missing = [leaf is None for leaf in leaves]
    if any(missing) and not all(missing):
        replica = missing.index(not missing[0])
        words = {True: "None", False: "a value"}
        raise MismatchError.leaf(replica, at(path), words[missing[replica]], words[missing[0]])
    return all(missing)


def _sorted(leaves: Sequence[Brought]) -> tuple[list[ReadArray], list[Slices]]:
    """Return the arrays, and the sparse rows, each in replica order."""
    return [one for one in leaves if isinstance(one, ReadArray)], [one for one in leaves if isinstance(one, Slices)]


def _plain_part(path: str, leaves: Sequence[ReadArray], goal: Goal) -> Part:
    backend, first = agreed_backend(path, leaves), leaves[0]
    for replica, leaf in enumerate(leaves):
        if (leaf.shape, leaf.dtype) != (first.shape, first.dtype):
            raise _mismatch(replica, path, leaf, first, "shape" if leaf.shape != first.shape else "dtype")
    return _part(path, backend, leaves, goal, first.shape)


def _part(path: str, backend: ArrayBackend, leaves: Sequence[ReadArray], goal: Goal, shape: tuple[int, ...]) -> Part:
    operand = Operand(backend, tuple(leaf.array for leaf in leaves), shape, tuple(leaf.view for leaf in leaves))
    return Part(path, leaves[0].dtype, goal, _lengths(leaves), operand, _are_in_host_memory(leaves))


def _lengths(leaves: Sequence[ReadArray]) -> tuple[int, ...]:
    return tuple(math.prod(leaf.shape) for leaf in leaves)


def _are_in_host_memory(leaves: Sequence[ReadArray]) -> bool:
    return all(leaf.is_in_host_memory for leaf in leaves)


def _joined_shape(leaves: Sequence[ReadArray], axis: int) -> tuple[int, ...]:
    return (sum(leaf.shape[axis] for leaf in leaves), *_without(leaves[0].shape, axis))


def _mismatch(replica: int, path: str, got: ReadArray, first: ReadArray, what: str) -> MismatchError:
    return MismatchError.spec(replica, at(path), f"{got.dtype} {got.shape}", f"{first.dtype} {first.shape}", what)


def _sparse_parts(path: str, leaves: Sequence[Slices]) -> tuple[LeafForm, list[Part]]:
    given = [leaf.slices.dense_shape for leaf in leaves]
    shapes = {read_shape(shape): shape for shape in given if shape is not None}
    first = next(iter(shapes), None)
    for replica, shape in enumerate(given):
        if shape is not None and read_shape(shape) != first:
            raise MismatchError.dense_shape(replica, at(path), read_shape(shape), first)
    form = LeafForm(2, next(iter(shapes.values()), None))
    values, indices = [leaf.values for leaf in leaves], [leaf.indices for leaf in leaves]
    return form, [_rows_part(path, values, Goal.ROWS), _rows_part(path, indices, Goal.GATHER)]


def _rows_part(path: str, leaves: Sequence[ReadArray], goal: Goal) -> Part:
    backend, first = agreed_backend(path, leaves), leaves[0]
    for replica, leaf in enumerate(leaves):
        if leaf.dtype != first.dtype:
            raise _mismatch(replica, path, leaf, first, "dtype")
        if leaf.shape[1:] != first.shape[1:]:
            raise _mismatch(replica, path, leaf, first, "shape")
    return _part(path, backend, leaves, goal, _joined_shape(leaves, 0))


def _check_slices(path: str, leaves: Sequence[Brought]) -> None:
    """Check that the parts of each ``IndexedSlices`` fit each other."""
    for replica, leaf in enumerate(leaves):
        if not isinstance(leaf, Slices):
            continue
        backend, values, indices = agreed_backend(path, [leaf.values]), leaf.values, leaf.indices
        is_foreign = indices.backend is None or (indices.backend is not backend and indices.backend.owns(indices.array))
        if is_foreign or indices.dtype not in {"int32", "int64"} or len(indices.shape) != 1:
            form = f"{type(indices.array).__name__} ()" if is_foreign else f"{indices.dtype} {indices.shape}"
            raise ArgumentError.slices(
                replica, at(path), f"indices {form}", "Indices must be int32 or int64, of one axis."
            )
        if not values.shape or values.shape[0] != indices.shape[0]:
            got = f"values {values.shape} for {counted(indices.shape[0], 'index', 'indices')}"
            raise ArgumentError.slices(replica, at(path), got, "Bring one row of values for each index.")
        dense_shape = leaf.slices.dense_shape
        if dense_shape is not None and read_shape(dense_shape)[1:] != values.shape[1:]:
            got = f"values {values.shape} for dense_shape {read_shape(dense_shape)}"
            raise ArgumentError.slices(replica, at(path), got, "All axes but the first must agree.")


def _made_dense(path: str, leaves: Sequence[Brought]) -> list[ReadArray]:
    """Return the contributions with sparse ones made dense, each on its own device."""
    dense = []
    for replica, leaf in enumerate(leaves):
        if isinstance(leaf, ReadArray):
            dense.append(leaf)
        if not isinstance(leaf, Slices):
            continue
        if leaf.slices.dense_shape is None:
            raise MismatchError(
                f"Some replicas bring an array and others IndexedSlices without dense_shape{at(path)}. "
                f"Give every IndexedSlices its dense_shape, so that the rows can be added to the array."
            )
        backend, shape = agreed_backend(path, [leaf.values]), read_shape(leaf.slices.dense_shape)
        if leaf.indices.shape[0]:
            low, high = backend.index_bounds(leaf.indices.array)
            if low < 0 or high >= shape[0]:
                allowed = f"Its dense_shape allows 0 to {shape[0] - 1}."
                raise ArgumentError.slices(replica, at(path), f"indices from {low} to {high}", allowed)
        made = read_leaf(backend.densify(leaf.values.array, leaf.indices.array, shape))
        if isinstance(made, ReadArray):
            dense.append(made)
    return dense


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
