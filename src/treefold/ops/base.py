"""The base class of all cross-device ops: validate, pack, plan, execute, wrap."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from treefold.backends.tracing import as_written
from treefold.calls.arguments import (
    NO_OPTIONS,
    check_accumulate,
    check_honoured,
    read_options,
    read_pairs,
    read_weights,
)
from treefold.calls.entry import Entry, as_distributed, check_devices, moved_axis, read_entry, wrap
from treefold.calls.fast_path import KnownCalls, KnownReduce, known_reduce, repeat, repeat_row
from treefold.calls.leaves import read_copied_leaf, read_folded_leaf, read_gathered_leaf
from treefold.calls.output import read_out
from treefold.calls.reader import Reading, ReadPair, call_key, read_components, read_pair
from treefold.errors import ArgumentError, TreefoldError
from treefold.execution import CallSummary, Executor, Results, execute
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.observing import announced
from treefold.ops.planning import PlanRequest, ReductionTerms, Router, make_plan, read_topology, summarise
from treefold.options import CommunicationOptions
from treefold.plan import Plan
from treefold.planners import PlanBuilder, add_star
from treefold.planners.packing import Pack, PackingPolicy
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import Bare, DistributedValues, Mirrored, PerReplica, T, Weights

if TYPE_CHECKING:
    from treefold.ops.grouped import GroupedOps

_MOST_PLANS = 64
_LONG_WEIGHTS = "weights of more than 53 bits: every element is folded in whole numbers, which is slow"


class CrossDeviceOps(abc.ABC):
    """Combines one value per replica into one value on every destination.

    Subclasses choose how dense values are packed and along which trees they travel; this class does everything else. An
    object keeps a bounded cache of plans and nothing else between calls, and may be used from many threads.

    Source: ``tf.distribute.CrossDeviceOps``; docs/migrating.md lists where treefold differs on purpose.

    Args:
        accumulate: ``"exact"`` (the default): sums and means are the exact value, rounded once. ``"native"``: additions
            are made, and rounded, in the dtype itself.
        topology: The machine whose links plans follow: a ``Topology``, or anything that ``load_topology`` and
            ``known_topology`` take. None: no machine. Only ops that reduce along trees accept one.
        group: A ``Group``, or a ProcessGroup or communicator whose ranks are to be connected. Values are then this
            rank's replicas, and all ranks make the same calls; only ``broadcast`` stays within this process. None: this
            process alone.

    Raises:
        ArgumentError: A constructor argument is outside what it may be.

    """

    def __init__(self, *, accumulate: str = "exact", topology: object = None, group: object = None) -> None:
        """Check the arguments that all ops have."""
        check_accumulate(accumulate)
        if topology is not None and not self._follows_topology():
            raise ArgumentError(
                f"{type(self).__name__} does not follow a topology: it reduces each pack on one device. Leave topology "
                "out, or use HierarchicalCopyAllReduce(topology=...)."
            )
        self._topology = read_topology(topology)
        self._accumulate = accumulate
        self._own_device: str | None = None  # the root in place of the first destination
        self._own_word: object = None  # the same device, as the caller wrote it
        self._plans: BoundedCache[Hashable, Plan] = BoundedCache(_MOST_PLANS)
        self._calls: KnownCalls[KnownReduce] = KnownCalls()
        self._grouped = None if group is None else self._join(group, accumulate)

    @staticmethod
    def _join(group: object, accumulate: str) -> GroupedOps:
        from treefold.ops.grouped import GroupedOps  # noqa: PLC0415 - few ops have a group, and sockets take time

        return GroupedOps(group, accumulate)

    @as_written
    def reduce(
        self,
        reduce_op: ReduceOpLike,
        per_replica_value: DistributedValues[T] | Bare,
        destinations: Any,
        options: CommunicationOptions | None = None,
        *,
        out: Any = None,
        weights: Weights | None = None,
        experimental_hints: CommunicationOptions | None = None,
    ) -> Mirrored[T]:
        """Reduce one value and return the result on every destination.

        The result never aliases an input, except through ``out``. MEAN of integers is the true mean as a float: float64
        for integers of 32 and 64 bits, float32 for shorter ones.

        Args:
            reduce_op: A ``ReduceOp`` or its name.
            per_replica_value: A ``PerReplica`` of arrays or pytrees of arrays that agree in structure, shapes and
                dtypes. A bare array or ``IndexedSlices`` counts as one replica.
            destinations: A device (a name, or an object such as ``torch.device``), a sequence of devices, or an array,
                ``IndexedSlices`` or ``DistributedValues``, which stand for their devices. The result's components have
                this order.
            options: The limits of this call; None for the defaults.
            out: A ``PerReplica`` or ``Mirrored`` of arrays that take the result, one component per destination. Each
                array is one replica's array of the same leaf (in place), or shares memory with no input. None: new
                arrays.
            weights: One number per replica, as a list, tuple or 1-d array, for MEAN only: the result is Σwᵢxᵢ/Σwᵢ.
                None: all replicas weigh the same.
            experimental_hints: The name that ``options`` had in TensorFlow 2.2 and 2.3.

        Returns:
            One component per destination, each of the value's structure and shapes. Its ``plan`` is the plan that ran.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, before anything is written.

        >>> from treefold import ReductionToOneDevice
        >>> ops = ReductionToOneDevice()
        >>> ops.reduce("sum", PerReplica([1, 2, 4]), "cpu:0").values[0].item()
        7
        """
        if self._grouped is not None:
            read_options(options, experimental_hints)
            ends = None if out is None else [out]
            return self._grouped.reduce(reduce_op, [(per_replica_value, destinations)], ends, weights)[0]
        pair = read_pair(per_replica_value, destinations, out)
        if options is None and experimental_hints is None and weights is None:
            result = repeat_row(self._calls, reduce_op, pair)
            if result is not None:
                return result
        asked = [(per_replica_value, destinations)]
        call = read_options(options, experimental_hints)
        ends = None if out is None else [out]
        return self._reduce(reduce_op, asked, [pair], call, ends, weights, is_batch=False)[0]

    @as_written
    def batch_reduce(
        self,
        reduce_op: ReduceOpLike,
        value_destination_pairs: Iterable[tuple[DistributedValues[T] | Bare, Any]],
        options: CommunicationOptions | None = None,
        *,
        out: Sequence[Any] | None = None,
        weights: Weights | None = None,
        experimental_hints: CommunicationOptions | None = None,
    ) -> list[Mirrored[T]]:
        """Reduce many values at once and return their results in the order of the pairs.

        Values of one dtype are packed together if each is to return to the devices that it lies on.

        Args:
            reduce_op: A ``ReduceOp`` or its name.
            value_destination_pairs: (value, destinations) tuples, each as ``reduce`` takes them.
            options: The limits of this call; None for the defaults.
            out: One entry per pair, each as ``reduce`` takes it. None: new arrays.
            weights: One number per replica, for MEAN only.
            experimental_hints: The name that ``options`` had in TensorFlow 2.2 and 2.3.

        Returns:
            One ``Mirrored`` per pair.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, before anything is written. Its sentence names the pair.

        """
        asked = read_pairs(value_destination_pairs)
        call = read_options(options, experimental_hints)
        if self._grouped is not None:
            return self._grouped.reduce(reduce_op, asked, out, weights) if asked else []
        return self._reduce(reduce_op, asked, _read_batch(asked, out), call, out, weights, is_batch=True)

    @as_written
    def broadcast(self, tensor: T, destinations: Any) -> Mirrored[T]:
        """Copy one value to every destination.

        The copies never alias the value. Any dtype is allowed, and kept.

        Args:
            tensor: An array, ``IndexedSlices`` or a pytree of them.
            destinations: The devices, as ``reduce`` takes them.

        Returns:
            One copy per destination.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``.

        """
        if isinstance(tensor, DistributedValues):
            raise ArgumentError.several_values(tensor)
        entry = read_entry(PerReplica([tensor]), read_components((tensor,)), destinations, read_copied_leaf)
        plan, results = self._moved("broadcast", entry, NO_OPTIONS)
        return wrap(results, [entry], plan)[0]

    @as_written
    def gather(
        self,
        per_replica_value: DistributedValues[T] | Bare,
        destinations: Any,
        axis: int,
        options: CommunicationOptions | None = None,
    ) -> Mirrored[T]:
        """Concatenate the replicas' arrays along ``axis``, in replica order, on every destination.

        Args:
            per_replica_value: Arrays or pytrees of arrays whose shapes differ along ``axis`` only. Scalars and sparse
                rows are refused.
            destinations: The devices, as ``reduce`` takes them.
            axis: The axis that grows; a negative one counts from the end.
            options: The limits of this call; None for the defaults.

        Returns:
            One concatenation per destination.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``.

        """
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ArgumentError.gather_axis(axis, "")
        call = read_options(options, None)
        if self._grouped is not None:
            return self._grouped.gather(per_replica_value, destinations, axis)
        value = as_distributed(per_replica_value, "per_replica_value")
        reading = read_components(value.values)
        entry = read_entry(value, reading, destinations, lambda path, leaves: read_gathered_leaf(path, leaves, axis))
        plan, results = self._moved("gather", entry, call)
        return wrap(moved_axis(results, entry, axis), [entry], plan)[0]

    def plan(
        self,
        per_replica_value: Any,
        destinations: Any = None,
        options: CommunicationOptions | None = None,
        *,
        walked: bool = False,
    ) -> Plan:
        """Return the plan that ``reduce`` would run, or ``batch_reduce`` for a list of pairs; move nothing.

        One plan serves every op. Anything with ``.shape`` and ``.dtype`` stands for an array.

        Args:
            per_replica_value: A value as ``reduce`` takes it, or a list of (value, destinations) tuples.
            destinations: The devices, as ``reduce`` takes them; None with a list of tuples.
            options: The limits of the call; None for the defaults.
            walked: Values in host memory are folded in one pass, without a tree. True returns the tree that the same
                devices would walk if each had a memory of its own.

        Returns:
            The plan. ``print`` shows its steps.

        Raises:
            TreefoldError: The error that the call itself would raise.

        >>> from treefold import HierarchicalCopyAllReduce
        >>> print(HierarchicalCopyAllReduce().plan(PerReplica([1.0, 2.0]), ["cpu:0", "cpu:1"]).guarantee)
        exact
        """
        is_batch = destinations is None and isinstance(per_replica_value, list | tuple)
        pairs = read_pairs(per_replica_value) if is_batch else [(per_replica_value, destinations)]
        if self._grouped is not None:
            return self._grouped.plan([value for value, _ in pairs])
        entries = _read_entries(pairs, [None] * len(pairs), None, is_batch=is_batch)
        return self.plan_entries(entries, read_options(options, None), is_walked=walked)

    def plan_entries(
        self, entries: tuple[Entry, ...], options: CommunicationOptions = NO_OPTIONS, *, is_walked: bool = False
    ) -> Plan:
        """Return the plan of a SUM of validated values, for ``topology.choosing``, which predicts its time.

        :meta private:

        Raises:
            TreefoldError: A subclass from ``treefold.errors``.

        """
        request = self._request(entries, self._fold(ReduceOp.SUM, None), options)
        return self._plan_for(dataclasses.replace(request, is_walked=is_walked))

    @property
    def has_group(self) -> bool:
        """Whether other processes take part: ``treefold.tensorflow`` reduces some values in graphs, where none can.

        :meta private:
        """
        return self._grouped is not None

    def terms(self, op: ReduceOp) -> ReductionTerms:
        """Return the terms of a reduction without weights, for ``treefold.tensorflow``, which runs some itself.

        :meta private:
        """
        return ReductionTerms(self._fold(op, None), self._own_devices, self._root)

    def _follows_topology(self) -> bool:
        """Return whether plans can follow a machine's links."""
        return False

    @abc.abstractmethod
    def _policy(self, options: CommunicationOptions) -> PackingPolicy:
        """Return how values are packed."""

    def _add_pack(self, builder: PlanBuilder, pack: Pack, index: int) -> None:  # noqa: ARG002
        """Plan pack number ``index``, of values that return to the devices that they lie on."""
        add_star(builder, pack, self._root(builder.work[pack.fragments[0].leaf].destinations))

    def _router(self, request: PlanRequest) -> Router:
        """Return the router for the values of a request."""
        policy = request.policy
        return Router(lambda items, sources: policy.packs(items, len(set(sources))), self._add_pack, self._root)

    def _root(self, destinations: Sequence[str]) -> str:
        """Return the device that reduces a value which does not travel by ``_add_pack``."""
        return self._own_device or destinations[0]

    @property
    def _own_devices(self) -> tuple[str, ...]:
        """The devices that the ops object itself names; the values' frameworks must have them."""
        return () if self._own_device is None else (self._own_device,)

    def _asked_executor(self) -> Executor | None:
        """Return the executor that the caller asked for, to run the calls that it accepts; None if any will do."""
        return None

    def _notes(self, call: CallSummary) -> tuple[str, ...]:  # noqa: ARG002
        """Return what a user should know about the plan, such as a fallback."""
        return ()

    def _fold(self, op: ReduceOp, weights: tuple[int, ...] | None) -> Fold:
        """Return the arithmetic of a call."""
        return Fold(op, self._accumulate, weights)

    def _accumulate_words(self) -> list[str]:
        return [] if self._accumulate == "exact" else [f"accumulate={self._accumulate!r}"]

    def __repr__(self) -> str:
        """Show the constructor call that made it."""
        return f"{type(self).__name__}()"

    def _reduce(
        self,
        reduce_op: ReduceOpLike,
        asked: Sequence[tuple[Any, Any]],
        pairs: Sequence[ReadPair],
        options: CommunicationOptions,
        out: Any,
        weights: Weights | None,
        *,
        is_batch: bool,
    ) -> list[Mirrored]:
        key = None if weights is not None else call_key(reduce_op, options, pairs)
        known = None if key is None else self._calls.get(key)
        if known is not None and (results := repeat(known, pairs)) is not None:
            return results
        op = ReduceOp.parse(reduce_op)
        fold = self._fold(op, read_weights(weights, op))
        entries = _read_entries(asked, [pair.value for pair in pairs], fold, is_batch=is_batch)
        targets = None if out is None else read_out(out, [pair.target for pair in pairs], entries, fold)
        if not entries:
            return []
        plan = self._plan_for(self._request(entries, fold, options))
        if key is not None and (known := known_reduce(plan, fold, entries, targets)):
            self._calls.put(key, known)
        operands = [part.operand for entry in entries for part in entry.parts]
        return wrap(execute(plan, operands, fold, targets, timeout_s=options.timeout_seconds), entries, plan)

    def _request(self, entries: tuple[Entry, ...], fold: Fold, options: CommunicationOptions) -> PlanRequest:
        for part in (part for entry in entries for part in entry.parts):
            check_devices(part.operand.backend, self._own_devices, self._own_word)
        matches = all(entry.matches for entry in entries)
        call = summarise(entries, fold.manner, self._own_devices)
        request = PlanRequest(
            collective="all_reduce" if matches else "reduce",
            algorithm=repr(self),
            entries=entries,
            call=call,
            options=options,
            policy=self._policy(options),
            is_weighted=fold.weights is not None,
            notes=(*self._notes(call), *([_LONG_WEIGHTS] if fold.are_weights_long else [])),
            asked=self._asked_executor(),
        )
        note = request.executor.note(call, fold)
        return dataclasses.replace(request, notes=(*request.notes, note)) if note else request

    def _moved(self, collective: str, entry: Entry, options: CommunicationOptions) -> tuple[Plan, Results]:
        """Plan and run a collective that only moves values."""
        plan = self._plan_for(PlanRequest(collective, type(self).__name__, (entry,), summarise((entry,)), options))
        return plan, execute(plan, [part.operand for part in entry.parts])

    def _plan_for(self, request: PlanRequest) -> Plan:
        check_honoured(request.options, request.executor)
        return self._plans.made(request.key, lambda: announced(make_plan(request, self._router(request))))


def _read_batch(asked: Sequence[tuple[Any, Any]], out: object) -> list[ReadPair]:
    """Read the arrays of a batch for the fast path.

    A pair without an entry in ``out`` loses its key: the slow path raises the error.
    """
    if out is None:
        return [read_pair(value, destinations, None) for value, destinations in asked]
    ends = list(out) if isinstance(out, list | tuple) and len(out) == len(asked) else [None] * len(asked)
    read = [read_pair(*pair, end) for pair, end in zip(asked, ends, strict=True)]
    return [pair if end is not None else pair._replace(key=None) for pair, end in zip(read, ends, strict=True)]


def _read_entries(
    pairs: Sequence[tuple[Any, Any]], readings: Sequence[Reading | None], fold: Fold | None, *, is_batch: bool
) -> tuple[Entry, ...]:
    entries = []
    for index, ((value, destinations), reading) in enumerate(zip(pairs, readings, strict=True)):
        try:
            entries.append(_read_pair(value, destinations, reading, fold))
        except TreefoldError as error:
            raise (error.in_pair(index) if is_batch else error) from None
    return tuple(entries)


def _read_pair(value: Any, destinations: Any, reading: Reading | None, fold: Fold | None) -> Entry:
    distributed = as_distributed(value, "per_replica_value")
    if fold is not None:
        count = len(distributed)
        if fold.weights is not None and len(fold.weights) != count:
            raise ArgumentError.weight_count(len(fold.weights), count)
    return read_entry(
        distributed,
        reading or read_components(distributed.values),
        destinations,
        lambda path, leaves: read_folded_leaf(path, leaves, fold),
        is_planned=fold is None,
    )
