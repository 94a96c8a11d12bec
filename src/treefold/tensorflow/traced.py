"""Reductions inside ``tf.function``: in one pass where all values are in host memory, elsewhere the plan as ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import treefold.ops
from treefold.backends.tensorflow_calls import runs_on_host
from treefold.calls.arguments import check_honoured
from treefold.calls.entry import check_devices, common_backend
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.execution import HOST
from treefold.fold import Fold
from treefold.ops.planning import ReductionTerms
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.tensorflow.callbacks import Callbacks
from treefold.tensorflow.on_host import HostReduction
from treefold.tensorflow.values import Pair, copied, from_treefold, tensors_of, to_treefold
from treefold.values import PerReplica


def reduced(
    ops: treefold.ops.CrossDeviceOps,
    op: ReduceOp,
    pairs: Sequence[Pair],
    options: CommunicationOptions | None,
    callbacks: Callbacks,
) -> list[list[Any]]:
    """Return, for each pair, the result on each of its destinations, as symbolic tensors.

    Raises:
        TreefoldError: what is known while tracing is refused while tracing; the rest when the graph runs.

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


def gathered(pair: Pair, axis: int) -> list[Any]:
    """Return the components laid behind each other along ``axis`` on every destination, by TensorFlow, eagerly too."""
    if any(isinstance(component, tf.IndexedSlices) for component in pair.components):
        raise ArgumentError.gather_sparse(where="")
    with tf.device(pair.targets[0]):
        return copied(tf.concat(pair.components, axis), pair.targets)


def _check(pair: Pair, terms: ReductionTerms) -> None:
    backend = common_backend("", [tensors_of(component)[0] for component in pair.components])
    if not pair.is_in_cluster:
        check_devices(backend, (*pair.places, *pair.targets, *terms.own_devices))
    terms.fold.check_dtype(pair.dtype)


def _are_on_host(pairs: Sequence[Pair], own: Sequence[str]) -> bool:
    """Whether everything is on CPU devices of this process, in a graph that only this process runs."""
    if any(pair.is_in_cluster for pair in pairs):
        return False
    named = {*own, *(device for pair in pairs for device in (*pair.places, *pair.targets))}
    return all(device_type(device) == "cpu" for device in named) and runs_on_host()


def _as_ops(
    ops: treefold.ops.CrossDeviceOps, terms: ReductionTerms, pairs: Sequence[Pair], options: CommunicationOptions | None
) -> list[list[Any]]:
    """Run the plan of the values whose shapes are known and devices are here; the others meet on one device.

    Lengths are not planned while they are not known, and plans are within one process.
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


def _placed(pair: Pair) -> Pair:
    """Return the pair with every tensor on its device, where tracing left that open."""
    components = tuple(
        component if component.device else copied(component, [place])[0]
        for component, place in zip(pair.components, pair.places, strict=True)
    )
    return Pair(components, pair.places, pair.targets)


def _is_planned(pair: Pair) -> bool:
    is_known = not pair.is_in_cluster and all(tensor.shape.is_fully_defined() for tensor in pair.tensors())
    return is_known and (
        pair.is_sparse or not any(isinstance(component, tf.IndexedSlices) for component in pair.components)
    )


def _on_one_device(pair: Pair, fold: Fold, root: str) -> list[Any]:
    """Reduce on ``root``, whatever the shapes turn out to be, and copy the result to the destinations."""
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
