"""Proves a movement by running its steps on symbols before they may run on numbers.

Every input element starts as the symbol "replica r's contribution to element e of leaf l". Copies and concatenations
move symbols, and combinations join them. In the end, every output must hold each contribution exactly once, in the same
association on every destination. The proof tracks ownership instead of sums, so it sees a contribution counted twice.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treefold.errors import PlanError
from treefold.errors.words import counted
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Leaf, Range, Role, Step
from treefold.plan.store import Association, Piece, Store, replicas_in, start_of

_LAID_OUT = frozenset({Goal.ROWS, Goal.GATHER})
_PARTIALS = frozenset({Role.PARTIAL, Role.EXACT})


@dataclass(frozen=True, slots=True)
class Proof:
    """Properties of a movement that its proof found.

    Args:
        is_flat: Every element is rounded once, from the replicas' own contributions in replica order, or from exact
            partial sums of them.
        folds_whole: Every fold takes whole leaves of all replicas, as a callback needs them.
        reaches_across: A fold or concatenation uses ranges on several devices, which must then share one memory.
        has_exact: The movement has exact partial sums.

    """

    is_flat: bool
    folds_whole: bool
    reaches_across: bool
    has_exact: bool = False


def prove(leaves: Sequence[Leaf], buffers: Sequence[Buffer], steps: Sequence[Step]) -> Proof:
    """Prove that these steps give every output what its leaf's ``Goal`` says.

    Every range lies in its buffer and has one dtype. Every read range was written in an earlier step. No action of a
    step writes what another one of it reads or writes. Inputs are never written, and nothing is overwritten or left
    over unread. Every output holds each contribution exactly once, folded alike on all destinations.

    Raises:
        PlanError: Its message names the step and what is wrong with it.

    """
    try:
        run = _SymbolicRun(leaves, buffers)
    except PlanError as error:
        raise PlanError.in_head(error) from None
    for number, step in enumerate(steps, start=1):
        try:
            run.step(step)
        except PlanError as error:
            raise PlanError(f"The plan does not hold: in step {number}, {error}") from None
    run.check_outputs()
    run.check_all_used()
    is_flat = all(replicas_in(value) == value or isinstance(value, int) for value in run.associations)
    has_exact = any(buffer.role is Role.EXACT for buffer in buffers)
    return Proof(is_flat, run.folds_whole, run.reaches_across, has_exact)


class _SymbolicRun:
    """The contents of all buffers, as symbols, while the steps run."""

    def __init__(self, leaves: Sequence[Leaf], buffers: Sequence[Buffer]) -> None:
        self.leaves, self.buffers = leaves, buffers
        self.stores = [Store(buffer) for buffer in buffers]
        self.inputs: dict[int, list[int]] = defaultdict(list)
        self.outputs: dict[int, list[int]] = defaultdict(list)
        self.associations: set[Association] = set()
        self.folds_whole, self.reaches_across = True, False
        self._register_buffers()

    def _register_buffers(self) -> None:
        names = [buffer.name for buffer in self.buffers]
        if len(set(names)) != len(names):
            raise PlanError.malformed("two buffers have the same name")
        for index, buffer in enumerate(self.buffers):
            if not 0 <= buffer.leaf < len(self.leaves) or buffer.length < 0:
                raise PlanError.malformed(f"buffer {buffer.name} has no such leaf or a negative length")
            if buffer.role is Role.INPUT:
                self.inputs[buffer.leaf].append(index)
                if buffer.length:
                    # Inputs count as read: an unused one is found as a contribution that is missing from a result.
                    piece = Piece(0, buffer.length, buffer.leaf, 0, buffer.position, final=False, is_read=True)
                    self.stores[index].write(Range(index, 0, buffer.length), [piece])
            elif buffer.role is Role.OUTPUT:
                self.outputs[buffer.leaf].append(index)
        for leaf in range(len(self.leaves)):
            self._check_inputs_and_outputs(leaf)

    def _check_inputs_and_outputs(self, leaf: int) -> None:
        for what, indices in (("inputs", self.inputs[leaf]), ("outputs", self.outputs[leaf])):
            positions = [self.buffers[index].position for index in indices]
            if not positions or positions != list(range(len(positions))):
                raise PlanError.malformed(f"leaf {leaf} has {what} at positions {positions}, not 0, 1, 2 …")
        goal, lengths = self.leaves[leaf].goal, self._lengths(leaf)
        if goal not in _LAID_OUT and (len(set(lengths)) != 1 or (goal is Goal.COPY and len(lengths) != 1)):
            raise PlanError.malformed(f"leaf {leaf} has inputs of lengths {lengths}")

    def step(self, step: Step) -> None:
        """Read for all actions, then write for all: the order of actions within a step must not matter."""
        if not step.actions:
            raise PlanError.malformed("it has no actions")
        _check_no_conflict(step, self.buffers)
        results = [self._evaluate(action) for action in step.actions]
        for action, pieces in zip(step.actions, results, strict=True):
            self._write(action.target, pieces)

    def _evaluate(self, action: Action) -> list[Piece]:
        """Return the pieces that an action writes, at their positions in its target."""
        if action.pack < -1:
            raise PlanError.malformed(f"there is no pack {action.pack}")
        if not action.target.length:
            raise PlanError.malformed("it acts on no elements")
        self._check_exact(action)
        if isinstance(action, Copy):
            if action.source.length != action.target.length:
                raise PlanError.malformed(
                    f"it copies {counted(action.source.length, 'element')} into {action.target.length}"
                )
            self._check_same_kind(action.source, action.target)
            shift = action.target.start - action.source.start
            return [piece.moved(shift) for piece in self.stores[action.source.buffer].read(action.source)]
        if not action.sources:
            raise PlanError.malformed("it has no sources")
        devices = {self.buffers[part.buffer].device for part in (*action.sources, action.target)}
        self.reaches_across = self.reaches_across or len(devices) > 1
        return self._combine(action) if isinstance(action, Combine) else self._concat(action)

    def _check_exact(self, action: Action) -> None:
        """Refuse what exact partial sums do not bear: they travel whole, and the last fold alone takes them."""
        for part in (*action.sources, action.target):
            if not self._is_exact(part):
                continue
            if isinstance(action, Concat) or part.length != self.buffers[part.buffer].length:
                raise PlanError.malformed("exact partial sums travel whole")
            if isinstance(action, Combine) and not action.final and part != action.target:
                raise PlanError.malformed("only the last fold takes exact partial sums")

    def _is_exact(self, part: Range) -> bool:
        return self.buffers[part.buffer].role is Role.EXACT

    def _concat(self, action: Concat) -> list[Piece]:
        at, pieces = action.target.start, list[Piece]()
        for source in action.sources:
            self._check_same_kind(source, action.target)
            for piece in self.stores[source.buffer].read(source):
                if action.final and (piece.final or self.leaves[piece.leaf].goal not in _LAID_OUT):
                    raise PlanError.malformed("it finishes what is finished already, or what must be folded or copied")
                pieces.append(piece.moved(at - source.start, final=action.final))
            at += source.length
        if at != action.target.stop:
            raise PlanError.malformed("the parts of a concatenation do not fill its target")
        return pieces

    def _combine(self, action: Combine) -> list[Piece]:
        """Cut all sources at the piece borders of every source, and fold the parts between the cuts."""
        target, columns = action.target, list[tuple[list[Piece], int]]()
        if not action.final and self.buffers[target.buffer].role not in _PARTIALS:
            raise PlanError.malformed("a fold that is not the last one makes partial folds, and goes elsewhere")
        for source in action.sources:
            if source.length != target.length:
                raise PlanError.malformed(f"it combines {counted(source.length, 'element')} into {target.length}")
            columns.append((self.stores[source.buffer].read(source), target.start - source.start))
        cuts = sorted({piece.start + shift for pieces, shift in columns for piece in pieces})
        return [
            self._join([_part(pieces, start - shift, stop - shift) for pieces, shift in columns], start, action)
            for start, stop in zip(cuts, [*cuts[1:], target.stop], strict=True)
        ]

    def _join(self, parts: Sequence[Piece], start: int, action: Combine) -> Piece:
        """Return the fold of parts that cover the same elements, of replicas in ascending order.

        ``start``: its position in the action's target.
        """
        first = parts[0]
        if any((part.leaf, part.offset) != (first.leaf, first.offset) for part in parts):
            raise PlanError(
                f"contributions to different elements are combined at element {first.offset} of leaf {first.leaf}."
            )
        if any(part.final for part in parts) or self.leaves[first.leaf].goal is not Goal.FOLD:
            raise PlanError.malformed("it folds what is already a result, or what must not be folded")
        # Partial folds of trees may interleave ((0, 2) with (1, 3)), so only their first replicas must ascend.
        firsts = [replicas_in(part.value)[0] for part in parts]
        owners = [replica for part in parts for replica in replicas_in(part.value)]
        if len(set(owners)) != len(owners):
            raise PlanError.twice(sorted({owner for owner in owners if owners.count(owner) > 1}))
        if firsts != sorted(firsts):
            raise PlanError(f"contributions starting at replicas {list(firsts)} are not combined in replica order.")
        replicas = self.inputs[first.leaf]
        if action.final and len(owners) != len(replicas):
            raise PlanError.missing(first.leaf, sorted(set(range(len(replicas))) - set(owners)))
        stop = start + first.stop - first.start
        is_whole = (start, stop) == (0, self.buffers[replicas[0]].length)
        is_whole = is_whole and action.final and all(isinstance(part.value, int) for part in parts)
        self.folds_whole = self.folds_whole and is_whole
        # Repeating the fold of a partial fold rounds it once more, so its association gets another level; exact partial
        # sums were never rounded, so it is as if their contributions met here.
        values = [
            replicas_in(part.value) if self._is_exact(source) else (part.value,)
            for part, source in zip(parts, action.sources, strict=True)
        ]
        is_alone = isinstance(first.value, int) and len(parts) == 1
        value = first.value if is_alone else tuple(itertools.chain.from_iterable(values))
        return Piece(start, stop, first.leaf, first.offset, value, action.final)

    def _write(self, target: Range, pieces: list[Piece]) -> None:
        buffer = self.buffers[target.buffer]
        if buffer.role is Role.INPUT:
            raise PlanError.malformed(f"it writes into the input {buffer.name}")
        for piece in pieces:
            if piece.leaf != buffer.leaf and self._kind(piece.leaf) != self._kind(buffer.leaf):
                raise PlanError.malformed(f"it puts another dtype, goal or number of replicas into {buffer.name}")
            if not self._may_hold(buffer.role, piece):
                raise PlanError.malformed(f"{buffer.name}, of role {buffer.role.value}, cannot hold this")
        self.stores[target.buffer].write(target, pieces)

    def _may_hold(self, role: Role, piece: Piece) -> bool:
        """Return whether a buffer's dtype, which follows from its role, is that of a piece."""
        if self.leaves[piece.leaf].goal is Goal.COPY:
            return role in {Role.SCRATCH, Role.OUTPUT}
        if piece.final:
            return role in {Role.RESULT, Role.OUTPUT}
        if role is Role.EXACT:  # made of contributions alone
            return isinstance(piece.value, int) or replicas_in(piece.value) == piece.value
        return role is Role.PARTIAL or (role is Role.SCRATCH and isinstance(piece.value, int))

    def _kind(self, leaf: int) -> tuple[str, Goal, int]:
        """Return the properties that leaves must have in common to share a buffer."""
        return self.leaves[leaf].dtype, self.leaves[leaf].goal, len(self.inputs[leaf])

    def _check_same_kind(self, source: Range, target: Range) -> None:
        source_role, target_role = (self.buffers[part.buffer].role for part in (source, target))
        if source_role is not target_role and not _PARTIALS.isdisjoint({source_role, target_role}):
            raise PlanError.malformed("moving cannot turn contributions into partial folds, or back")

    def check_outputs(self) -> None:
        """Compare every output with its goal, and the associations of a leaf's outputs with each other."""
        for leaf, indices in self.outputs.items():
            lengths = self._lengths(leaf)
            is_laid_out = self.leaves[leaf].goal in _LAID_OUT
            *begins, end = (0, *itertools.accumulate(lengths)) if is_laid_out else (0, lengths[0])
            for index in indices:
                self._check_output(index, begins if is_laid_out else [], end)
            first, *others = (_associations(self.stores[index].pieces) for index in indices)
            if any(other != first for other in others):
                raise PlanError(
                    f"The plan does not hold: the destinations of leaf {leaf} get results of different associations."
                )
            if self.leaves[leaf].goal is Goal.FOLD:
                self.associations.update(value for _, value in first)

    def _check_output(self, index: int, begins: Sequence[int], length: int) -> None:
        """Refuse an output that lacks elements, or has unfinished or misplaced ones.

        ``begins``: the position at which each replica's elements begin, for goals that concatenate them; else empty. A
        finished fold has every contribution, because ``_join`` finishes no other.
        """
        buffer, pieces = self.buffers[index], self.stores[index].pieces
        is_final = self.leaves[buffer.leaf].goal is not Goal.COPY
        is_right = all(
            piece.leaf == buffer.leaf
            and piece.final == is_final
            and piece.start == piece.offset + (begins[piece.value] if begins and isinstance(piece.value, int) else 0)
            for piece in pieces
        )
        if not is_right or not sum(piece.stop - piece.start for piece in pieces) == buffer.length == length:
            raise PlanError(
                f"The plan does not hold: {buffer.name} does not end up with its {counted(buffer.length, 'element')} "
                "of the result."
            )

    def check_all_used(self) -> None:
        """Refuse pieces that were computed but never read."""
        for store in self.stores:
            piece = store.first_unread()
            if piece is not None and store.buffer.role is not Role.OUTPUT:
                raise PlanError(
                    f"The plan does not hold: elements {piece.start}:{piece.stop} of {store.buffer.name} are computed "
                    "and never used."
                )

    def _lengths(self, leaf: int) -> list[int]:
        return [self.buffers[index].length for index in self.inputs[leaf]]


def _associations(pieces: Iterable[Piece]) -> list[tuple[int, Association]]:
    """Return (start, association) for the runs of equal association in a buffer, however its pieces are cut."""
    found: list[tuple[int, Association]] = []
    for piece in pieces:
        if not found or found[-1][1] != piece.value:
            found.append((piece.start, piece.value))
    return found


_Access = tuple[int, int, bool]  # start, stop, whether it writes


def _part(column: list[Piece], start: int, stop: int) -> Piece:
    """Return the part between two positions of the one piece of a column that holds them."""
    return column[bisect.bisect_right(column, start, key=start_of) - 1].cut(start, stop)


def _check_no_conflict(step: Step, buffers: Sequence[Buffer]) -> None:
    """Refuse ranges outside their buffers, and a write that overlaps any other access of the step."""
    first: dict[int, _Access] = {}
    several: dict[int, list[_Access]] = {}  # most buffers are accessed once in a step and need no list
    for action in step.actions:
        target = action.target
        for index, part in enumerate((*action.sources, target)):
            if not 0 <= part.buffer < len(buffers):
                raise PlanError.malformed(f"there is no buffer {part.buffer}")
            if not 0 <= part.start <= part.stop <= buffers[part.buffer].length:
                raise PlanError.malformed(f"{part.start}:{part.stop} is outside {buffers[part.buffer].name}")
            # A fold may have its target among its sources: acc = acc + x.
            is_write = index == len(action.sources)
            if is_write or not (isinstance(action, Combine) and part == target):
                access = (part.start, part.stop, is_write)
                known = first.setdefault(part.buffer, access)
                if known is not access:
                    several.setdefault(part.buffer, [known]).append(access)
    for buffer, accesses in several.items():
        _check_ranges(buffers[buffer].name, accesses)


def _check_ranges(name: str, ranges: list[_Access]) -> None:
    """Refuse overlaps in one sweep over the ranges, sorted by start.

    A range may not begin before an earlier write ends, and a write not before an earlier read ends.
    """
    written = read = 0
    for start, stop, is_write in sorted(ranges):
        if start < written or (is_write and start < read):
            raise PlanError(
                f"elements {start}:{stop} of {name} are written while another action of the step uses them."
            )
        written, read = (max(written, stop), read) if is_write else (written, max(read, stop))
