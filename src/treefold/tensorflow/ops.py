"""The classes that ``tf.distribute`` takes: each hands its calls to the ops of treefold that it is named after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import record

import treefold.ops
import treefold.values
from treefold.errors import ArgumentError, CallError
from treefold.ops.arguments import read_pairs
from treefold.reduce_op import ReduceOp
from treefold.tensorflow import traced
from treefold.tensorflow.values import (
    Pair,
    from_treefold,
    read_options,
    read_pair,
    regrouped,
    to_treefold,
)
from treefold.values import PerReplica

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _as_written(method: _Method) -> _Method:
    """Keep AutoGraph from translating treefold's own loops and conditions, all the way down."""
    unconverted: _Method = tf.autograph.experimental.do_not_convert(method)
    return unconverted


class CrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc] # TensorFlow ships no types
    """A ``tf.distribute.CrossDeviceOps`` that reduces by the plans of ``ops``.

    ``ops``: any of treefold's own ops objects; the classes below make theirs. Values, destinations, options and results
    are TensorFlow's: several destinations give a ``tf.distribute.DistributedValues``, one gives a bare tensor. What
    treefold does otherwise than TensorFlow (any number of devices, every pair validated, devices that must exist) it
    does here, too; a destination may also be a list of device names.
    """

    def __init__(self, ops: treefold.ops.CrossDeviceOps) -> None:
        """Take the ops that plan and reduce."""
        super().__init__()
        self._ops = ops

    @_as_written
    def reduce(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None) -> Any:
        """Reduce one value to its destinations; ``reduce_op``: ``tf.distribute.ReduceOp``, treefold's, or a name.

        Raises:
            TreefoldError: one of its kinds; see ``treefold.errors``.

        """
        return self._reduce(reduce_op, [(per_replica_value, destinations)], options, is_batch=False)[0]

    @_as_written
    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Iterable[tuple[Any, Any]], options: Any = None
    ) -> list[Any]:
        """Reduce many values at once and return their results in the order of the pairs.

        Raises:
            TreefoldError: one of its kinds, naming the pair.

        """
        return self._reduce(reduce_op, read_pairs(value_destination_pairs), options, is_batch=True)

    @_as_written
    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Copy a tensor or ``tf.IndexedSlices`` to its destinations.

        Raises:
            TreefoldError: one of its kinds.

        """
        if isinstance(tensor, tf.distribute.DistributedValues):
            raise ArgumentError.several_values(tensor)
        pair = read_pair(tensor, destinations)
        if not tf.executing_eagerly():
            return regrouped(traced.copied(pair.components[0], pair.targets))
        copies = self._ops.broadcast(to_treefold(pair.components[0]), pair.targets)
        return regrouped([from_treefold(copy, pair.components[0]) for copy in copies])

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """Do what ``reduce`` does: nothing is left to the base class."""
        return self.reduce(reduce_op, per_replica_value, destinations, options)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Iterable[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Do what ``batch_reduce`` does."""
        return self.batch_reduce(reduce_op, value_destination_pairs, options)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Do what ``broadcast`` does."""
        return self.broadcast(tensor, destinations)

    @_as_written
    def _gather(self, per_replica_value: Any, destinations: Any, axis: int, options: Any = None) -> Any:
        """Lay the replicas' tensors behind each other: ``Strategy.gather`` calls this."""
        pair = read_pair(per_replica_value, destinations)
        if not tf.executing_eagerly():
            return regrouped(traced.gathered(pair, axis))
        value = PerReplica([to_treefold(component) for component in pair.components])
        return regrouped(self._ops.gather(value, pair.targets, axis, read_options(options)).values)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: int, options: Any) -> Any:
        return self._gather(per_replica_value, destinations, axis, options)

    def _reduce(self, reduce_op: Any, pairs: Sequence[tuple[Any, Any]], options: Any, *, is_batch: bool) -> list[Any]:
        op, call = ReduceOp.parse(reduce_op), read_options(options)
        read = [read_pair(value, destinations) for value, destinations in pairs]
        if not tf.executing_eagerly():
            results = traced.reduced(self._ops, op, read, call)
        else:
            results = self._reduce_eagerly(op, read, call, is_batch=is_batch)
        _refuse_gradients(read, results)
        return [regrouped(components) for components in results]

    def _reduce_eagerly(self, op: ReduceOp, pairs: list[Pair], options: Any, *, is_batch: bool) -> list[list[Any]]:
        given = []
        for pair in pairs:
            value = PerReplica([to_treefold(component) for component in pair.components])
            given.append((value, value if pair.targets == pair.places else pair.targets))
        # One by one the errors do not speak of pairs.
        reduce = self._ops.batch_reduce if is_batch else self._reduce_one
        results = reduce(op, given, options)
        return [
            [from_treefold(component, pair.components[0]) for component in result.values]
            for result, pair in zip(results, pairs, strict=True)
        ]

    def _reduce_one(self, op: ReduceOp, pairs: list[tuple[Any, Any]], options: Any) -> list[treefold.values.Mirrored]:
        return [self._ops.reduce(op, *pairs[0], options)]

    def __repr__(self) -> str:
        """Show the constructor call that made it."""
        return f"treefold.tensorflow.{self._ops!r}"


class ReductionToOneDevice(CrossDeviceOps):
    """``treefold.ReductionToOneDevice`` for ``tf.distribute``; ``accumulation_fn`` takes and returns tensors."""

    def __init__(
        self, reduce_to_device: str | None = None, accumulation_fn: Any = None, *, accumulate: str = "wide"
    ) -> None:
        """Take what ``tf.distribute.ReductionToOneDevice`` takes, and treefold's ``accumulate``."""
        super().__init__(treefold.ops.ReductionToOneDevice(reduce_to_device, accumulation_fn, accumulate=accumulate))


class AllReduceCrossDeviceOps(CrossDeviceOps):
    """``treefold.AllReduceCrossDeviceOps`` for ``tf.distribute``."""

    def __init__(
        self,
        all_reduce_alg: str = "nccl",
        num_packs: int | str = 1,
        agg_small_grads_max_bytes: int = 0,
        agg_small_grads_max_group: int = 10,
        *,
        accumulate: str = "wide",
        topology: object = None,
    ) -> None:
        """Take what TensorFlow's class of this name takes or took, and treefold's ``accumulate`` and ``topology``."""
        limits = (agg_small_grads_max_bytes, agg_small_grads_max_group)
        make = treefold.ops.AllReduceCrossDeviceOps
        super().__init__(make(all_reduce_alg, num_packs, *limits, accumulate=accumulate, topology=topology))


class HierarchicalCopyAllReduce(CrossDeviceOps):
    """``treefold.HierarchicalCopyAllReduce`` for ``tf.distribute``: right for odd numbers of devices, too."""

    def __init__(self, num_packs: int | str = 1, *, accumulate: str = "wide", topology: object = None) -> None:
        """Take what TensorFlow's class of this name takes, and treefold's ``accumulate`` and ``topology``."""
        ops = treefold.ops.HierarchicalCopyAllReduce(num_packs, accumulate=accumulate, topology=topology)
        super().__init__(ops)


class NcclAllReduce(CrossDeviceOps):
    """``treefold.NcclAllReduce`` for ``tf.distribute``: its documented fallback, for NCCL is run through PyTorch."""

    def __init__(self, num_packs: int | str = 1, *, accumulate: str = "wide") -> None:
        """Take what ``tf.distribute.NcclAllReduce`` takes, and treefold's ``accumulate``."""
        super().__init__(treefold.ops.NcclAllReduce(num_packs, accumulate=accumulate))


def _refuse_gradients(pairs: list[Pair], results: list[list[Any]]) -> None:
    """Make a gradient tape that asks for a derivative hear why there is none, instead of passing None on."""
    inputs = [tensor for pair in pairs for tensor in pair.tensors()]
    if not record.should_record_backprop(inputs):
        return

    def no_gradient(*_: Any) -> Any:
        raise CallError.no_gradient()

    outputs = tf.nest.flatten(results, expand_composites=True)
    record.record_operation("TreefoldReduce", outputs, inputs, no_gradient)
