"""The calls that a training loop makes again and again: arrays of shapes seen before, in host memory or on one GPU.

A call is recognised by what its plan and its checks depend on: structures, frameworks, shapes, dtypes, devices, op.
What was validated and planned for the first such call holds for the next ones; what depends on the arrays themselves
(their memory) is looked at every time: the backends show it at a glance, or decline. Whatever is not recognised at a
glance takes the full way through validation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treefold.backends import ArrayBackend, DeviceRow, HostArray, glancing_backend
from treefold.bounded_cache import BoundedCache
from treefold.execution import Repeat, repeater
from treefold.execution.kernel import Job, fold_batch
from treefold.execution.native import agree, may_fold_in_place, new_result
from treefold.fold import Fold
from treefold.ops.arguments import NO_OPTIONS
from treefold.ops.entry import Entry
from treefold.options import CommunicationOptions
from treefold.plan import Plan
from treefold.plan.executors import executor_traits
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, Mirrored, StructureKey, flatten, unflatten

#: For each leaf, its memory in every replica: host memory, or that of one device.
Columns = list[tuple[HostArray, ...] | DeviceRow]

_MOST_CALLS = 256
_IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class Seen:
    """One value of a call at a glance: the key of what was seen, and for each leaf its framework, arrays and memory."""

    key: Hashable
    structure: Any
    backends: list[ArrayBackend]
    arrays: list[tuple[Any, ...]]
    columns: Columns


@dataclass(frozen=True, slots=True)
class Call:
    """A call at a glance: its values, and what takes the results, the values themselves in place; None: new arrays."""

    key: Hashable
    values: tuple[Seen, ...]
    targets: tuple[Seen, ...] | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the first call of its kind found out: it is valid, this is its plan, these are its results."""

    plan: Plan
    fold: Fold
    destinations: tuple[tuple[str, ...], ...]
    dtypes: tuple[str, ...]
    result_dtypes: tuple[np.dtype[Any], ...]
    again: Repeat | None = None  # on a GPU


class PreparedCalls:
    """Calls that were seen before. Safe to use from many threads; holds no array."""

    def __init__(self) -> None:
        """Start empty."""
        self._calls: BoundedCache[Hashable, Prepared] = BoundedCache(_MOST_CALLS)

    def run(self, call: Call) -> list[Mirrored] | None:
        """Run a call that was seen before; None if it was not, or if its memory needs a closer look."""
        prepared = self._calls.get(call.key)
        if prepared is None:
            return None
        return _run(prepared, call)

    def remember(self, call: Call, plan: Plan, fold: Fold, entries: Sequence[Entry]) -> None:
        """Keep what the full way through validation found out; beyond a bound the oldest is forgotten."""
        if plan.guarantee != "replica_order":
            return
        parts = [part for entry in entries for part in entry.parts]
        dtypes = tuple(part.dtype for part in parts)
        results = tuple(np.dtype(part.operand.backend.result_dtype(fold, part.dtype)) for part in parts)
        rows = [column for seen in (*call.values, *(call.targets or ())) for column in seen.columns]
        again = None
        if all(isinstance(row, DeviceRow) for row in rows):
            again = repeater(plan, fold, [dtype.name for dtype in results])
        if again is None and not executor_traits(plan.executor).shares_memory:
            return
        prepared = Prepared(plan, fold, tuple(entry.destinations for entry in entries), dtypes, results, again)
        self._calls.put(call.key, prepared)


def glance(
    op: object, pairs: list[tuple[Any, Any]], options: CommunicationOptions, out: Sequence[Any] | None
) -> Call | None:
    """Return a call at a glance: plain arrays that agree, into new or given results; None for anything else."""
    if type(op) is not ReduceOp and type(op) is not str:
        return None
    values = []
    for value, destinations in pairs:
        seen = _look(value, destinations)
        if seen is None:
            return None
        values.append(seen)
    # An enumeration's hash is computed in Python, so the usual options stand for themselves.
    key = (op, None if options is NO_OPTIONS else options, *[seen.key for seen in values])
    if out is None:
        return Call((key, None), tuple(values), None)
    if isinstance(out, list | tuple) and len(out) == len(pairs):
        if all(target is pair[0] for target, pair in zip(out, pairs, strict=True)):
            own = tuple(values)
            return Call((key, _IN_PLACE), own, own)
        targets = [_look_at_components(end, None) if isinstance(end, DistributedValues) else None for end in out]
        given = tuple([seen for seen in targets if seen is not None])
        if len(given) == len(values):
            return Call((key, tuple([seen.key for seen in given])), tuple(values), given)
    return None


def _look(value: object, destinations: object) -> Seen | None:
    if not isinstance(value, DistributedValues):
        return None
    if destinations is value:
        return _look_at_components(value, None)
    if type(destinations) is str or (type(destinations) is tuple and all(type(d) is str for d in destinations)):
        return _look_at_components(value, destinations)
    return None


def _look_at_components(value: DistributedValues, target: object) -> Seen | None:
    values = value.values
    if glancing_backend(type(values[0])) is not None:
        structure: Any = None
        structure_key = None
        arrays = [values]
    else:
        flat = [flatten(component) for component in values]
        structure = flat[0][1]
        structure_key = StructureKey(structure)
        if any(StructureKey(other) != structure_key for _, other in flat[1:]):
            return None
        arrays = list(zip(*(leaves for leaves, _ in flat), strict=True))
        if not arrays:
            return None
    backends: list[ArrayBackend] = []
    columns: Columns = []
    forms: list[Hashable] = []
    for leaf in arrays:
        backend = glancing_backend(type(leaf[0]))
        if backend is None:
            return None
        views = backend.glance(leaf)
        if views is None:
            row = backend.glance_on_device(leaf)
            if row is None:
                return None
            columns.append(row)
            forms.append((backend, *row[:-1]))
        elif agree(views):
            columns.append(views)
            forms.append((backend, views[0].shape, views[0].dtype, backend.places(leaf)))
        else:
            return None
        backends.append(backend)
    key = (structure_key, tuple(forms), len(values), value.named_devices, target)
    return Seen(key, structure, backends, arrays, columns)


def _run(prepared: Prepared, call: Call) -> list[Mirrored] | None:
    columns: list[Any] = [column for seen in call.values for column in seen.columns]
    targets: list[Any] | None
    if call.targets is None:
        targets = None
    elif call.targets is call.values:
        targets = columns
    else:
        targets = [column for seen in call.targets for column in seen.columns]
    if prepared.again is None:
        made = _folded_on_host(prepared, call, columns, targets)
    else:
        made = prepared.again(columns, targets)
        if made is not None:
            _note_writes(call)
    return None if made is None else _wrapped(prepared, call, made)


def _folded_on_host(
    prepared: Prepared, call: Call, columns: list[Any], targets: list[Any] | None
) -> list[tuple[Any, ...]] | None:
    """Return the new results of each leaf, none if they are given; None if memory needs a closer look."""
    if targets is None:
        ends = _new_targets(prepared, call.values)
    else:
        ends = targets
        # Given arrays must be disjoint from the values'; that one of them is a value's own memory takes the full way.
        if not may_fold_in_place(columns if targets is columns else [*columns, *targets]):
            return None
        _note_writes(call)
    jobs = [Job(*job) for job in zip(prepared.dtypes, columns, ends, strict=True)]
    fold_batch(jobs, prepared.fold, are_plain=targets is not None)
    if targets is not None:
        return []
    backends = [
        (backend, names)
        for seen, names in zip(call.values, prepared.destinations, strict=True)
        for backend in seen.backends
    ]
    return [tuple(backend.from_hosts(end, names)) for (backend, names), end in zip(backends, ends, strict=True)]


def _note_writes(call: Call) -> None:
    for seen in call.targets or ():
        for backend, arrays in zip(seen.backends, seen.arrays, strict=True):
            backend.wrote(arrays)


def _new_targets(prepared: Prepared, values: Sequence[Seen]) -> list[tuple[HostArray, ...]]:
    targets = []
    dtypes = iter(prepared.result_dtypes)
    for seen, names in zip(values, prepared.destinations, strict=True):
        for backend, column in zip(seen.backends, seen.columns, strict=True):
            first: Any = column[0]
            shape, dtype = first.shape, next(dtypes)
            memories = names[:1] if backend.shares_results else names
            targets.append(tuple([new_result(shape, dtype) for _ in memories]))
    return targets


def _wrapped(prepared: Prepared, call: Call, made: Sequence[tuple[Any, ...]]) -> list[Mirrored]:
    results, remaining = [], iter(made)
    given = (None,) * len(call.values) if call.targets is None else call.targets
    for seen, target, names in zip(call.values, given, prepared.destinations, strict=True):
        own = [next(remaining) for _ in seen.backends] if target is None else target.arrays
        if seen.structure is None:
            components: Sequence[Any] = own[0]
        else:
            components = [unflatten(seen.structure, list(leaves)) for leaves in zip(*own, strict=True)]
        results.append(Mirrored.made(components, names, prepared.plan))
    return results
