"""The fast path for calls that a training loop repeats: a key recognises the call, and its executor repeats it.

A key holds everything that validation and the plan depend on: structures, backends, shapes, dtypes, devices, op and
options. The executor checks the arrays' memory in every call, and declines if it does not suit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from treefold.backends import ArrayBackend, Row
from treefold.calls.entry import Entry
from treefold.calls.reader import Reading, ReadPair, ReadTree, rows_of
from treefold.execution import Repeat, Results, repeater
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.observing import OBSERVER, observed, words_of
from treefold.plan import Plan
from treefold.reduce_op import ReduceOp
from treefold.values import Mirrored, unflatten

Kind = TypeVar("Kind")


class KnownCalls(BoundedCache[Hashable, Kind]):
    """The kinds of calls that have succeeded, of ops or of a group, and how to repeat each. Holds no array."""

    def __init__(self, max_entries: int = 256) -> None:
        """Start empty."""
        super().__init__(max_entries)


@dataclass(frozen=True, slots=True)
class KnownReduce:
    """One kind of valid call of ops: the plan that the slow path made, and the function that repeats it."""

    plan: Plan
    op: str
    destinations: tuple[tuple[str, ...], ...]
    repeat: Repeat

    @property
    def observed(self) -> Repeat:
        """The same function, whose calls are logged and marked in profilers."""
        return observed(self.repeat, words_of(self.plan, self.op))


def repeat_row(calls: KnownCalls[KnownReduce], op: object, pair: ReadPair) -> Mirrored | None:
    """Repeat a call, without options, of one value that is one row: ``repeat`` without its loops.

    Returns:
        The result; None, with nothing done, if the call needs the slow path.

    """
    # Classes are compared by identity: objects of a subclass may hash and compare as they like, and keys must not.
    key, value, target = pair
    if (
        key is None
        or value is None
        or isinstance(value, ReadTree)
        or (type(op) is not str and type(op) is not ReduceOp)
    ):
        return None
    # The key that ``call_key`` returns for one pair; None stands for no options.
    known = calls.get((op, None, key))
    if known is None:
        return None
    rows = [value]
    run = known.observed if OBSERVER.is_on else known.repeat
    if target is None:
        made = run(rows, None)
        return None if made is None else Mirrored.made(made[0], known.destinations[0], known.plan)
    if isinstance(target, ReadTree) or run(rows, rows if target is value else [target]) is None:
        return None
    return Mirrored.made(target.arrays, known.destinations[0], known.plan)


def repeat(known: KnownReduce, pairs: Sequence[ReadPair]) -> list[Mirrored] | None:
    """Repeat a call of a known kind; return None, with nothing done, if it needs the slow path."""
    values, given = [pair.value for pair in pairs], [pair.target for pair in pairs]
    rows = _rows(values)
    targets = None if given[0] is None else rows if given == values else _rows(given)
    made = (known.observed if OBSERVER.is_on else known.repeat)(rows, targets)
    if made is None:
        return None
    remaining = iter(made if targets is None else [target.arrays for target in targets])
    return [
        Mirrored.made(_components(value, remaining), destinations, known.plan)
        for value, destinations in zip(values, known.destinations, strict=True)
    ]


def known_reduce(plan: Plan, fold: Fold, entries: Sequence[Entry], targets: Results | None) -> KnownReduce | None:
    """Return what the fast path keeps of a call that has succeeded, or None if it cannot be repeated."""
    backends = [part.operand.backend for entry in entries for part in entry.parts]
    # The fast path is one pass in replica order: it replaces the plan only where it gives the plan's bits.
    if plan.guarantee == "per_plan" or plan.accumulate == "callback" or not _are_reached(plan, backends, targets or []):
        return None
    repeated, destinations = repeater(plan, fold, backends), tuple(entry.destinations for entry in entries)
    return None if repeated is None else KnownReduce(plan, fold.op.name, destinations, repeated)


def _are_reached(plan: Plan, backends: Sequence[ArrayBackend], targets: Results) -> bool:
    """Return whether a plan's executor can write into targets: host arrays may stand for a result on any device."""
    if plan.traits.shares_memory:
        return True
    pairs = zip(backends, targets, strict=False)
    return set(plan.devices).issuperset(backend.device_of(array) for backend, arrays in pairs for array in arrays)


def _rows(readings: Sequence[Reading | None]) -> list[Row]:
    return [row for reading in readings if reading is not None for row in rows_of(reading)]


def _components(value: Reading | None, made: Iterator[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return one value's results component by component; ``made`` gives them leaf by leaf."""
    if not isinstance(value, ReadTree):
        return next(made)
    columns = [next(made) for _ in value.rows]
    return tuple([unflatten(value.structures[0], list(leaves)) for leaves in zip(*columns, strict=True)])
