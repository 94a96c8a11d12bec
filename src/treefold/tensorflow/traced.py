"""Reductions inside ``tf.function``: one pass if all values are in host memory, else the plan as TensorFlow ops.

In host memory that pass is an operation of treefold's own, or one call into Python. Everything known while tracing is
decided then, so both go straight to the kernel when the graph runs.

Small values are packed in both cases: each replica concatenates its tensors on its device, and every destination splits
the result. A tensor that moves to another device costs two operations, one to send and one to receive, whatever its
size. For a small gradient, they take most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import treefold.ops
from treefold.backends import HostArray
from treefold.backends.tensorflow_calls import call_numpy, runs_on_host
from treefold.calls.arguments import check_honoured
from treefold.calls.entry import check_devices, common_backend
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.execution import HOST
from treefold.execution.host_fold import Job, fold_batch
from treefold.execution.native import new_result
from treefold.execution.tensorflow_graphs import folded, serves
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.ops.planning import ReductionTerms
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.tensorflow.values import TensorPair, copied, from_treefold, is_alike, tensors_of, to_treefold
from treefold.values import IndexedSlices, PerReplica

#: A larger value is sent as it is: a copy into the pack and one out of it would cost more than sending it.
MOST_BYTES = 1 << 15
#: The functions that graphs call, by everything that they depend on, so that traces share them.
#: A copied or pickled cache is empty: TensorFlow's names for functions mean nothing in another process.
Callbacks: TypeAlias = BoundedCache[Hashable, Callable[..., list[Any]]]
MAX_CALLBACKS = 64


def reduced(
    ops: treefold.ops.CrossDeviceOps,
    op: ReduceOp,
    pairs: Sequence[TensorPair],
    options: CommunicationOptions | None,
    callbacks: Callbacks,
) -> list[list[Any]]:
    """Return, for each pair, the result on each of its destinations, as symbolic tensors.

    Raises:
        TreefoldError: while tracing, for errors that are known then; others are raised when the graph runs.

    """
    if not pairs:
        return []
    terms = ops.terms(op)
    for pair in pairs:
        _check(pair, terms)
    if terms.fold.accumulation_fn is None and _are_on_host(pairs, terms.own_devices):
        if options is not None:
            check_honoured(options, HOST)
        return HostReduction(ops, terms.fold, options, callbacks).traced(pairs)
    return _as_ops(ops, terms, pairs, options)


def gathered(pair: TensorPair, axis: int) -> list[Any]:
    """Return the components, concatenated along ``axis`` by TensorFlow (also eagerly), on every destination."""
    if any(isinstance(component, tf.IndexedSlices) for component in pair.components):
        raise ArgumentError.gather_sparse(where="")
    with tf.device(pair.targets[0]):
        return copied(tf.concat(pair.components, axis), pair.targets)


def _check(pair: TensorPair, terms: ReductionTerms) -> None:
    backend = common_backend("", [tensors_of(component)[0] for component in pair.components])
    if not pair.is_in_cluster:
        check_devices(backend, (*pair.places, *pair.targets, *terms.own_devices))
    terms.fold.check_dtype(pair.dtype)


def _are_on_host(pairs: Sequence[TensorPair], own: Sequence[str]) -> bool:
    """Tell whether everything is on CPU devices of this process, in a graph that only this process runs."""
    if any(pair.is_in_cluster for pair in pairs):
        return False
    named = {*own, *(device for pair in pairs for device in (*pair.places, *pair.targets))}
    return all(device_type(device) == "cpu" for device in named) and runs_on_host()


def _as_ops(
    ops: treefold.ops.CrossDeviceOps,
    terms: ReductionTerms,
    pairs: Sequence[TensorPair],
    options: CommunicationOptions | None,
) -> list[list[Any]]:
    """Run the plan as TensorFlow ops, for values of known shapes on this process's devices; others meet on one device.

    Unknown lengths cannot be planned, and a plan lies within one process.
    """
    placed = [_placed(pair) for pair in pairs]
    results: list[list[Any]] = [[] for _ in placed]
    planned = [index for index, pair in enumerate(placed) if _is_planned(pair)]
    given = []
    for index in planned:
        pair = placed[index]
        value = PerReplica([to_treefold(component) for component in pair.components], pair.places)
        given.append((value, pair.targets))
    for index, result in zip(planned, ops.batch_reduce(terms.fold.op, given, options), strict=True):
        results[index] = [from_treefold(component, placed[index].components[0]) for component in result]
    for index, pair in enumerate(placed):
        if index not in planned:
            results[index] = _on_one_device(pair, terms.fold, terms.root(pair.targets))
    return results


def _placed(pair: TensorPair) -> TensorPair:
    """Return the pair with every tensor copied to its device, if tracing left the device open."""
    components = tuple(
        component if component.device else copied(component, [place])[0]
        for component, place in zip(pair.components, pair.places, strict=True)
    )
    return TensorPair(components, pair.places, pair.targets)


def _is_planned(pair: TensorPair) -> bool:
    is_known = not pair.is_in_cluster and all(tensor.shape.is_fully_defined() for tensor in pair.tensors())
    return is_known and (
        pair.is_sparse or not any(isinstance(component, tf.IndexedSlices) for component in pair.components)
    )


def _on_one_device(pair: TensorPair, fold: Fold, root: str) -> list[Any]:
    """Reduce on ``root``, whatever the shapes will be, and copy the result to the destinations."""
    with tf.device(root):
        if pair.is_sparse:
            values = tf.concat([component.values for component in pair.components], 0)
            if fold.op is ReduceOp.MEAN:
                count, dtype = len(pair.components), fold.result_dtype(pair.dtype)
                flat = common_backend("", [values]).scale(tf.reshape(values, [-1]), count, dtype)
                values = tf.reshape(flat, tf.shape(values))
            indices = tf.concat([component.indices for component in pair.components], 0)
            return copied(tf.IndexedSlices(values, indices, pair.components[0].dense_shape), pair.targets)
        dense = [tf.identity(tf.convert_to_tensor(component)) for component in pair.components]
        same = [tf.debugging.assert_equal(tf.shape(one), tf.shape(dense[0])) for one in dense[1:]]
        with tf.control_dependencies([check for check in same if check is not None]):
            result = _folded(dense, fold)
        result.set_shape(dense[0].shape)
    return copied(result, pair.targets)


def _folded(dense: list[Any], fold: Fold) -> Any:
    dtype, count = dense[0].dtype.name, len(dense)
    backend = common_backend("", dense)
    if fold.accumulation_fn is not None:
        made = tf.convert_to_tensor(fold.accumulation_fn(list(dense)))
        is_mean = fold.op is ReduceOp.MEAN
        flat = tf.reshape(made, [-1])
        return tf.reshape(backend.scale(flat, count, fold.result_dtype(dtype)) if is_mean else flat, tf.shape(dense[0]))
    flat = [tf.reshape(array, [-1]) for array in dense]
    made = backend.combine(flat, fold, dtype=dtype, divisor=count, result=fold.result_dtype(dtype))
    return tf.reshape(made, tf.shape(dense[0]))


@dataclass(frozen=True)
class HostReduction:
    """Reduces values in host memory by the arithmetic ``fold`` of ``ops``, under the options of the call."""

    ops: treefold.ops.CrossDeviceOps
    fold: Fold
    options: CommunicationOptions | None
    callbacks: Callbacks

    def traced(self, pairs: Sequence[TensorPair]) -> list[list[Any]]:
        """Return, for each pair, the result on each of its destinations, as symbolic tensors."""
        results: list[list[Any]] = [[] for _ in pairs]
        several = []
        for index, pair in enumerate(pairs):
            if self._is_the_result(pair):
                results[index] = copied(pair.components[0], pair.targets)
            else:
                several.append(index)
        for index, result in zip(several, self._reduced([pairs[index] for index in several]), strict=True):
            results[index] = result
        return results

    def _is_the_result(self, pair: TensorPair) -> bool:
        """Tell whether there is one contribution, which is the result of any op."""
        return len(pair.components) == 1 and is_alike(pair) and self.fold.result_dtype(pair.dtype) == pair.dtype

    def _reduced(self, pairs: Sequence[TensorPair]) -> list[list[Any]]:
        groups = grouped(pairs, MOST_BYTES)
        members = [[pairs[index] for index in group] for group in groups]
        loads = [packed(group) if len(group) > 1 else group[0] for group in members]
        results: list[list[Any]] = [[] for _ in pairs]
        for indices, group, load, result in zip(groups, members, loads, self._results_of(loads), strict=True):
            parts = [copied(result, load.targets)] if load is group[0] else unpacked(result, group)
            for index, part in zip(indices, parts, strict=True):
                results[index] = part
        return results

    def _results_of(self, pairs: Sequence[TensorPair]) -> list[Any]:
        """Return each result on one device. Values that the operation cannot fold are folded in one call to Python."""
        made = [self._by_operation(pair) for pair in pairs]
        left = [index for index, result in enumerate(made) if result is None]
        called = self._call([pairs[index] for index in left]) if left else []
        for index, result in zip(left, called, strict=True):
            made[index] = result
        return made

    def _by_operation(self, pair: TensorPair) -> Any | None:
        if not (is_alike(pair) and serves(pair.dtype, self.fold)):
            return None
        return folded(pair.components, self.fold, pair.dtype, pair.targets[0])

    def _call(self, pairs: Sequence[TensorPair]) -> list[Any]:
        """Reduce by one call into Python, which reads the graph's tensors without a copy, each to one device."""
        layouts = tuple(_ArraysOfValue.of(pair) for pair in pairs)
        types: list[Any] = []
        for pair in pairs:
            types.append(tf.as_dtype(self.fold.result_dtype(pair.dtype)))
            types += [pair.components[0].indices.dtype] if pair.is_sparse else []
        flat = [tensor for pair in pairs for tensor in pair.tensors()]
        key = (self.fold, layouts, self.options)
        make = _reduction_of_arrays
        function = self.callbacks.made(key, lambda: make(self.ops, self.fold, layouts, self.options))
        remaining = iter(call_numpy(function, flat, types))
        return [_with_shape(pair, remaining) for pair in pairs]


@dataclass(frozen=True)
class _ArraysOfValue:
    """The arrays of which one value of a call is made.

    Its result is wanted on one device. As tensors never change, that one serves all destinations.

    Attributes:
        counts: The number of arrays of each contribution.
        is_alike: True if all contributions are known to have one shape and dtype.

    """

    places: tuple[str, ...]
    target: str
    counts: tuple[int, ...]
    is_alike: bool

    @classmethod
    def of(cls, pair: TensorPair) -> _ArraysOfValue:
        counts = tuple(len(tensors_of(component)) for component in pair.components)
        return cls(pair.places, pair.targets[0], counts, is_alike(pair))


def _reduction_of_arrays(
    ops: treefold.ops.CrossDeviceOps,
    fold: Fold,
    layouts: Sequence[_ArraysOfValue],
    options: CommunicationOptions | None,
) -> Callable[..., list[Any]]:
    """Return a function that takes the arrays of all values in order, and returns the arrays of their results."""

    def reduce_arrays(*arrays: Any) -> list[Any]:
        remaining = iter(arrays)
        alike, others = [], []
        for layout in layouts:
            parts = [[np.asarray(next(remaining)) for _ in range(count)] for count in layout.counts]
            if layout.is_alike:
                alike.append([array for [array] in parts])
            else:
                components = [part[0] if len(part) == 1 else IndexedSlices(*part) for part in parts]
                others.append((PerReplica(components, layout.places), layout.target))
        # Values that may still be refused come first.
        reduced = iter([result[0] for result in ops.batch_reduce(fold.op, others, options)])
        made = iter(_fold_arrays(alike, fold))
        results = [next(made if layout.is_alike else reduced) for layout in layouts]
        return [a for one in results for a in ([one.values, one.indices] if isinstance(one, IndexedSlices) else [one])]

    return reduce_arrays


def _fold_arrays(values: Sequence[Sequence[HostArray]], fold: Fold) -> list[HostArray]:
    """Return the folds of values with contributions that agree. TensorFlow adopts the memory of large ones."""
    jobs = []
    for sources in values:
        dtype = sources[0].dtype.name
        target = new_result(sources[0].shape, np.dtype(fold.result_dtype(dtype)))
        jobs.append(Job(dtype, sources, [target]))
    fold_batch(jobs, fold)
    return [job.targets[0] for job in jobs]


def _with_shape(pair: TensorPair, remaining: Any) -> Any:
    """Set the known part of a result's shape, which a call into Python loses, and return the result."""
    first = pair.components[0]
    if pair.is_sparse:
        values, indices = next(remaining), next(remaining)
        rows = _sum_or_none([component.values.shape[:1] for component in pair.components])
        values.set_shape(tf.TensorShape([rows]).concatenate(first.values.shape[1:]))
        indices.set_shape([rows])
        return tf.IndexedSlices(values, indices, first.dense_shape)
    result = next(remaining)
    for component in pair.components:
        result.set_shape(component.shape)
    return result


def _sum_or_none(lengths: Sequence[Any]) -> int | None:
    """Return the sum of 1-d shapes' lengths, or None if one is unknown."""
    return sum(shape[0] for shape in lengths) if all(shape.is_fully_defined() for shape in lengths) else None


def grouped(pairs: Sequence[TensorPair], most_bytes: int) -> list[list[int]]:
    """Return the indices of pairs that are packed together, in order; values above ``most_bytes`` stay alone."""
    groups: dict[object, list[int]] = {}
    for index, pair in enumerate(pairs):
        is_small = is_alike(pair) and pair.nbytes <= most_bytes
        key = (pair.dtype, pair.places, pair.targets) if is_small else index
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def packed(pairs: Sequence[TensorPair]) -> TensorPair:
    """Return one flat value that holds several values of the same dtype and devices."""
    first = pairs[0]
    components = []
    for replica, place in enumerate(first.places):
        with tf.device(place):
            flat = [_reshaped(pair.components[replica], [-1]) for pair in pairs]
            components.append(flat[0] if len(flat) == 1 else tf.concat(flat, 0))
    return TensorPair(tuple(components), first.places, first.targets)


def unpacked(result: Any, pairs: Sequence[TensorPair]) -> list[list[Any]]:
    """Return, for each of the packed pairs, its part of their result on each destination."""
    shapes = [pair.components[0].shape for pair in pairs]
    parts: list[list[Any]] = [[] for _ in pairs]
    for target in pairs[0].targets:
        with tf.device(target):
            flat = (
                [tf.identity(result)] if len(pairs) == 1 else tf.split(result, [math.prod(shape) for shape in shapes])
            )
            for part, one, shape in zip(parts, flat, shapes, strict=True):
                part.append(_reshaped(one, shape))
    return parts


def _reshaped(flat: Any, shape: Sequence[int]) -> Any:
    return flat if len(flat.shape) == len(shape) == 1 else tf.reshape(flat, shape)
