"""Reductions of values in host memory inside ``tf.function``: small batches as operations, all others by one call.

Small values are packed either way. What is known of the values while tracing need not be found out when the graph runs,
so the call goes straight to the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import treefold.ops
from treefold.backends import HostArray
from treefold.dtypes import itemsize
from treefold.execution.kernel import Job, fold_batch
from treefold.execution.native import new_result
from treefold.fold import Fold
from treefold.options import CommunicationOptions
from treefold.tensorflow.callbacks import Callbacks
from treefold.tensorflow.in_graph import folded, is_foldable
from treefold.tensorflow.packing import grouped, packed, unpacked
from treefold.tensorflow.values import Pair, copied, is_alike, tensors_of
from treefold.values import IndexedSlices, PerReplica

# Up to so many bytes of contributions operations take less time than the call: ADR 36.
_MOST_BYTES_IN_GRAPH = 1 << 16


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
        stays = self._stays([pairs[index] for index in several])
        groups = [[several[index] for index in group] for group in grouped([pairs[index] for index in several])]
        members = [[pairs[index] for index in group] for group in groups]
        loads = [packed(one) if stays or len(one) > 1 else one[0] for one in members]
        made = [folded(load, self.fold, self._call_for_one) for load in loads] if stays else self._call(loads)
        for group, one, load, result in zip(groups, members, loads, made, strict=True):
            parts = unpacked(result, one) if load is not one[0] else [copied(result, load.targets)]
            for index, part in zip(group, parts, strict=True):
                results[index] = part
        return results

    def _is_the_result(self, pair: Pair) -> bool:
        """Whether the only contribution is the result, whatever the op."""
        return len(pair.components) == 1 and is_alike(pair) and self.fold.result_dtype(pair.dtype) == pair.dtype

    def _stays(self, pairs: Sequence[Pair]) -> bool:
        return (
            all(is_foldable(pair, self.fold) for pair in pairs)
            and sum(len(pair.components) * nbytes(pair) for pair in pairs) <= _MOST_BYTES_IN_GRAPH
        )

    def _call(self, pairs: Sequence[Pair]) -> list[Any]:
        """Reduce by one call into Python, which reads the graph's tensors as they lie; on one device each."""
        if not pairs:
            return []
        layout = tuple(_Layout.of(pair) for pair in pairs)
        types: list[Any] = []
        for pair in pairs:
            types.append(tf.as_dtype(self.fold.result_dtype(pair.dtype)))
            types += [pair.components[0].indices.dtype] if pair.is_sparse else []
        flat = [tensor for pair in pairs for tensor in pair.tensors()]
        key = (self.fold, layout, self.options)
        remaining = iter(self.callbacks.call(key, lambda: _reduction(self, layout), flat, types))
        return [_with_shape(pair, remaining) for pair in pairs]

    def _call_for_one(self, contributions: Any, count: int) -> Any:
        """Reduce contributions of one value that lie behind each other."""
        fold = self.fold

        def reduce_array(array: Any) -> list[HostArray]:
            sources = np.split(np.asarray(array), count)
            return _folded([sources], fold)

        [result] = self.callbacks.call((fold, count), lambda: reduce_array, [contributions], [contributions.dtype])
        result.set_shape([contributions.shape[0] // count])
        return result


@dataclass(frozen=True)
class _Layout:
    """Of which arrays a value of a call is made.

    ``counts``: of how many each contribution is; ``is_alike``: whether all are known to be of one shape and dtype.
    One result serves all destinations, as tensors never change.
    """

    places: tuple[str, ...]
    target: str
    counts: tuple[int, ...]
    is_alike: bool

    @classmethod
    def of(cls, pair: Pair) -> _Layout:
        counts = tuple(len(tensors_of(component)) for component in pair.components)
        return cls(pair.places, pair.targets[0], counts, is_alike(pair))


def _reduction(reduction: HostReduction, layout: Sequence[_Layout]) -> Callable[..., list[Any]]:
    """Return a function of the arrays of all values in order, which returns those of their results."""
    ops, fold, options = reduction.ops, reduction.fold, reduction.options

    def reduce_arrays(*arrays: Any) -> list[Any]:
        remaining = iter(arrays)
        alike, others = [], []
        for value in layout:
            parts = [[np.asarray(next(remaining)) for _ in range(count)] for count in value.counts]
            if value.is_alike:
                alike.append([part for [part] in parts])
            else:
                components = [part[0] if len(part) == 1 else IndexedSlices(*part) for part in parts]
                others.append((PerReplica(components, value.places), value.target))
        # First those that may still be refused.
        reduced = iter([result[0] for result in ops.batch_reduce(fold.op, others, options)])
        made = iter(_folded(alike, fold))
        results = [next(made if value.is_alike else reduced) for value in layout]
        return [a for one in results for a in ([one.values, one.indices] if isinstance(one, IndexedSlices) else [one])]

    return reduce_arrays


def _folded(values: Sequence[Sequence[HostArray]], fold: Fold) -> list[HostArray]:
    """Return the folds of values whose contributions agree, in memory that TensorFlow adopts where they are large."""
    jobs = []
    for sources in values:
        dtype = sources[0].dtype.name
        target = new_result(sources[0].shape, np.dtype(fold.result_dtype(dtype)))
        jobs.append(Job(dtype, sources, [target]))
    # TensorFlow's tensors are row-major and aligned.
    fold_batch(jobs, fold, are_plain=True)
    return [job.targets[0] for job in jobs]


def nbytes(pair: Pair) -> int:
    """Return the size of one of the contributions, which agree."""
    return math.prod(pair.components[0].shape) * itemsize(pair.dtype)


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
