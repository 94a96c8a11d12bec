"""The plan: what moves where, as data.

A plan is a list of named buffers on devices and a list of steps over ranges of them. There are three actions: copy a
range, combine ranges that hold contributions to the same elements, concatenate ranges. Trees are the planners' notion
and do not appear here; neither do arrays, frameworks or the reduce op: one plan serves every op.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import InitVar, dataclass

from treefold.dtypes import itemsize
from treefold.errors import PlanError


class Role(enum.Enum):
    """What a buffer is for."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"
    #: Scratch that holds partial folds, whose dtype is the fold's business (``Fold.partial_dtype``).
    PARTIAL = "partial"
    #: Scratch that holds results on their way to outputs.
    RESULT = "result"


class Goal(enum.Enum):
    """What each output of a leaf must hold in the end."""

    FOLD = "fold"  #: each element: every replica's contribution, exactly once
    ROWS = "rows"  #: all replicas' elements in replica order; divided by their number under MEAN (sparse values)
    GATHER = "gather"  #: all replicas' elements in replica order, as they are
    COPY = "copy"  #: the one input


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the batch: where it stands in the caller's structure, and what is asked for it."""

    path: str
    dtype: str
    goal: Goal


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named storage of ``length`` elements on a device.

    ``leaf`` is the index of the leaf whose dtype it has, and that an input or output belongs to. ``position`` is the
    replica of an input or the component of an output; -1 for scratch.
    """

    name: str
    device: str
    length: int
    role: Role
    leaf: int
    position: int = -1


@dataclass(frozen=True, slots=True)
class Range:
    """Elements ``start`` to ``stop`` of the buffer with index ``buffer``."""

    buffer: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one range into another of the same length, on the same device or across a link."""

    source: Range
    target: Range
    pack: int


@dataclass(frozen=True, slots=True)
class Combine:
    """Fold ranges on one device into a range there, in the order given, which is replica order.

    ``final`` marks the fold that holds every contribution: there MEAN divides and the result is rounded.
    """

    sources: tuple[Range, ...]
    target: Range
    pack: int
    final: bool


@dataclass(frozen=True, slots=True)
class Concat:
    """Lay ranges on one device behind each other into a range there.

    ``final`` marks the concatenation that makes the result of a ROWS or GATHER leaf.
    """

    sources: tuple[Range, ...]
    target: Range
    pack: int
    final: bool = False


Action = Copy | Combine | Concat


@dataclass(frozen=True, slots=True)
class Step:
    """Actions that may run at once, or in any order."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """A plan before its proof; ``treefold.plan.check.finish`` makes the ``Plan``.

    ``collective``: ``"all_reduce"``, ``"reduce"``, ``"broadcast"`` or ``"gather"``. ``algorithm``: what planned it, in
    words. ``executor``: ``"host"``, ``"local"``, ``"cuda"`` or ``"nccl"``. ``kernel``: what does the arithmetic on host
    memory, ``"native"`` or ``"numpy"``, else empty. ``accumulate``: ``"wide"``, ``"native"`` or ``"callback"``.
    ``num_packs``: how many packs ``steps`` carries. ``notes``: sentences a user should see, such as a fallback and its
    reason.
    """

    collective: str
    algorithm: str
    executor: str
    kernel: str
    accumulate: str
    leaves: tuple[Leaf, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    num_packs: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """One copy between two devices: in which step, for which pack, how many bytes in the leaf's dtype."""

    step: int
    pack: int
    source: str
    target: str
    nbytes: int


_PROOF = object()  # held by treefold.plan.check alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PlanDraft):
    """A proved plan: every destination gets every contribution exactly once.

    Only ``treefold.plan.check.finish`` makes one, so that a plan in hand is a proved plan. ``guarantee``:
    ``"replica_order"`` where all contributions to an element meet at once, in replica order, so that every plan gives
    the same bits; ``"per_plan"`` where partial folds travel, so that the same plan gives the same bits on every
    destination and every run (with NCCL: as far as it goes the same way); ``"callback"`` where an ``accumulation_fn``
    has the say.
    ``print(plan)`` shows what runs: one line per step, or, where one memory holds everything, what its one pass does.
    """

    guarantee: str
    proof: InitVar[object]

    def __post_init__(self, proof: object) -> None:
        """Refuse to exist without a proof."""
        if proof is not _PROOF:
            raise PlanError.unproved()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the plan touches, in order of first mention."""
        return tuple(dict.fromkeys(buffer.device for buffer in self.buffers))

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The copies that cross from one device to another, in order of their steps; none within host memory."""
        if self.executor == "host":
            return ()
        place = self.buffers
        return tuple(
            Hop(
                number,
                action.pack,
                place[action.source.buffer].device,
                place[action.target.buffer].device,
                action.source.length * itemsize(self.leaves[place[action.source.buffer].leaf].dtype),
            )
            for number, step in enumerate(self.steps, start=1)
            for action in step.actions
            if isinstance(action, Copy) and place[action.source.buffer].device != place[action.target.buffer].device
        )

    def to_json(self) -> str:
        """Return the plan as JSON text, which ``treefold.plan.from_json`` proves again as it reads it."""
        from treefold.plan.serialize import to_json  # noqa: PLC0415 - as below

        return to_json(self)

    def __str__(self) -> str:
        """Return the plan in words."""
        from treefold.plan.text import describe  # noqa: PLC0415 - text is written from the plan, not the plan from text

        return describe(self)


def runs_in_one_pass(draft: PlanDraft) -> bool:
    """Tell whether the executor folds every element once, in replica order, and does not walk the tree.

    On one memory there are no links to spare: on the host, and on a single GPU.
    """
    is_one_gpu = draft.executor == "cuda" and len({buffer.device for buffer in draft.buffers}) == 1
    return draft.executor == "host" or is_one_gpu


def draft_fields(draft: PlanDraft) -> dict[str, object]:
    """Return the fields that a draft and the plan made from it share, by name."""
    return {field.name: getattr(draft, field.name) for field in dataclasses.fields(PlanDraft)}
