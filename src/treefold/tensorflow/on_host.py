"""Reductions of values in host memory inside ``tf.function``: by operations of their own, or by one call into Python.

What is known of the values while tracing need not be found out when the graph runs, so both go straight to the kernel.
Small values are packed either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import treefold.ops
from treefold.backends import HostArray
from treefold.execution.host_fold import Job, fold_batch
from treefold.execution.native import new_result
from treefold.execution.tensorflow_graphs import folded, serves
from treefold.fold import Fold
from treefold.options import CommunicationOptions
from treefold.tensorflow.callbacks import Callbacks
from treefold.tensorflow.packing import MOST_BYTES, grouped, packed, unpacked
from treefold.tensorflow.values import Pair, copied, is_alike, tensors_of
from treefold.values import IndexedSlices, PerReplica


@dataclass(frozen=True)
class HostReduction:
    """A reduction of values in host memory: ``ops``, whose arithmetic is ``fold``, and the options of the call."""

    ops: treefold.ops.CrossDeviceOps
    fold: Fold
    options: CommunicationOptions | None
    callbacks: Callbacks

    def traced(self, pairs: Sequence[Pair]) -> list[list[Any]]:
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

    def _is_the_result(self, pair: Pair) -> bool:
        """Tell whether the only contribution is the result, whatever the op."""
        return len(pair.components) == 1 and is_alike(pair) and self.fold.result_dtype(pair.dtype) == pair.dtype

    def _reduced(self, pairs: Sequence[Pair]) -> list[list[Any]]:
        groups = grouped(pairs, MOST_BYTES)
        members = [[pairs[index] for index in group] for group in groups]
        loads = [packed(group) if len(group) > 1 else group[0] for group in members]
        results: list[list[Any]] = [[] for _ in pairs]
        for indices, group, load, result in zip(groups, members, loads, self._results_of(loads), strict=True):
            parts = [copied(result, load.targets)] if load is group[0] else unpacked(result, group)
            for index, part in zip(indices, parts, strict=True):
                results[index] = part
        return results

    def _results_of(self, pairs: Sequence[Pair]) -> list[Any]:
        """Return each result on one device; what no operation folds is folded by one call."""
        made = [self._by_operation(pair) for pair in pairs]
        left = [index for index, result in enumerate(made) if result is None]
        called = self._call([pairs[index] for index in left]) if left else []
        for index, result in zip(left, called, strict=True):
            made[index] = result
        return made

    def _by_operation(self, pair: Pair) -> Any | None:
        if not (is_alike(pair) and serves(pair.dtype, self.fold)):
            return None
        return folded(pair.components, self.fold, pair.dtype, pair.targets[0])

    def _call(self, pairs: Sequence[Pair]) -> list[Any]:
        """Reduce by one call into Python, which reads the graph's tensors as they lie; each result is on one device."""
        layouts = tuple(_Layout.of(pair) for pair in pairs)
        types: list[Any] = []
        for pair in pairs:
            types.append(tf.as_dtype(self.fold.result_dtype(pair.dtype)))
            types += [pair.components[0].indices.dtype] if pair.is_sparse else []
        flat = [tensor for pair in pairs for tensor in pair.tensors()]
        key = (self.fold, layouts, self.options)
        function = _reduction_of_arrays
        made = self.callbacks.call(key, lambda: function(self.ops, self.fold, layouts, self.options), flat, types)
        remaining = iter(made)
        return [_with_shape(pair, remaining) for pair in pairs]


@dataclass(frozen=True)
class _Layout:
    """Of which arrays a value of a call is made.

    ``counts``: of how many each contribution is; ``is_alike``: whether all are known to be of one shape and dtype.
    The result is wanted on one device: one serves all, as tensors never change.
    """

    places: tuple[str, ...]
    target: str
    counts: tuple[int, ...]
    is_alike: bool

    @classmethod
    def of(cls, pair: Pair) -> _Layout:
        counts = tuple(len(tensors_of(component)) for component in pair.components)
        return cls(pair.places, pair.targets[0], counts, is_alike(pair))


def _reduction_of_arrays(
    ops: treefold.ops.CrossDeviceOps, fold: Fold, layouts: Sequence[_Layout], options: CommunicationOptions | None
) -> Callable[..., list[Any]]:
    """Return a function of the arrays of all values in order, which returns those of their results."""

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
        # First those that may still be refused.
        reduced = iter([result[0] for result in ops.batch_reduce(fold.op, others, options)])
        made = iter(_fold_arrays(alike, fold))
        results = [next(made if layout.is_alike else reduced) for layout in layouts]
        return [a for one in results for a in ([one.values, one.indices] if isinstance(one, IndexedSlices) else [one])]

    return reduce_arrays


def _fold_arrays(values: Sequence[Sequence[HostArray]], fold: Fold) -> list[HostArray]:
    """Return the folds of values whose contributions agree, in memory that TensorFlow adopts where it is large."""
    jobs = []
    for sources in values:
        dtype = sources[0].dtype.name
        target = new_result(sources[0].shape, np.dtype(fold.result_dtype(dtype)))
        jobs.append(Job(dtype, sources, [target]))
    fold_batch(jobs, fold)
    return [job.targets[0] for job in jobs]


def _with_shape(pair: Pair, remaining: Any) -> Any:
    """Return a result with what is known of its shape, which a call into Python loses."""
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
    """Return the sum of 1-d shapes' lengths, None if one is not known."""
    return sum(shape[0] for shape in lengths) if all(shape.is_fully_defined() for shape in lengths) else None
