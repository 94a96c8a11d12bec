"""The classes for ``tf.distribute``: each passes its calls to the treefold ops of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import record

import treefold.ops
from treefold.backends.tensorflow import local_device
from treefold.calls.arguments import read_pairs
from treefold.errors import ArgumentError, CallError, MismatchError, MissingImplementationError
from treefold.keyed import BoundedCache
from treefold.reduce_op import ReduceOp
from treefold.tensorflow import traced
from treefold.tensorflow.errors import ReplicaMismatchError
from treefold.tensorflow.traced import MAX_CALLBACKS, Callbacks
from treefold.tensorflow.values import (
    TensorPair,
    as_distributed,
    chosen_options,
    copied,
    from_treefold,
    read_destinations,
    read_options,
    read_pair,
    regrouped,
    to_treefold,
)
from treefold.values import PerReplica

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _as_written(method: _Method) -> _Method:
    """Keep AutoGraph from converting treefold's own loops and conditions, at any depth."""
    unconverted: _Method = tf.autograph.experimental.do_not_convert(method)
    return unconverted


class CrossDeviceOps(tf.distribute.CrossDeviceOps):  # type: ignore[misc] # TensorFlow ships no types
    """A ``tf.distribute.CrossDeviceOps`` that reduces by the plans of ``ops``.

    Values, destinations, options and results are TensorFlow's: several destinations give a
    ``tf.distribute.DistributedValues``, one gives a bare tensor. In the following, treefold differs from TensorFlow:
    any number of devices is right, every pair is validated, devices must exist, and a destination may also be a list of
    device names.

    Subclasses may define ``reduce_implementation``, ``batch_reduce_implementation`` and ``broadcast_implementation``,
    as those of TensorFlow's class do. Each gets distributed values, even for a single replica, and options that are
    not None. Without ``ops``, a subclass has to define the first of them; the others use it, or copy.

    Args:
        ops: any of treefold's own ops objects. The classes below make theirs. None needs a subclass.

    Raises:
        ArgumentError: ``ops`` is something else.

    """

    def __init__(self, ops: treefold.ops.CrossDeviceOps | None = None) -> None:
        """Store the ops that plan and reduce."""
        super().__init__()
        if ops is not None and not isinstance(ops, treefold.ops.CrossDeviceOps):
            raise ArgumentError.option(ops=ops)
        self._ops = ops
        self._callbacks: Callbacks = BoundedCache(MAX_CALLBACKS)

    @_as_written
    def reduce(
        self,
        reduce_op: Any,
        per_replica_value: Any,
        destinations: Any,
        options: Any = None,
        *,
        experimental_hints: Any = None,
    ) -> Any:
        """Reduce one value to its destinations.

        Args:
            reduce_op: a ``tf.distribute.ReduceOp``, a ``treefold.ReduceOp``, or a name such as ``"mean"``.
            per_replica_value: a ``tf.distribute.DistributedValues`` of tensors or ``tf.IndexedSlices``, or one of these
                for one replica. Replicas have equal shapes and dtypes.
            destinations: a ``tf.distribute.DistributedValues``, a tensor or variable, a device name, or a list of
                names.
            options: a ``tf.distribute.experimental.CommunicationOptions``; TensorFlow's defaults by default.
            experimental_hints: the name of ``options`` in TensorFlow 2.2 and 2.3.

        Returns:
            A bare tensor (or ``tf.IndexedSlices``) for one destination, a ``tf.distribute.DistributedValues`` for
                several.

        Raises:
            TreefoldError: one of its kinds; see ``treefold.errors``. Replicas that disagree are a
                ``tf.errors.InvalidArgumentError``, too.

        """
        call = chosen_options(options, experimental_hints)
        return self.reduce_implementation(reduce_op, *self._as_pair(per_replica_value, destinations), call)

    @_as_written
    def batch_reduce(
        self,
        reduce_op: Any,
        value_destination_pairs: Iterable[tuple[Any, Any]],
        options: Any = None,
        *,
        experimental_hints: Any = None,
    ) -> list[Any]:
        """Reduce many values at once.

        Args:
            reduce_op: as for ``reduce``.
            value_destination_pairs: (value, destinations) pairs, each as for ``reduce``.
            options: as for ``reduce``.
            experimental_hints: the name of ``options`` in TensorFlow 2.2 and 2.3.

        Returns:
            A list of results in the order of the pairs, each as from ``reduce``.

        Raises:
            TreefoldError: one of its kinds, naming the pair; see ``reduce``.

        """
        call = chosen_options(options, experimental_hints)
        pairs = [self._as_pair(value, destinations) for value, destinations in read_pairs(value_destination_pairs)]
        return self.batch_reduce_implementation(reduce_op, pairs, call)

    @_as_written
    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Copy a tensor or ``tf.IndexedSlices`` to its destinations.

        Args:
            tensor: a tensor, or something that TensorFlow converts to one, or ``tf.IndexedSlices``.
            destinations: as for ``reduce``.

        Returns:
            A bare copy for one destination, a ``tf.distribute.DistributedValues`` for several.

        Raises:
            TreefoldError: one of its kinds.

        """
        return self.broadcast_implementation(tensor, destinations)

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """Reduce one distributed value. ``reduce`` calls this.

        Args:
            reduce_op: as for ``reduce``.
            per_replica_value: a ``tf.distribute.DistributedValues``, of one replica at least.
            destinations: as for ``reduce``.
            options: a ``tf.distribute.experimental.CommunicationOptions``.

        Returns:
            The result, as from ``reduce``.

        """
        if self._ops is None:
            raise MissingImplementationError.method(type(self).__name__, "reduce_implementation")
        return self._reduce(self._ops, reduce_op, [(per_replica_value, destinations)], options, is_batch=False)[0]

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        """Reduce distributed values; without ops, one by one. ``batch_reduce`` calls this.

        Args:
            reduce_op: as for ``reduce``.
            value_destination_pairs: (distributed value, destinations) pairs.
            options: a ``tf.distribute.experimental.CommunicationOptions``.

        Returns:
            A list of results in the order of the pairs.

        """
        if self._ops is None:
            return [self.reduce_implementation(reduce_op, *pair, options) for pair in value_destination_pairs]
        return self._reduce(self._ops, reduce_op, value_destination_pairs, options, is_batch=True)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Copy one value. ``broadcast`` calls this.

        Args:
            tensor: as for ``broadcast``.
            destinations: as for ``reduce``.

        Returns:
            The copies, as from ``broadcast``.

        """
        if isinstance(tensor, tf.distribute.DistributedValues):
            raise ArgumentError.several_values(tensor)
        pair = read_pair(tensor, destinations, "tensor")
        [component] = pair.components
        if self._ops is None or not tf.executing_eagerly():
            return regrouped(copied(component, pair.targets))
        copies = self._ops.broadcast(to_treefold(component), pair.targets)
        return regrouped([from_treefold(copy, component) for copy in copies])

    @_as_written
    def _gather(self, per_replica_value: Any, destinations: Any, axis: int, options: Any = None) -> Any:
        """Concatenate the replicas' tensors. ``Strategy.gather`` calls this."""
        return self._gather_implementation(per_replica_value, destinations, axis, options)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: int, options: Any) -> Any:
        pair, call = read_pair(per_replica_value, destinations), read_options(options)
        # Quantized tensors are bytes with a meaning that only TensorFlow knows.
        is_quantized = any(component.dtype.is_quantized for component in pair.components)
        if self._ops is None or is_quantized or not tf.executing_eagerly():
            return regrouped(traced.gathered(pair, axis))
        value = PerReplica([to_treefold(component) for component in pair.components])
        try:
            return regrouped(self._ops.gather(value, pair.targets, axis, call).values)
        except MismatchError as error:
            shapes = [component.shape for component in pair.components]
            raise ReplicaMismatchError.gathered(error, shapes, axis) from None

    def _as_pair(self, value: Any, destinations: Any) -> tuple[Any, Any]:
        """Return a pair in the form that the ``…_implementation`` methods get."""
        if self._ops is None:  # else they are read where they are used
            read_destinations(destinations)
        distributed = as_distributed(value)
        return distributed, distributed if destinations is value else destinations

    def _reduce(
        self,
        ops: treefold.ops.CrossDeviceOps,
        reduce_op: Any,
        pairs: Sequence[tuple[Any, Any]],
        options: Any,
        *,
        is_batch: bool,
    ) -> list[Any]:
        op, call = ReduceOp.parse(reduce_op), read_options(options)
        read = [read_pair(value, destinations) for value, destinations in pairs]
        try:
            if not tf.executing_eagerly() and not ops.has_group:
                results = traced.reduced(ops, op, read, call, self._callbacks)
            else:
                results = _reduced_eagerly(ops, op, read, call, is_batch=is_batch)
        except MismatchError as error:
            raise ReplicaMismatchError.of(error) from None
        _refuse_gradients(read, results)
        return [regrouped(components) for components in results]

    def __repr__(self) -> str:
        """Return the constructor call that made it."""
        if self._ops is None:
            return f"{type(self).__name__}()"
        return f"treefold.tensorflow.{self._ops!r}"


class ReductionToOneDevice(CrossDeviceOps):
    """``treefold.ReductionToOneDevice`` for ``tf.distribute``.

    Args:
        reduce_to_device: name of the device that reduces; by default the first destination.
        accumulation_fn: a function that takes a list of tensors and returns their sum; treefold's own sum by default.
        accumulate: as for ``treefold.ReductionToOneDevice``: ``"exact"`` by default.

    """

    def __init__(
        self, reduce_to_device: str | None = None, accumulation_fn: Any = None, *, accumulate: str = "exact"
    ) -> None:
        """Accept the arguments of ``tf.distribute.ReductionToOneDevice``, and treefold's ``accumulate``."""
        device = local_device(reduce_to_device) if isinstance(reduce_to_device, str) else reduce_to_device
        super().__init__(treefold.ops.ReductionToOneDevice(device, accumulation_fn, accumulate=accumulate))


class AllReduceCrossDeviceOps(CrossDeviceOps):
    """``treefold.AllReduceCrossDeviceOps`` for ``tf.distribute``.

    Args:
        all_reduce_alg: ``"nccl"`` or ``"hierarchical_copy"``, as the two classes below.
        num_packs: the number of packs that share the values of a dtype; 0 packs nothing, ``"auto"`` makes one per
            device.
        agg_small_grads_max_bytes: the most bytes of a value that is grouped with others if ``num_packs`` is 0; 0 groups
            none.
        agg_small_grads_max_group: the most values in such a group; 0 groups none.
        accumulate: as for ``treefold.AllReduceCrossDeviceOps``: ``"exact"`` by default.
        topology: the machine with the trees for ``"hierarchical_copy"``: a ``treefold.Topology``, or what names one.
            None by default.

    """

    def __init__(
        self,
        all_reduce_alg: str = "nccl",
        num_packs: int | str = 1,
        agg_small_grads_max_bytes: int = 0,
        agg_small_grads_max_group: int = 10,
        *,
        accumulate: str = "exact",
        topology: object = None,
    ) -> None:
        """Accept the arguments that TensorFlow's class has or had, and treefold's ``accumulate`` and ``topology``."""
        limits = (agg_small_grads_max_bytes, agg_small_grads_max_group)
        make = treefold.ops.AllReduceCrossDeviceOps
        super().__init__(make(all_reduce_alg, num_packs, *limits, accumulate=accumulate, topology=topology))


class HierarchicalCopyAllReduce(AllReduceCrossDeviceOps):
    """``treefold.HierarchicalCopyAllReduce`` for ``tf.distribute``: right for odd numbers of devices, too.

    Args:
        num_packs: the number of packs that share the values of a dtype; 0 packs nothing, ``"auto"`` makes one per
            device.
        accumulate: as for ``treefold.HierarchicalCopyAllReduce``: ``"exact"`` by default.
        topology: the machine with the trees to use: a ``treefold.Topology``, or what names one. None by default.

    """

    def __init__(self, num_packs: int | str = 1, *, accumulate: str = "exact", topology: object = None) -> None:
        """Accept the arguments of TensorFlow's class, and treefold's ``accumulate`` and ``topology``."""
        ops = treefold.ops.HierarchicalCopyAllReduce(num_packs, accumulate=accumulate, topology=topology)
        CrossDeviceOps.__init__(self, ops)  # ops of their own, not of the class in between


class NcclAllReduce(AllReduceCrossDeviceOps):
    """``treefold.NcclAllReduce`` for ``tf.distribute``: always its documented fallback, because NCCL needs PyTorch.

    Args:
        num_packs: the number of packs that share the values of a dtype; 0 packs nothing, ``"auto"`` makes one per
            device.
        accumulate: as for ``treefold.NcclAllReduce``: ``"exact"`` by default.

    """

    def __init__(self, num_packs: int | str = 1, *, accumulate: str = "exact") -> None:
        """Accept the arguments of ``tf.distribute.NcclAllReduce``, and treefold's ``accumulate``."""
        CrossDeviceOps.__init__(self, treefold.ops.NcclAllReduce(num_packs, accumulate=accumulate))


def _reduced_eagerly(
    ops: treefold.ops.CrossDeviceOps, op: ReduceOp, pairs: list[TensorPair], options: Any, *, is_batch: bool
) -> list[list[Any]]:
    given = []
    for pair in pairs:
        value = PerReplica([to_treefold(component) for component in pair.components])
        given.append((value, value if pair.targets == pair.places else pair.targets))
    # One by one the errors do not speak of pairs.
    results = ops.batch_reduce(op, given, options) if is_batch else [ops.reduce(op, *given[0], options)]
    return [
        [from_treefold(component, pair.components[0]) for component in result.values]
        for result, pair in zip(results, pairs, strict=True)
    ]


def _refuse_gradients(pairs: list[TensorPair], results: list[list[Any]]) -> None:
    """Let a gradient tape raise an error that says why there is no derivative, instead of passing None on."""
    inputs = [tensor for pair in pairs for tensor in pair.tensors()]
    if not record.should_record_backprop(inputs):
        return

    def no_gradient(*_: Any) -> Any:
        raise CallError.no_gradient()

    outputs = tf.nest.flatten(results, expand_composites=True)
    record.record_operation("TreefoldReduce", outputs, inputs, no_gradient)
