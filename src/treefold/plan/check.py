"""The proof of a plan: it is run on symbols before it may run on numbers.

Every input element starts as "replica r's contribution to element e of leaf l"; copies and concatenations move such
symbols, combinations join them. In the end every output must hold each contribution exactly once, in the same
association on every destination. Ownership is proved, not sums: a contribution added twice cannot hide.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable

from treefold.devices import device_type
from treefold.errors import PlanError
from treefold.errors.words import listed
from treefold.plan import ir
from treefold.plan.ir import (
    Action,
    Buffer,
    Combine,
    Concat,
    Copy,
    Goal,
    Plan,
    PlanDraft,
    Range,
    Role,
    Step,
    runs_in_one_pass,
)
from treefold.plan.store import Association, Piece, Store, replicas_in

_RAW = frozenset({Role.INPUT, Role.SCRATCH})
_DONE = frozenset({Role.RESULT, Role.OUTPUT})
_LAID_OUT = frozenset({Goal.ROWS, Goal.GATHER})
_WORDS = {
    "collective": ("all_reduce", "reduce", "broadcast", "gather"),
    "executor": ("host", "local", "cuda", "nccl"),
    "kernel": ("native", "numpy", ""),
    "accumulate": ("wide", "native", "callback"),
}


def finish(draft: PlanDraft) -> Plan:
    """Prove a draft and return it as a ``Plan``. This is the only maker of plans.

    Proved: every range lies in its buffer and in one dtype; whatever is read was written in an earlier step; actions of
    one step touch nothing in common; inputs are never written and nothing is overwritten or left over unread; every
    output holds what its leaf's ``Goal`` says, each contribution exactly once, folded alike on all destinations.

    Raises:
        PlanError: naming the step and what is wrong with it.

    """
    try:
        _check_head(draft)
        run = _SymbolicRun(draft)
    except PlanError as error:
        raise PlanError.in_head(error) from None
    for number, step in enumerate(draft.steps, start=1):
        try:
            run.step(step)
        except PlanError as error:
            raise PlanError.in_step(number, error) from None
    run.check_goals()
    fields = ir.draft_fields(draft)
    return Plan(**fields, guarantee=run.guarantee(), proof=ir._PROOF)  # type: ignore[arg-type] # noqa: SLF001


def _check_head(draft: PlanDraft) -> None:
    for name, choices in _WORDS.items():
        word = getattr(draft, name)
        if word not in choices:
            raise PlanError.malformed(f"{name} {word!r} is not {listed(choices)}")
    if draft.num_packs < 0:
        raise PlanError.malformed(f"there cannot be {draft.num_packs} packs")
    strangers = sorted({buffer.device for buffer in draft.buffers if device_type(buffer.device) != "cpu"})
    if draft.executor == "host" and strangers:
        raise PlanError.malformed(f"the host executor cannot reach {', '.join(strangers)}")


class _SymbolicRun:
    def __init__(self, draft: PlanDraft) -> None:
        self.draft = draft
        self.stores = [Store(buffer) for buffer in draft.buffers]
        self.inputs: dict[int, list[int]] = defaultdict(list)
        self.outputs: dict[int, list[int]] = defaultdict(list)
        self.associations: set[Association] = set()
        self.is_partial = [buffer.role is Role.PARTIAL for buffer in draft.buffers]
        self._register_buffers()

    def _register_buffers(self) -> None:
        names = [buffer.name for buffer in self.draft.buffers]
        if len(set(names)) != len(names):
            raise PlanError.malformed("two buffers have the same name")
        for index, buffer in enumerate(self.draft.buffers):
            if not 0 <= buffer.leaf < len(self.draft.leaves) or buffer.length < 0:
                raise PlanError.malformed(f"buffer {buffer.name} has no such leaf or a negative length")
            if buffer.role is Role.INPUT:
                self.inputs[buffer.leaf].append(index)
                if buffer.length:
                    piece = Piece(0, buffer.length, buffer.leaf, 0, buffer.position, final=False, is_read=True)
                    self.stores[index].write(Range(index, 0, buffer.length), [piece])
            elif buffer.role is Role.OUTPUT:
                self.outputs[buffer.leaf].append(index)
        for leaf in range(len(self.draft.leaves)):
            self._check_inputs_and_outputs(leaf)

    def _check_inputs_and_outputs(self, leaf: int) -> None:
        path = self.draft.leaves[leaf].path
        for what, indices in (("inputs", self.inputs[leaf]), ("outputs", self.outputs[leaf])):
            positions = [self.draft.buffers[index].position for index in indices]
            if not positions or positions != list(range(len(positions))):
                raise PlanError.malformed(f"leaf {path!r} has {what} at positions {positions}, not 0, 1, 2 …")
        goal, lengths = self.draft.leaves[leaf].goal, [self.draft.buffers[index].length for index in self.inputs[leaf]]
        if goal not in _LAID_OUT and (len(set(lengths)) != 1 or (goal is Goal.COPY and len(lengths) != 1)):
            raise PlanError.malformed(f"leaf {path!r} has inputs of lengths {lengths}")

    def step(self, step: Step) -> None:
        """Read for all actions, then write for all: their order within a step must not matter."""
        if not step.actions:
            raise PlanError.malformed("it has no actions")
        _check_no_conflict(step, self.draft.buffers)
        results = [(action.target, self._evaluate(action)) for action in step.actions]
        for target, pieces in results:
            self._write(target, pieces)

    def _evaluate(self, action: Action) -> list[Piece]:
        if not -1 <= action.pack < self.draft.num_packs:
            raise PlanError.malformed(f"pack {action.pack} is not one of {self.draft.num_packs}")
        if not action.target.length:
            raise PlanError.malformed("it acts on no elements")
        if isinstance(action, Copy):
            return self._copy(action)
        self._check_one_device(action)
        return self._combine(action) if isinstance(action, Combine) else self._concat(action)

    def _copy(self, action: Copy) -> list[Piece]:
        source, target = action.source, action.target
        if source.length != target.length:
            raise PlanError.malformed(f"it copies {source.length} elements into {target.length}")
        self._check_same_kind(source, target)
        return self.stores[source.buffer].read(source, target.start)

    def _concat(self, action: Concat) -> list[Piece]:
        at, pieces = action.target.start, list[Piece]()
        for source in action.sources:
            self._check_same_kind(source, action.target)
            for piece in self.stores[source.buffer].read(source, at):
                if action.final and (piece.final or self.draft.leaves[piece.leaf].goal not in _LAID_OUT):
                    raise PlanError.malformed("it finishes what is finished already, or what must be folded or copied")
                piece.final = piece.final or action.final
                pieces.append(piece)
            at += source.length
        if at != action.target.stop:
            raise PlanError.malformed("the parts of a concatenation do not fill its target")
        return pieces

    def _combine(self, action: Combine) -> list[Piece]:
        target, columns = action.target, list[list[Piece]]()
        if not action.final and not self.is_partial[target.buffer]:
            raise PlanError.malformed("a fold that is not the last one makes partial folds, and goes elsewhere")
        for source in action.sources:
            if source.length != target.length:
                raise PlanError.malformed(f"it combines {source.length} elements into {target.length}")
            columns.append(self.stores[source.buffer].read(source, target.start))
        cuts = sorted({piece.start for column in columns for piece in column})
        return [
            self._join([_piece_at(column, start) for column in columns], start, stop, final=action.final)
            for start, stop in zip(cuts, [*cuts[1:], target.stop], strict=True)
        ]

    def _join(self, pieces: list[Piece], start: int, stop: int, *, final: bool) -> Piece:
        parts = [piece.cut(start, stop) for piece in pieces]
        first = parts[0]
        if any((part.leaf, part.offset) != (first.leaf, first.offset) for part in parts):
            raise PlanError.crossed(first.leaf, first.offset)
        if any(part.final for part in parts) or self.draft.leaves[first.leaf].goal is not Goal.FOLD:
            raise PlanError.malformed("it folds what is already a result, or what must not be folded")
        firsts = [replicas_in(part.value)[0] for part in parts]
        owners = [replica for part in parts for replica in replicas_in(part.value)]
        if len(set(owners)) != len(owners):
            raise PlanError.twice(sorted({owner for owner in owners if owners.count(owner) > 1}))
        if firsts != sorted(firsts):
            raise PlanError.out_of_order(firsts)
        if final and len(owners) != len(self.inputs[first.leaf]):
            missing = sorted(set(range(len(self.inputs[first.leaf]))) - set(owners))
            raise PlanError.missing(self.draft.leaves[first.leaf].path, missing)
        if self.draft.accumulate == "callback" and not (final and start == 0 and self._is_whole(parts)):
            raise PlanError.malformed("accumulation_fn takes the whole arrays of all replicas at once")
        # A partial fold that is folded again is rounded again: its association says so.
        value = first.value if isinstance(first.value, int) and len(parts) == 1 else tuple(p.value for p in parts)
        return Piece(start, stop, first.leaf, first.offset, value, final)

    def _is_whole(self, parts: list[Piece]) -> bool:
        """Tell whether these are the replicas' own contributions to all elements of a leaf."""
        lengths = {self.draft.buffers[index].length for index in self.inputs[parts[0].leaf]}
        return all(isinstance(part.value, int) and {part.stop - part.start} == lengths for part in parts)

    def _write(self, target: Range, pieces: list[Piece]) -> None:
        buffer = self.draft.buffers[target.buffer]
        if buffer.role is Role.INPUT:
            raise PlanError.malformed(f"it writes into the input {buffer.name}")
        for piece in pieces:
            if piece.leaf != buffer.leaf and self._kind(piece.leaf) != self._kind(buffer.leaf):
                raise PlanError.malformed(f"it puts another dtype, goal or number of replicas into {buffer.name}")
            if not self._may_hold(buffer.role, piece):
                raise PlanError.malformed(f"{buffer.name}, of role {buffer.role.value}, cannot hold this")
        self.stores[target.buffer].write(target, pieces)

    def _may_hold(self, role: Role, piece: Piece) -> bool:
        if self.draft.leaves[piece.leaf].goal is Goal.COPY:
            return role in {Role.SCRATCH, Role.OUTPUT}
        if piece.final:
            return role in _DONE
        return role is Role.PARTIAL or (role in _RAW and isinstance(piece.value, int))

    def _kind(self, leaf: int) -> tuple[str, Goal, int]:
        """Return what leaves must share to share a buffer, whose leaf decides how its contents are finished."""
        return self.draft.leaves[leaf].dtype, self.draft.leaves[leaf].goal, len(self.inputs[leaf])

    def _check_same_kind(self, source: Range, target: Range) -> None:
        if self.is_partial[source.buffer] != self.is_partial[target.buffer]:
            raise PlanError.malformed("moving cannot turn contributions into partial folds, or back")

    def _check_one_device(self, action: Combine | Concat) -> None:
        if self.draft.executor == "host" and action.sources:
            return  # all its devices share one memory
        devices = {self.draft.buffers[r.buffer].device for r in (*action.sources, action.target)}
        if not action.sources or len(devices) != 1:
            raise PlanError.malformed(f"it needs sources and one device, and has {sorted(devices)}")

    def check_goals(self) -> None:
        """Look at every output, and at what was computed for nobody."""
        for leaf, indices in self.outputs.items():
            expected = self._expected(leaf)
            checked: list[tuple[int, list[_Part]]] = []
            for index in indices:
                buffer, found = self.draft.buffers[index], _merged(self.stores[index].pieces)
                # Thousands of outputs hold the same: an association of all replicas is walked through once.
                if (buffer.length, found) not in checked:
                    self._check_output(buffer, found, expected)
                    checked.append((buffer.length, found))
            if len(checked) > 1:
                raise PlanError.differing(self.draft.leaves[leaf].path)
        for store in self.stores:
            piece = store.first_unread()
            if piece is not None and store.buffer.role is not Role.OUTPUT:
                raise PlanError.unused(store.buffer.name, piece.start, piece.stop)

    def _expected(self, leaf: int) -> list[tuple[int, int, int]]:
        """Return (replica or -1 for all, offset, length) of the parts that make up an output."""
        lengths = [self.draft.buffers[index].length for index in self.inputs[leaf]]
        goal = self.draft.leaves[leaf].goal
        if goal in _LAID_OUT:
            return [(replica, 0, length) for replica, length in enumerate(lengths) if length]
        return [(-1, 0, lengths[0])] if lengths[0] else []

    def _check_output(self, buffer: Buffer, found: list[_Part], expected: list[tuple[int, int, int]]) -> None:
        leaf, goal = buffer.leaf, self.draft.leaves[buffer.leaf].goal
        if any(part[1] != leaf for part in found) or sum(part[0] for part in found) != buffer.length:
            raise PlanError.incomplete(buffer.name, buffer.length)
        if goal is Goal.FOLD:
            ranges = [(offset, offset + length) for length, _, offset, _, _ in found]
            whole = [(0, expected[0][2])] if expected else []
            # A leaf may be folded in several associations, one per pack that carries a part of it.
            complete = _joined(ranges) == whole and all(final for *_, final in found)
            self.associations.update(value for *_, value, _ in found)
            everyone = list(range(len(self.inputs[leaf])))
            complete = complete and all(sorted(replicas_in(value)) == everyone for *_, value, _ in found)
        else:
            parts = [(-1 if goal is Goal.COPY else value, offset, length) for length, _, offset, value, _ in found]
            complete = parts == expected and all(final == (goal is not Goal.COPY) for *_, final in found)
        if not complete or sum(part[2] for part in expected) != buffer.length:
            raise PlanError.incomplete(buffer.name, buffer.length)

    def guarantee(self) -> str:
        """Derive which promise about bits the plan keeps."""
        if self.draft.accumulate == "callback":
            return "callback"
        if runs_in_one_pass(self.draft):
            return "replica_order"
        if self.draft.executor == "nccl" and self.associations:
            return "per_plan"  # the order in which NCCL adds is its own
        is_flat = all(replicas_in(v) == v or isinstance(v, int) for v in self.associations)
        is_ordered = all(list(replicas_in(v)) == sorted(replicas_in(v)) for v in self.associations)
        return "replica_order" if is_flat and is_ordered else "per_plan"


_Part = tuple[int, int, int, Association, bool]  # length, leaf, offset, value, final


def _merged(pieces: Iterable[Piece]) -> list[_Part]:
    """Return pieces without the cuts that mean nothing."""
    parts: list[_Part] = []
    for piece in pieces:
        part = (piece.stop - piece.start, piece.leaf, piece.offset, piece.value, piece.final)
        if parts and parts[-1][1] == part[1] and parts[-1][3:] == part[3:] and sum(parts[-1][0:3:2]) == part[2]:
            part = (parts[-1][0] + part[0], *parts.pop()[1:])
        parts.append(part)
    return parts


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _piece_at(column: list[Piece], position: int) -> Piece:
    return column[bisect.bisect_right(column, position, key=lambda piece: piece.start) - 1]


def _check_no_conflict(step: Step, buffers: tuple[Buffer, ...]) -> None:
    """Refuse ranges outside their buffers, and a write that overlaps any other access of the step."""
    accesses: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for action in step.actions:
        target = action.target
        sources = (action.source,) if isinstance(action, Copy) else action.sources
        for place in (*sources, target):
            if not 0 <= place.buffer < len(buffers):
                raise PlanError.malformed(f"there is no buffer {place.buffer}")
            if not 0 <= place.start <= place.stop <= buffers[place.buffer].length:
                raise PlanError.malformed(f"{place.start}:{place.stop} is outside {buffers[place.buffer].name}")
        accesses[target.buffer].append((target.start, target.stop, True))
        for source in sources:
            # Folding into one's own source is allowed: acc = acc + x.
            if not (isinstance(action, Combine) and source == target):
                accesses[source.buffer].append((source.start, source.stop, False))
    for buffer, ranges in accesses.items():
        if len(ranges) > 1:  # most buffers are accessed once in a step
            _check_ranges(buffers[buffer].name, ranges)


def _check_ranges(name: str, ranges: list[tuple[int, int, bool]]) -> None:
    written = read = 0
    for start, stop, is_write in sorted(item for item in ranges if item[0] < item[1]):
        if start < written or (is_write and start < read):
            raise PlanError.conflict(name, start, stop)
        written, read = (max(written, stop), read) if is_write else (written, max(read, stop))
