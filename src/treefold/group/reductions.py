"""All-reduces of a group: what this rank brings, read as in one process, becomes a call that all ranks compare."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treefold.backends import ArrayBackend, HostArray, Row
from treefold.backends.numpy import NumpyBackend
from treefold.backends.tracing import Like
from treefold.calls.arguments import read_weights
from treefold.calls.entry import Entry, Part, component
from treefold.calls.fast_path import KnownCalls
from treefold.calls.output import read_out
from treefold.calls.reader import Reading, read_components, rows_of
from treefold.compiled import HAS_SHARED_MEMORY
from treefold.dtypes import INTEGERS, WIDE_INTEGERS
from treefold.errors import ArgumentError, CallMismatchError, DeviceError, TreefoldError
from treefold.execution import Operand, native
from treefold.execution.host_fold import Job, fold_batch, rounds_as_once
from treefold.fold import Fold
from treefold.group.collectives import Collectives
from treefold.group.contributions import (
    dense_shape_of,
    description_of,
    hand_over,
    host_arrays,
    layout_of,
    memory_of,
    plain_rows,
    read_value,
    reading_of,
    row_of,
    without_arrays,
)
from treefold.group.plans import GroupPlans, Reduction, plan_of
from treefold.group.protocol import CallKind, call_key
from treefold.group.traced_calls import TracedCalls, call_later, tracing_backend
from treefold.group.transport.link import GroupLink, NeedsPlan
from treefold.observing import OBSERVER, observed, words_of
from treefold.plan import Plan
from treefold.plan.ir import Goal
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, PerReplica

if HAS_SHARED_MEMORY:
    from treefold._native import MOST_REPLICAS, SMALL_BYTES, GroupForm
if TYPE_CHECKING:
    from treefold.group.transport.link import Outcome

_DEVICE = "cpu:0"
_DEVICES = (_DEVICE,)
_ITSELF = True
_NUMPY = NumpyBackend()


class Result(NamedTuple):
    """The result of one leaf: its dtypes, as kernels write and as its framework wants it, and its place in the area."""

    backend: ArrayBackend
    dtype: np.dtype[Any]
    narrow: np.dtype[Any]
    shape: tuple[int, ...]
    at: int


class KnownReduction(NamedTuple):
    """A kind of call that was validated: its form in the native core, its results, the plan that ranks compare."""

    form: GroupForm
    fold: Fold
    results: list[Result]
    entry: Entry
    plans: GroupPlans
    #: Whether its results are written into memory of this process only.
    is_private: bool


class ReductionCall(NamedTuple):
    """The arguments of an all-reduce, with the readings of its value and of its ``out``.

    See ``Reductions.all_reduce``.
    """

    value: Any
    op: ReduceOp | str
    reading: Reading
    out: Any
    into: Reading | None
    weights: Any
    root: int | None
    destinations: str
    cut: str
    mean_dtype: str | None


class Reduced(NamedTuple):
    """A reduction's result, None off the root, and the plan by which it was made."""

    value: Any
    plan: Plan | None


class Reductions(TracedCalls):
    """The all-reduces of one group, with what is known of the calls so far."""

    def __init__(self, link: GroupLink, accumulate: str = "exact") -> None:
        """Start without knowing any call."""
        super().__init__(link)
        self._collectives, self._accumulate = Collectives(link), accumulate
        self._calls: KnownCalls[KnownReduction] = KnownCalls()

    def all_reduce(
        self,
        value: Any,
        op: ReduceOp | str,
        *,
        out: Any = None,
        weights: Any = None,
        root: int | None = None,
        destinations: str = "",
        cut: str = "",
        mean_dtype: str | None = None,
    ) -> Reduced:
        """Return the reduction of all ranks' values as one component; None off the ``root``, if there is one.

        Args:
            value: An array, a pytree of arrays, or distributed values.
            op: How to combine contributions.
            out: Arrays that take the result. None: new arrays.
            weights: The weight of this rank's replica, or one for each of its replicas; only for MEAN.
            root: The only rank that gets the result; None: all do.
            destinations: The destinations that name ranks, in words. All ranks must agree in them.
            cut: The part of a larger call that this is, in words. All ranks must agree in it.
            mean_dtype: The dtype of means of 32- and 64-bit integers; None: that of the arrays' own framework.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        op = op if type(op) is str else ReduceOp.parse(op)  # another library's, or what cannot be hashed
        reading = reading_of(value)
        into = None if out is None else reading if out is value else reading_of(out)
        key = None
        if weights is None and reading.key is not None and (into is None or into.key is not None):
            end = _ITSELF if into is reading else into and into.key
            key = (op, reading.key, end, root, destinations, cut, mean_dtype)
            known = self._calls.get(key)
            if known is not None and not _may_be_narrow(known):
                reduced = self._repeat(known, reading, into, root)
                if reduced is not None:
                    return reduced
        return self._first(
            key, ReductionCall(value, op, reading, out, into, weights, root, destinations, cut, mean_dtype)
        )

    def reduce_scatter(
        self, parts: Sequence[Sequence[Any]], op: ReduceOp | str, out: Sequence[Any] = (), *, cut: str = ""
    ) -> list[Any]:
        """Return this rank's part of the reduction of all ranks' values.

        Args:
            parts: The value of this rank, cut into the arrays of each rank's part.
            op: How to combine contributions.
            out: Arrays that take the result, with the shapes and dtypes of this rank's part. Empty: new arrays.
            cut: The structure that the arrays were cut from, and how, in words. All ranks must agree in it.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        values = [array for part in parts for array in part]
        own = slice(len(parts[0]) * self._link.rank, len(parts[0]) * (self._link.rank + 1))
        reading, op = read_components((values,)), op if type(op) is str else ReduceOp.parse(op)
        key = (CallKind.REDUCE_SCATTER, op, reading.key, cut)
        known = None if reading.key is None else self._calls.get(key)
        if known is None:
            local, fold = PerReplica([values]), Fold(ReduceOp.parse(op), self._accumulate)
            _, entry = read_value(local, reading, fold, None, _DEVICE)
            known, rows = self._read(fold, entry, None, CallKind.REDUCE_SCATTER, cut=cut), plain_rows(entry)
            if reading.key is not None:
                self._calls.put(key, known)
        else:
            rows = rows_of(reading)
        results = known.results[own]
        if _agreed(self._link, known, None)[1]:
            arrays: list[Any] = self.all_reduce(PerReplica([values]), op, cut=cut).value[own]
            for result, one, array in zip(results, out, arrays, strict=False):
                result.backend.assign(one, array)
            return list(out) or arrays
        targets: list[Row | None] = [None] * len(rows)
        made, memory = _made(results, out)
        targets[own] = map(row_of, made)
        if self._fold(known, rows, targets, known.fold, wants_lease=False) is None:  # they overlap the rows
            made, memory = _made(results, ())
            targets[own] = map(row_of, made)
            self._fold(known, rows, targets, known.fold, wants_lease=False)
        if not out:
            return [_adopted(one, array) for one, array in zip(results, made, strict=True)]
        _hand_over(results, out, made, memory)
        return list(out)

    def _repeat(
        self, known: KnownReduction, reading: Reading, into: Reading | None, root: int | None
    ) -> Reduced | None:
        """Make a call of a known kind; None, with nothing done, if it has to be validated first."""
        rows = rows_of(reading)
        is_wanted = root is None or root == self._link.rank
        targets = None
        if is_wanted and into is not None:
            targets = rows_of(into)
        elif is_wanted and known.is_private:
            pairs = zip(rows, known.results, strict=True)
            targets = [result.backend.new_row(row, result.dtype, 1) for row, result in pairs]
        outcome = self._fold(known, rows, targets, known.fold, wants_lease=is_wanted and targets is None)
        if outcome is None:
            return None
        return Reduced(self._wrapped(known, outcome, targets, into) if is_wanted else None, known.plans.plan)

    def _first(self, key: Hashable, call: ReductionCall) -> Reduced:
        """Validate a call by itself, as in one process, and make it; in a graph that is traced, when that runs."""
        fold, root = Fold(ReduceOp.parse(call.op), self._accumulate), call.root
        is_wanted = root is None or root == self._link.rank
        backend = tracing_backend(call.value)
        if backend is not None:
            return self._later(backend, call, fold)
        own, entry = read_value(call.value, call.reading, fold, call.weights, _DEVICE)
        outs = None
        if call.into is not None:
            target = call.out if isinstance(call.out, DistributedValues) else PerReplica([call.out])
            outs = [arrays[0] for arrays in read_out([target], [call.into], [entry], fold)]
        is_dense = [part.goal is Goal.FOLD for part in entry.parts]
        rows = _join_rows(self._collectives, entry, is_dense, fold, root)
        dense = replace(entry, parts=tuple(itertools.compress(entry.parts, is_dense)))
        kind = CallKind.ALL_REDUCE if own is None else CallKind.WEIGHTED
        known = None if key is None else self._calls.get(key)
        if known is None:
            known = self._read(fold, dense, root, kind, call.destinations, call.cut, call.mean_dtype)
        contributions = plain_rows(dense)
        fold, folds_alone = _agreed(self._link, known, own)
        made, memory = None, list[HostArray | None]([None] * len(known.results))
        if folds_alone:
            dtypes = [result.narrow for result in known.results]
            made = _fold_joined(self._collectives, dense, dtypes, known.form.description, fold, root)
        else:
            if is_wanted and (known.is_private or outs is not None):
                made, memory = _made(known.results, outs or ())
            targets = None if made is None else [row_of(array) for array in made]
            outcome = self._fold(known, contributions, targets, fold, wants_lease=is_wanted and made is None)
            if outcome is None:
                raise AssertionError(known)  # validation has let targets through that overlap
            made = [_view(outcome, one) for one in known.results] if is_wanted and made is None else made
        if key is not None:
            self._calls.put(key, known)
        if made is None:
            return Reduced(None, known.plans.plan)
        if outs is not None:
            _hand_over(known.results, outs, made, memory)
            return Reduced(component(entry, outs), known.plans.plan)
        folded, joined = map(_adopted, known.results, made), iter(rows)
        arrays = [next(folded) if dense else next(joined) for dense in is_dense]
        return Reduced(component(entry, arrays), known.plans.plan)

    def _later(self, backend: ArrayBackend, call: ReductionCall, fold: Fold) -> Reduced:
        """Add the call to the graph that is being traced."""
        options = {"out": call.out, "weights": call.weights, "root": call.root, "destinations": call.destinations}
        if fold.op is ReduceOp.MEAN:  # the call is made with NumPy's arrays, and by then another setting may hold
            options["mean_dtype"] = backend.result_dtype(fold, "int32")
        made = call_later(
            backend,
            call.value,
            lambda value: self._when_run(self.all_reduce, value, fold.op, **options).value,
            lambda array, is_rows: Like(array, fold, 0 if is_rows else None),
            is_wanted=call.root in {None, self._link.rank},
        )
        return Reduced(made, None)

    def plan(self, value: Any, op: ReduceOp | str) -> Plan:
        """Return the plan of an all-reduce to which every rank brings as many replicas as this one.

        Raises:
            TreefoldError: one of its kinds.

        """
        fold = Fold(ReduceOp.parse(op), self._accumulate)
        _, entry = read_value(value, reading_of(value), fold, None, _DEVICE, is_planned=True)
        return plan_of(Reduction(entry, fold), (entry.num_replicas,) * self._link.size, self._link.layout)

    def _read(
        self,
        fold: Fold,
        entry: Entry,
        root: int | None,
        collective: CallKind,
        destinations: str = "",
        cut: str = "",
        mean_dtype: str | None = None,
    ) -> KnownReduction:
        """Return what ranks compare of a call, and what its results will be."""
        for part in entry.parts:
            if not part.is_in_host_memory:
                raise DeviceError.not_on_host(part.path)
            if len(part.lengths) > MOST_REPLICAS:
                raise ArgumentError(
                    f"This rank brings {len(part.lengths)} replicas. In a group, a rank brings {MOST_REPLICAS} at "
                    "most; reduce them first."
                )
        how = native.OPS[fold.op.name], native.ACCUMULATIONS[fold.accumulate]
        layout = layout_of(entry, cut or destinations)
        kind = call_key(collective, how=how, root=root, digest=layout)
        is_weighted = collective == CallKind.WEIGHTED
        name = "reduce_scatter" if collective == CallKind.REDUCE_SCATTER else "all_reduce" if root is None else "reduce"
        words = (name if root is None else f"reduce to rank {root}") + " with weights" * is_weighted
        description = description_of(words, fold, entry, destinations)
        leaves = [(native.DTYPES[part.dtype], part.lengths[0]) for part in entry.parts]
        form = GroupForm(kind, description, leaves, *how, native.level(), is_weighted)
        pairs = zip(entry.parts, form.results_at, strict=True)
        results = [_result(part, fold, at, mean_dtype) for part, at in pairs]
        needs_copies = any(not one.backend.takes_read_only or one.dtype != one.narrow for one in results)
        is_private = form.stream_bytes <= SMALL_BYTES or needs_copies
        bare = without_arrays(entry)
        reduction = Reduction(bare, fold, name, root or 0, is_weighted=is_weighted)
        plans = GroupPlans(reduction, self._link.layout, self._link.rank)
        return KnownReduction(form, fold, results, bare, plans, is_private)

    def _fold(
        self,
        known: KnownReduction,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        fold: Fold,
        *,
        wants_lease: bool,
    ) -> Outcome | None:
        """Make the call; the first time, and when numbers of replicas have changed, plan it with all ranks."""
        made: tuple[int, ...] = ()
        known.plans.take(fold)
        while True:
            run = self._link.fold
            if OBSERVER.is_on:
                run = observed(run, words_of(known.plans.plan, fold.op.name))
            outcome = run(known.form, rows, targets, wants_lease, fold, known.plans)
            if not isinstance(outcome, NeedsPlan):
                return outcome
            # Ranks may all have plans, and some of them for numbers of replicas that others had before.
            if outcome.are_all_planned and made == outcome.replicas:
                raise CallMismatchError.plans().alike()
            made = outcome.replicas
            known.plans.make(made)

    def _wrapped(self, known: KnownReduction, outcome: Outcome, targets: list[Row] | None, into: Reading | None) -> Any:
        """Return results in the structure of the value: what was written, or views on the area that the ranks share."""
        if into is not None and targets is not None:
            for result, target in zip(known.results, targets, strict=True):
                result.backend.wrote(target.arrays)
            return component(known.entry, [target.arrays[0] for target in targets])
        return component(known.entry, _arrays(known.results, outcome, targets))


def _may_be_narrow(known: KnownReduction) -> bool:
    """Return whether means of 64-bit integers are asked for: a framework that rounds them to float32 rounds twice."""
    return known.fold.op is ReduceOp.MEAN and any(part.dtype in WIDE_INTEGERS for part in known.entry.parts)


def _agreed(link: GroupLink, known: KnownReduction, own: Sequence[Fraction] | None) -> tuple[Fold, bool]:
    """Return the fold with the weights of all ranks, if this one has some, and whether each rank folds alone.

    Each rank folds alone if some rank's framework has narrower means than the kernels, and the second rounding could
    change a bit. Ranks announce both.
    """
    fold = known.fold
    if own is None and not _may_be_narrow(known):
        return fold, False
    key = call_key(CallKind.WEIGHTS, digest=hashlib.blake2b(known.form.kind, digest_size=16).digest())
    is_narrow = any(one.dtype != one.narrow for one in known.results)
    said = link.announce(key, [is_narrow, *map(str, own or ())], description=known.form.description)
    if own is not None:
        everyone = [Fraction(weight) for _, *weights in said for weight in weights]
        try:
            fold = replace(fold, weights=read_weights(everyone, fold.op))
        except TreefoldError as error:
            raise error.alike() from None
    integers = {part.dtype for part in known.entry.parts if part.dtype in INTEGERS}
    shows = not all(rounds_as_once(dtype, fold.divisor or 1) for dtype in integers)
    return fold, shows and any(one[0] for one in said)


def _arrays(results: Sequence[Result], outcome: Outcome | None, targets: Sequence[Row] | None) -> list[Any]:
    """Return results as arrays of their frameworks: new memory, or that which the ranks share."""
    if targets is None:
        return [] if outcome is None else [_adopted(one, _view(outcome, one)) for one in results]
    pairs = zip(results, targets, strict=True)
    # A row that says no backend is of NumPy arrays.
    return [_adopted(one, row.arrays[0]) if row.backend is None else row.arrays[0] for one, row in pairs]


def _adopted(result: Result, array: HostArray) -> Any:
    """Return a NumPy array as one of the result's framework."""
    return result.backend.from_hosts([array.astype(result.narrow, copy=False)], _DEVICES)[0]


def _made(results: Sequence[Result], outs: Sequence[Any]) -> tuple[list[HostArray], list[HostArray | None]]:
    """Return an array for each result, and which of them are the memory of the out arrays themselves."""
    memory: list[HostArray | None] = [None] * len(results)
    if outs:
        memory = [memory_of(one.backend, out, one.dtype) for one, out in zip(results, outs, strict=True)]
    pairs = zip(results, memory, strict=True)
    return [native.new_result(one.shape, one.dtype) if own is None else own for one, own in pairs], memory


def _hand_over(
    results: Sequence[Result], outs: Sequence[Any], made: Sequence[HostArray], memory: Sequence[HostArray | None]
) -> None:
    """Let out arrays hold the results."""
    for one, out, array, own in zip(results, outs, made, memory, strict=True):
        hand_over(one.backend, out, array.astype(one.narrow, copy=False), own)


def _result(part: Part, fold: Fold, at: int, mean_dtype: str | None) -> Result:
    backend, dtype = part.operand.backend, part.dtype
    narrow = backend.result_dtype(fold, dtype)
    if mean_dtype and dtype in INTEGERS and narrow == "float64":
        narrow = mean_dtype
    return Result(backend, np.dtype(fold.result_dtype(dtype)), np.dtype(narrow), part.operand.shape, at)


def _view(outcome: Outcome, result: Result) -> HostArray:
    """Return a result on the area that the ranks share; a copy of its own if there is no area to keep."""
    view: HostArray = outcome.view(result.at, result.shape, result.dtype)
    return view if outcome.is_leased else view.copy()


def _join_rows(
    collectives: Collectives,
    entry: Entry,
    is_dense: Sequence[bool],
    fold: Fold,
    root: int | None,
) -> list[Any]:
    """Return the sparse rows of all ranks, laid behind each other as in one process."""
    if all(is_dense):
        return []
    parts = tuple(part for part, dense in zip(entry.parts, is_dense, strict=True) if not dense)
    shapes = [f"IndexedSlices of {dense_shape_of(form)}" for form in entry.forms if form.num_parts > 1]
    description = f"all_reduce, {fold.op.name}, of {', '.join(shapes)}"
    joined = collectives.join(replace(entry, parts=parts), description, root)
    if joined is None:
        return []
    arrays = []
    for part, array, replicas in zip(parts, joined.arrays, joined.replicas, strict=True):
        made = array
        if part.goal is Goal.ROWS and fold.op is ReduceOp.MEAN:
            result = part.operand.backend.result_dtype(fold, part.dtype)
            made = _NUMPY.scale(array.reshape(-1), replicas, result).reshape(array.shape)
        arrays.append(part.operand.backend.from_hosts([made], _DEVICES)[0])
    return arrays


def _fold_joined(
    collectives: Collectives,
    entry: Entry,
    dtypes: Sequence[np.dtype[Any]],
    description: str,
    fold: Fold,
    root: int | None,
) -> list[HostArray] | None:
    """Return the fold of all ranks' dense arrays, made by this rank, in dtypes of its own; None off the ``root``."""
    parts = []
    for part in entry.parts:
        flat = tuple([array.reshape(-1) for array in host_arrays(part)])
        parts.append(replace(part, operand=Operand(_NUMPY, flat, (-1,))))
    joined = collectives.join(replace(entry, parts=tuple(parts)), description, root)
    if joined is None:
        return None
    jobs = []
    for part, array, replicas, dtype in zip(entry.parts, joined.arrays, joined.replicas, dtypes, strict=True):
        whole = array.reshape(replicas, *part.operand.shape)
        sources = [whole[index, ...] for index in range(replicas)]  # arrays also of no axis
        jobs.append(Job(part.dtype, sources, [np.empty(part.operand.shape, dtype)]))
    fold_batch(jobs, fold)
    return [job.targets[0] for job in jobs]
