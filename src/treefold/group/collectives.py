"""What a group moves without arithmetic: broadcasts, gathers, barriers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import ArrayBackend, HostArray
from treefold.backends.tracing import Like
from treefold.calls.entry import Entry, Part, as_distributed, read_entry
from treefold.calls.leaves import read_copied_leaf, read_gathered_leaf
from treefold.calls.reader import read_components
from treefold.calls.wrap import component
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import counted
from treefold.execution import native
from treefold.group.contributions import address_of, check_movable, host_arrays, layout_of
from treefold.group.joined import Joined
from treefold.group.protocol import CallKind, call_key
from treefold.group.takers import hand_over, memory_of, read_joining_takers, read_takers
from treefold.group.traced_calls import TracedCalls, call_later, check_untraced, tracing_backend
from treefold.group.transport.messages import Pieces
from treefold.values import DistributedValues, PerReplica

_DEVICE = "cpu:0"
_LINE = 64


class Moved(NamedTuple):
    """An array that moves: where its result begins in the area that the ranks share, its dtype and shape."""

    backend: ArrayBackend
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return self.dtype.itemsize * math.prod(self.shape)


class Collectives(TracedCalls):
    """The calls of one group that only move values."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._link.agree(call_key(CallKind.BARRIER), b"", description="barrier")

    def broadcast(self, value: Any, root: int, out: Any = None) -> Any:
        """Return rank ``root``'s value on all ranks."""
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("broadcast with out=", out)
            return call_later(
                backend, value, lambda given: self._when_run(self.broadcast, given, root), lambda array, _: Like(array)
            )
        local = PerReplica([value])
        entry = read_entry(local, read_components(local.values), _DEVICE, read_copied_leaf)
        check_movable(entry)
        given = [host_arrays(part)[0] for part in entry.parts]
        moved = _laid_out(entry.parts, [array.shape for array in given])
        takers = None if out is None else read_takers(out, entry)
        kind = call_key(CallKind.BROADCAST, root=root, digest=layout_of(entry))
        pieces = list(zip(moved, given, strict=True)) if self._link.rank == root else []
        made = self._place(kind, moved, pieces, f"broadcast from rank {root} of {_leaves(moved)}", takers=takers)
        if takers is not None:
            return component(entry, takers)
        pairs = zip(moved, made or [], strict=True)
        return component(entry, [one.backend.from_hosts([array], [_DEVICE])[0] for one, array in pairs])

    def gather(self, value: Any, axis: int, root: int | None, destinations: str = "", out: Any = None) -> Any:
        """Return all ranks' arrays behind each other along ``axis``; None off the ``root``, if there is one.

        ``destinations``: those that name ranks, in which all ranks must agree. ``out``: takes the result, and is left
        alone off the root.
        """
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ArgumentError.gather_axis(axis, "")
        is_wanted = root is None or root == self._link.rank
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("gather with out=", out)
            return call_later(
                backend,
                value,
                lambda given: self._when_run(self.gather, given, axis, root, destinations),
                lambda array, _: Like(array, axis=axis),
                is_wanted=is_wanted,
            )
        local = value if isinstance(value, DistributedValues) else PerReplica([value])
        read = as_distributed(local, "value")
        entry = read_entry(
            read, read_components(read.values), _DEVICE, lambda path, leaves: read_gathered_leaf(path, leaves, axis)
        )
        description = (
            f"all_gather{f' to {destinations}' * bool(destinations)}" if root is None else f"gather to rank {root}"
        )
        leaves = counted(len(entry.parts), "leaf", "leaves")
        takers = read_joining_takers(out, entry, axis) if is_wanted and out is not None else None
        joined = self.join(entry, f"{description} along axis {axis} of {leaves}", axis, root, destinations, takers)
        if joined is None:
            return None
        if takers is not None:
            return component(entry, takers)
        made = joined.arrays
        turned = [np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array for array in made]
        backends = [part.operand.backend for part in entry.parts]
        return component(
            entry, [one.from_hosts([array], [_DEVICE])[0] for one, array in zip(backends, turned, strict=True)]
        )

    def join(
        self,
        entry: Entry,
        description: str,
        axis: int = 0,
        root: int | None = None,
        destinations: str = "",
        takers: Sequence[Any] | None = None,
    ) -> Joined | None:
        """Return all ranks' arrays of each leaf behind each other along their first axis; None off the ``root``.

        ``takers``: arrays that take the results, with ``axis`` where it belongs.

        Raises:
            MismatchError: other axes or dtypes differ, or lengths of takers, on all ranks.

        """
        check_movable(entry)
        given = [host_arrays(part) for part in entry.parts]
        pairs = zip(entry.parts, given, strict=True)
        backends = [part.operand.backend for part in entry.parts]
        room = (
            []
            if takers is None
            else [one.shape_dtype(taker)[0][axis] for one, taker in zip(backends, takers, strict=True)]
        )
        own = [
            [part.dtype, [list(array.shape) for array in arrays], room[index] if room else None]
            for index, (part, arrays) in enumerate(pairs)
        ]
        digest = layout_of(entry, destinations, with_shapes=False)
        shapes_key, key = (
            call_key(kind, how=(axis & 255, 0), root=root, digest=digest) for kind in (CallKind.SHAPES, CallKind.GATHER)
        )
        blob = json.dumps(own).encode()
        said = [json.loads(blob) for blob in self._link.agree(shapes_key, blob, description=description)]
        parts = enumerate(entry.parts)
        shapes = [_joined(part.path, [rank[index] for rank in said], axis) for index, part in parts]
        moved = _laid_out(entry.parts, shapes)
        pieces = []
        for index, (result, arrays) in enumerate(zip(moved, given, strict=True)):
            before = sum(math.prod(shape) for rank in said[: self._link.rank] for shape in rank[index][1])
            for array in arrays:
                pieces.append((result._replace(at=result.at + before * result.dtype.itemsize), array))
                before += array.size
        is_wanted = root is None or root == self._link.rank
        made = self._place(key, moved, pieces, description, is_wanted=is_wanted, axis=axis, takers=takers)
        counts = [sum(len(rank[index][1]) for rank in said) for index in range(len(moved))]
        return None if made is None else Joined(made, counts)

    def _place(
        self,
        kind: bytes,
        moved: Sequence[Moved],
        given: Sequence[tuple[Moved, HostArray]],
        description: str,
        *,
        is_wanted: bool = True,
        axis: int = 0,
        takers: Sequence[Any] | None = None,
    ) -> list[HostArray] | None:
        """Lay what this rank gives into the area that the ranks share, and return what lies there in the end.

        ``takers``: arrays that take it, whose axis ``axis`` is the first there.
        """
        if takers is not None:
            return self._take(kind, moved, given, description, axis, takers)
        pieces = Pieces((place.at, array) for place, array in given)
        keeps = is_wanted and axis == 0 and all(result.backend.takes_read_only for result in moved)
        made = [] if keeps or not is_wanted else [native.new_result(one.shape, one.dtype) for one in moved]
        targets = [
            (one.at, address_of(array), one.nbytes) for one, array in zip(moved, made, strict=False) if one.nbytes
        ]
        outcome = self._link.place(kind, _total(moved), pieces, targets, description=description, wants_lease=keeps)
        if not is_wanted:
            return None
        if not keeps:
            return made
        views = [outcome.view(one.at, one.shape, one.dtype) for one in moved]
        return views if outcome.is_leased else [array.copy() for array in views]

    def _take(
        self,
        kind: bytes,
        moved: Sequence[Moved],
        given: Sequence[tuple[Moved, HostArray]],
        description: str,
        axis: int,
        takers: Sequence[Any],
    ) -> list[HostArray]:
        """Lay what this rank gives into the area, and let arrays take what lies there; return it, too."""
        pairs = list(zip(moved, takers, strict=True))
        # Any other axis has to be turned on the way.
        memory = [memory_of(one.backend, taker, one.dtype) if axis == 0 else None for one, taker in pairs]
        made = [
            native.new_result(one.shape, one.dtype) if own is None else own
            for one, own in zip(moved, memory, strict=True)
        ]
        targets = [
            (one.at, address_of(array), one.nbytes) for one, array in zip(moved, made, strict=True) if one.nbytes
        ]
        pieces = Pieces((place.at, array) for place, array in given)
        self._link.place(kind, _total(moved), pieces, targets, description=description)
        for (one, taker), array, own in zip(pairs, made, memory, strict=True):
            turned = np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array
            hand_over(one.backend, taker, turned, own)
        return made


def _total(moved: Sequence[Moved]) -> int:
    return moved[-1].at + max(moved[-1].nbytes, 1) if moved else 1


def _laid_out(parts: Sequence[Part], shapes: Sequence[Sequence[int]]) -> list[Moved]:
    """Return results behind each other, each at a cache line of its own."""
    moved, at = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        one = Moved(part.operand.backend, np.dtype(part.dtype), tuple(shape), at)
        moved.append(one)
        at += (one.nbytes + _LINE - 1) // _LINE * _LINE
    return moved


def _joined(path: str, said: Sequence[tuple[str, list[list[int]], int | None]], axis: int) -> tuple[int, ...]:
    """Return the shape of gathered arrays, whose axis is the first.

    ``said``: of each rank, the dtype and the shapes of its arrays, and the length of the one that takes the result.

    Raises:
        MismatchError: they differ elsewhere, on all ranks alike.

    """
    where = f" at {path}" if path else ""
    dtype, shapes, _ = said[0]
    for rank, (other, others, _) in enumerate(said):
        for shape in others:
            if other != dtype or shape[1:] != shapes[0][1:]:
                raise MismatchError.gather_ranks(
                    rank, where, f"{other} {tuple(shape)}", f"{dtype} {tuple(shapes[0])}", axis
                ).alike()
    length = sum(shape[0] for _, others, _ in said for shape in others)
    for rank, (*_, room) in enumerate(said):
        if room not in {None, length}:
            raise MismatchError.room(rank, where, room, length, axis).alike()
    return (length, *shapes[0][1:])


def _leaves(moved: Sequence[Moved]) -> str:
    return ", ".join(f"{one.dtype.name} {one.shape}" for one in moved)[:300] or "nothing"
