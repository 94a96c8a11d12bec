"""The plan: a movement, and how it runs here."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from treefold.devices import device_type
from treefold.dtypes import itemsize
from treefold.errors import PlanError
from treefold.errors.words import bytes_in_words, counted, listed, short
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Hop, Role, Step
from treefold.plan.movement import Movement, drawn, hops_of
from treefold.plan.serialize import (
    plain_buffer,
    plain_steps,
    read_buffer,
    read_leaf,
    read_list,
    read_number,
    read_object,
    read_step,
    read_text,
)

_VERSION = 1  # of the form in JSON
_HEAD = ("collective", "algorithm", "executor", "kernel", "accumulate")  # as it stands in JSON
_CHOICES = {
    "collective": ("all_reduce", "reduce", "broadcast", "gather"),
    "kernel": ("native", "native-flag", "native-integers", "native-none", "numpy", ""),
    "accumulate": ("exact", "wide", "native", "callback"),
}
_GUARANTEES = {
    "exact": "every element is the exact value, rounded once: the same bits in any order, packing and plan",
    "replica_order": "every element is folded once, in replica order: the same bits whatever the packing or plan",
    "per_plan": "the same bits on every destination and on every run of this plan",
}
_OWN = "what accumulation_fn returns, copied to every destination"
_KERNELS = {
    "native-flag": "native kernel, proved exact by the processor's flag",
    "native-integers": "native kernel, proved exact by exponents",
    "native-none": "native kernel, without its first tier",
}
_VERBS = {
    Goal.FOLD: "fold {}",
    Goal.ROWS: "lay {} behind each other",
    Goal.GATHER: "lay {} behind each other",
    Goal.COPY: "copy {}",
}
_SHOWN = 6  # of one kind in a line; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTraits:
    """The abilities of an executor on which the checks, the guarantee and the text of its plans depend.

    Args:
        shares_memory: All devices are in one host's memory, so each can read the others and nothing travels.
        joins_ranks: Several processes share that memory, and device names contain their ranks.
        adds_exactly: It has exact partial sums.
        most_devices_in_one_pass: Plans on at most this many devices are folded in one pass, in replica order, without
            the steps; 0: none are.
        own_promise: The guarantee of plans if the executor itself orders the folds, in words; else empty.
        manner: How it runs a plan that is not one pass, in words.

    """

    shares_memory: bool = False
    joins_ranks: bool = False
    adds_exactly: bool = False
    most_devices_in_one_pass: float = 0
    own_promise: str = ""
    manner: str = "step by step"

    def reaches(self, kind: str) -> bool:
        """Return whether the executor can reach the memory of devices of a type, such as ``"cpu"``."""
        return kind == "cpu" or (self.joins_ranks and kind.endswith("/cpu"))

    def runs_in_one_pass(self, devices: Collection[str]) -> bool:
        """Return whether plans on these devices are folded in one pass, because one memory has no links to spare."""
        return bool(self.most_devices_in_one_pass) and len(devices) <= self.most_devices_in_one_pass


#: The executor that runs plans step by step, on any backend. Plans for other machines name it.
STEP_BY_STEP = "local"
#: The executors of groups, in which each process has its own values only. On one host, the rank that owns a slice folds
#: it in memory that all ranks can read; on several hosts, each rank walks its program.
SHARED_MEMORY, HOSTS = "shared_memory", "hosts"
#: By the name in plans. ``execution.additional_executor`` adds one while its ``with`` block runs.
EXECUTORS = {
    "host": ExecutorTraits(shares_memory=True, most_devices_in_one_pass=math.inf),
    STEP_BY_STEP: ExecutorTraits(),
    "graph": ExecutorTraits(shares_memory=True, most_devices_in_one_pass=math.inf),
    "cuda": ExecutorTraits(most_devices_in_one_pass=1, manner="chunks of all steps in flight together"),
    "nccl": ExecutorTraits(
        own_promise="the same bits on every destination; on every run, if NCCL chooses the same way",
        manner="in place of the copies and combinations of a pack, wherever it does the same",
    ),
    SHARED_MEMORY: ExecutorTraits(shares_memory=True, joins_ranks=True, most_devices_in_one_pass=math.inf),
    HOSTS: ExecutorTraits(
        joins_ranks=True, adds_exactly=True, manner="chunk by chunk, over the channels between hosts"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Movement):
    """A movement that is proved, and how it runs here.

    ``print(plan)`` shows one line per step, or, where one memory holds everything, the work of its one pass.

    Args:
        leaves: The arrays of the batch.
        buffers: Their inputs and outputs, and scratch.
        steps: What moves.
        collective: ``"all_reduce"``, ``"reduce"``, ``"broadcast"`` or ``"gather"``.
        algorithm: The planner, in words.
        paths: The path of each leaf in the caller's structure.
        executor: The executor's name; ``traits`` has its abilities.
        kernel: The arithmetic on host memory: ``"numpy"``, or ``"native"`` and what proves its sums exact, such as
            ``"native-flag"``. Empty elsewhere.
        accumulate: ``"exact"``, ``"wide"`` (in the next wider dtype), ``"native"`` or ``"callback"``.
        notes: Sentences that a user should see, such as a fallback and its reason.
        is_exact: Whether no order of the folds changes a bit, as in MIN, MAX, and sums of integers.

    Raises:
        PlanError: The movement fails its proof, or its executor cannot run it.

    """

    collective: str
    algorithm: str
    paths: tuple[str, ...]
    executor: str = STEP_BY_STEP
    kernel: str = ""
    accumulate: str = "wide"
    notes: tuple[str, ...] = ()
    is_exact: bool = False
    traits: ExecutorTraits = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Prove the movement, then check that it can run here."""
        Movement.__post_init__(self)
        problem = self._problem()
        if problem:
            raise PlanError.in_head(PlanError.malformed(problem))
        object.__setattr__(self, "traits", EXECUTORS[self.executor])

    def _problem(self) -> str:
        """Return why the executor cannot run the movement; empty if it can."""
        # Tuples, because `in` then does not hash: the value may be any object.
        for name, choices in {**_CHOICES, "executor": tuple(EXECUTORS)}.items():
            if getattr(self, name) not in choices:
                return f"{name} {getattr(self, name)!r} is not {listed(choices)}"
        if len(self.paths) != len(self.leaves):
            return f"the number of paths is {len(self.paths)}, that of leaves {len(self.leaves)}"
        traits = EXECUTORS[self.executor]
        strangers = sorted({name for name in self.devices if not traits.reaches(device_type(name))})
        if traits.shares_memory and strangers:
            return f"the {self.executor} executor cannot reach {', '.join(strangers)}"
        if self.proof.reaches_across and not traits.shares_memory:
            return f"the {self.executor} executor cannot fold or concatenate what lies on several devices"
        if self.accumulate == "callback" and not self.proof.folds_whole:
            return "accumulation_fn takes the whole arrays of all replicas at once"
        has_exact = traits.adds_exactly and self.accumulate == "exact"
        is_bare = self.proof.has_exact and not has_exact
        return f"the {self.executor} executor has no partial sums that are {self.accumulate}" * is_bare

    @property
    def is_one_pass(self) -> bool:
        """Whether the executor folds every element once, in replica order, in place of the steps.

        The host does, and a single GPU: one memory has no links to spare.
        """
        return self.traits.runs_in_one_pass(self.devices)

    @property
    def guarantee(self) -> str:
        """The plan's promise about bits: ``"exact"``, ``"replica_order"`` or ``"per_plan"``.

        A plan is ``"exact"`` if results are the exact value, rounded once, or if no order of the folds changes a bit.
        The promise is ``"replica_order"`` if all contributions to an element meet at once, in replica order, and are
        rounded as they are added: all such plans give the same bits. Else partial folds are rounded, and it is
        ``"per_plan"``: the same plan gives the same bits on every destination and every run; with NCCL, if it chooses
        the same algorithm.
        """
        whole = "exact" if self.accumulate == "exact" else "replica_order"
        if self.is_one_pass:
            return whole
        if self.traits.own_promise and any(
            isinstance(action, Combine) for step in self.steps for action in step.actions
        ):
            return "per_plan"  # the executor chooses the order of the fold
        if self.is_exact:
            return "exact"
        return whole if self.proof.is_flat else "per_plan"

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The copies that cross from one device to another, in order of their steps; none within host memory."""
        return () if self.traits.shares_memory else hops_of(self)

    def to_json(self) -> str:
        """Return the plan as JSON text, which ``treefold.plan.from_json`` reads and proves."""
        pairs = zip(self.paths, self.leaves, strict=True)
        return json.dumps(
            {
                "treefold_plan": _VERSION,
                **{word: getattr(self, word) for word in _HEAD},
                "num_packs": self.num_packs,
                "notes": list(self.notes),
                **({"is_exact": True} if self.is_exact else {}),
                "leaves": [[path, leaf.dtype, leaf.goal.value] for path, leaf in pairs],
                "buffers": [plain_buffer(buffer) for buffer in self.buffers],
                "steps": plain_steps(self.steps),
            }
        )

    def __repr__(self) -> str:
        """Return one line: the first of the plan's text, its number of steps and its guarantee."""
        steps = "one pass" if self.is_one_pass else counted(len(self.steps), "step")
        return f"<Plan: {self._headline()}; {steps}, {self.guarantee}>"

    def _repr_html_(self) -> str | None:
        """Return the drawing that notebooks show, or None without ``treefold.topology``."""
        return drawn("movement", self, title=f"{self.collective} by {self.algorithm}")

    def _headline(self) -> str:
        packs = "" if self.is_one_pass else f" {counted(self.num_packs, 'pack')},"
        return f"{self.collective} by {self.algorithm}: {_describe_amounts(self)},{packs} on {_shortened(self.devices)}"

    def __str__(self) -> str:
        """Return the plan as text that can be pasted into an issue."""
        lines = [
            self._headline(),
            f"executor:  {self._describe_executor()}",
            f"guarantee: {self.guarantee} - {self._describe_guarantee()}",
            *(f"note:      {note}" for note in self.notes),
        ]
        return "\n".join([*lines, *(_describe_one_pass(self) if self.is_one_pass else _describe_steps(self))])

    def _describe_executor(self) -> str:
        if self.is_one_pass:
            kernel = _KERNELS.get(self.kernel, f"{self.kernel} kernel")
            name = f"{self.executor} ({kernel})" if self.kernel else self.executor
            if not any(leaf.goal is Goal.FOLD for leaf in self.leaves):
                return f"{self.executor}, one pass"
            return f"{name}, one pass" if self.accumulate == "exact" else f"{name}, one pass in replica order"
        return f"{self.executor}, {self.traits.manner}"

    def _describe_guarantee(self) -> str:
        if self.accumulate == "callback":
            return _OWN
        own_promise = self.traits.own_promise if self.guarantee == "per_plan" else ""
        return own_promise or _GUARANTEES[self.guarantee]


def from_json(text: str) -> Plan:
    """Read a plan back and prove it.

    Raises:
        PlanError: The text is not a plan, or the plan fails its proof.

    """
    data = read_object(text)
    if type(data.get("treefold_plan")) is not int or data["treefold_plan"] != _VERSION:
        raise PlanError.unreadable(f"it is not an object with treefold_plan: {_VERSION}")
    known = {*_HEAD, "treefold_plan", "num_packs", "notes", "leaves", "buffers", "steps"}
    if data.keys() - {"is_exact"} != known or data.get("is_exact", True) is not True:
        raise PlanError.unreadable(f"fields {sorted(data.keys() ^ known)} are missing or unknown")
    num_packs = read_number(data["num_packs"])
    leaves = [read_leaf(leaf) for leaf in read_list(data["leaves"])]
    plan = Plan(
        **{word: read_text(data[word]) for word in _HEAD},
        notes=tuple(read_text(note) for note in read_list(data["notes"])),
        is_exact="is_exact" in data,
        paths=tuple(path for path, _ in leaves),
        leaves=tuple(leaf for _, leaf in leaves),
        buffers=tuple(read_buffer(buffer) for buffer in read_list(data["buffers"])),
        steps=tuple(read_step(step) for step in read_list(data["steps"])),
    )
    if num_packs != plan.num_packs:
        raise PlanError.unreadable(f"num_packs is {short(num_packs)}, and its steps carry {plan.num_packs}")
    return plan


def _describe_amounts(movement: Movement) -> str:
    """Return the numbers of arrays and replicas of a movement, in words."""
    replicas = sum(buffer.role is Role.INPUT and buffer.leaf == 0 for buffer in movement.buffers)
    return f"{counted(len(movement.leaves), 'array')} per replica, {counted(replicas, 'replica')}"


def _describe_steps(movement: Movement) -> list[str]:
    """Return a line for every step."""
    return [f"step {number}: {_step(movement, step)}" for number, step in enumerate(movement.steps, start=1)]


def _describe_one_pass(movement: Movement) -> list[str]:
    """Return the work of one pass, a line for each kind of arrays."""
    sizes: dict[int, list[Buffer]] = {index: [] for index in range(len(movement.leaves))}
    for buffer in movement.buffers:
        sizes[buffer.leaf].append(buffer)
    alike: dict[tuple[str, int, int], list[int]] = {}
    for index, buffers in sizes.items():
        leaf = movement.leaves[index]
        replicas = sum(buffer.role is Role.INPUT for buffer in buffers)
        key = (_VERBS[leaf.goal], replicas, len(buffers) - replicas)
        alike.setdefault(key, []).append(buffers[-1].length * itemsize(leaf.dtype))
    return [
        f"one pass:  {verb.format(counted(replicas, 'replica'))} into {counted(results, 'result')},"
        f" {counted(len(nbytes), 'array')} ({bytes_in_words(sum(nbytes))}) each"
        for (verb, replicas, results), nbytes in alike.items()
    ]


def _step(movement: Movement, step: Step) -> str:
    parts = []
    for kind, verb in ((Copy, "copy"), (Combine, "combine"), (Concat, "concat")):
        actions = [action for action in step.actions if isinstance(action, kind)]
        if actions:
            devices = Counter(_devices(movement, action) for action in actions)
            listed = [f"{words} ×{times}" if times > 1 else words for words, times in devices.items()]
            nbytes = sum(_nbytes(movement, action) for action in actions)
            parts.append(f"{verb} {_shortened(listed)} ({bytes_in_words(nbytes)})")
    return "; ".join(parts)


def _devices(movement: Movement, action: Action) -> str:
    target = movement.buffers[action.target.buffer]
    if not isinstance(action, Copy):
        return f"{counted(len(action.sources), 'part')} on {target.device}"
    source = movement.buffers[action.source.buffer]
    return f"within {target.device}" if source.device == target.device else f"{source.device}→{target.device}"


def _nbytes(movement: Movement, action: Action) -> int:
    buffer = movement.buffers[action.target.buffer]
    return action.target.length * itemsize(movement.leaves[buffer.leaf].dtype)


def _shortened(items: Sequence[str]) -> str:
    """Return items separated by commas; of more than eight, the first six and the number of the others."""
    if len(items) <= _SHOWN + 2:
        return ", ".join(items)
    return f"{', '.join(items[:_SHOWN])} … and {len(items) - _SHOWN} more"
