"""Plans are broken on purpose, thousands of times, and every one that would go wrong must be refused.

An interpreter that shares nothing with the proof decides which go wrong. It moves numbers, one element at a time, and
runs every step in several orders.
"""

import dataclasses
import os
import random
from collections import Counter
from fractions import Fraction

import pytest

from treefold.errors import PlanError
from treefold.plan import Plan
from treefold.plan.ir import Combine, Concat, Copy, Goal, Leaf, Range, Role, Step
from treefold.planners import LeafWork, PlanBuilder, add_broadcast, add_concat, add_star, add_two_level
from treefold.planners.packing import Item, PackingPolicy
from treefold.planners.star import add_one_shot

CASES = os.environ.get("TREEFOLD_CASES", "20000")
#: Of each of the 40 plans between each number of replicas.
MUTANTS = max(-(-(200_000 if CASES == "full" else int(CASES)) // (40 * 8)), 8)
POLICIES = (PackingPolicy(), PackingPolicy(num_packs=1), PackingPolicy(num_packs=3), PackingPolicy(bytes_per_pack=12))


def drawing(seed):
    return random.Random(seed)  # noqa: S311 - nothing is secret here


class WrongError(Exception):
    """The interpreter has seen something that must not happen."""


class Interpreter:
    """Runs a draft as a MEAN of int8, in which contributions, partial sums and results are of three dtypes."""

    def __init__(self, draft):
        self.draft = draft
        self.inputs = [
            [b for b in draft.buffers if b.role is Role.INPUT and b.leaf == i] for i in range(len(self.draft.leaves))
        ]
        numbers = drawing(0)
        self.owned = {
            (b.leaf, b.position, e): numbers.getrandbits(96)
            for buffers in self.inputs
            for b in buffers
            for e in range(b.length)
        }

    def is_right(self):
        """Tell whether the draft gives every output its result, in whatever order a step's actions run."""
        if not all(self._has_form(leaf) for leaf in range(len(self.draft.leaves))):
            return False
        orders = (list, lambda actions: actions[::-1], lambda actions: drawing(1).sample(actions, len(actions)))
        try:
            runs = [self._run(order, at_once=at_once) for order in orders for at_once in (False, True)]
            return all(cells == self._expected(index) for run in runs for index, cells in run.items())
        except WrongError:
            return False

    def _has_form(self, leaf):
        """Tell whether replicas and components are counted from 0 and there is what the goal needs."""
        for role in (Role.INPUT, Role.OUTPUT):
            positions = [b.position for b in self.draft.buffers if b.role is role and b.leaf == leaf]
            if not positions or sorted(positions) != list(range(len(positions))):
                return False
        return self.draft.leaves[leaf].goal is not Goal.COPY or len(self.inputs[leaf]) == 1

    def _run(self, order, *, at_once):
        cells = [[None] * max(buffer.length, 0) for buffer in self.draft.buffers]
        for index, buffer in enumerate(self.draft.buffers):
            if buffer.role is Role.INPUT:
                cells[index] = [(self.owned[buffer.leaf, buffer.position, e], "raw") for e in range(buffer.length)]
        for step in self.draft.steps:
            waiting = []
            for action in order(list(step.actions)):
                waiting.append((action.target, self._evaluate(action, cells)))
                if not at_once:
                    self._store(cells, *waiting.pop())
            for target, values in waiting:
                self._store(cells, target, values)
        return {i: cells[i] for i, buffer in enumerate(self.draft.buffers) if buffer.role is Role.OUTPUT}

    def _evaluate(self, action, cells):
        target = self.draft.buffers[action.target.buffer]
        if isinstance(action, Copy):
            return self._read(cells, action.source)
        columns = [self._read(cells, source) for source in action.sources]
        if not columns or {self.draft.buffers[source.buffer].device for source in action.sources} != {target.device}:
            raise WrongError
        count = len(self.inputs[target.leaf])
        if isinstance(action, Combine):
            if len({len(column) for column in columns}) != 1:
                raise WrongError
            sums = [sum(value for value, _ in column) for column in zip(*columns, strict=True)]
            return [(Fraction(value, count), "result") if action.final else (value, "partial") for value in sums]
        joined = [cell for column in columns for cell in column]
        if len({kind for _, kind in joined}) != 1:
            raise WrongError
        divides = action.final and self.draft.leaves[target.leaf].goal is Goal.ROWS
        return [(Fraction(value, count), "result") for value, _ in joined] if divides else joined

    def _read(self, cells, source):
        self._check(source)
        found = cells[source.buffer][source.start : source.stop]
        if None in found:
            raise WrongError
        return found

    def _store(self, cells, target, values):
        self._check(target)
        buffer = self.draft.buffers[target.buffer]
        if buffer.role is Role.INPUT or len(values) != target.length:
            raise WrongError
        if self.draft.leaves[buffer.leaf].goal in {Goal.FOLD, Goal.ROWS}:
            holds = {Role.SCRATCH: "raw", Role.PARTIAL: "partial"}.get(buffer.role, "result")
            if any(kind != holds for _, kind in values):
                raise WrongError
        cells[target.buffer][target.start : target.stop] = values

    def _check(self, where):
        buffers = self.draft.buffers
        if not (0 <= where.buffer < len(buffers) and 0 <= where.start < where.stop <= buffers[where.buffer].length):
            raise WrongError

    def _expected(self, index):
        leaf = self.draft.buffers[index].leaf
        values = [[self.owned[leaf, b.position, e] for e in range(b.length)] for b in self.inputs[leaf] if b.length]
        goal, count = self.draft.leaves[leaf].goal, len(self.inputs[leaf])
        if goal is Goal.FOLD:
            if len({len(part) for part in values}) > 1 or (values and len(values) < count):
                raise WrongError
            return [(Fraction(sum(column), count), "result") for column in zip(*values, strict=True)]
        flat = [value for part in values for value in part]
        return [(Fraction(v, count), "result") if goal is Goal.ROWS else (v, "raw") for v in flat]


def drafts(count):
    """Yield plans between ``count`` replicas: every planner, several packings, shared devices, several leaves."""
    own = tuple(f"gpu:{r}" for r in range(count))
    shared = tuple(f"gpu:{r // 2}" for r in range(count))
    for sources, destinations in ((own, own), (own, own[::-1]), (shared, shared)):
        for policy in POLICIES:
            for planner in ("star", "two_level", "one_shot"):
                yield folding(planner, policy, sources, destinations)
    yield folding("star", POLICIES[2], own, ("gpu:99", "gpu:0"))
    for goal in (Goal.ROWS, Goal.GATHER, Goal.COPY):
        yield moving(goal, own, (*own[:2], "gpu:99"))


def folding(planner, policy, sources, destinations):
    """Return a plan that folds leaves of 1, 5 and 3 elements."""
    lengths = (1, 5, 3)
    work = [LeafWork(Leaf("int8", Goal.FOLD), (n,) * len(sources), sources, destinations)
            for i, n in enumerate(lengths)]  # fmt: skip
    builder = PlanBuilder(work)
    items = [Item(index, "int8", length) for index, length in enumerate(lengths)]
    for number, pack in enumerate(policy.packs(items, len(set(sources)))):
        if planner == "star":
            add_star(builder, pack, destinations[number % len(destinations)])
        elif planner == "one_shot":
            add_one_shot(builder, pack)
        else:
            add_two_level(builder, pack, number)
    return Draft(builder.leaves, builder.buffers, builder.steps)


def moving(goal, sources, destinations):
    """Return a plan that lays 2, 0, 1, 2, 0 … rows behind each other, or copies the first ones."""
    lengths = tuple((2, 0, 1)[r % 3] for r in range(len(sources)))
    if goal is Goal.COPY:
        sources, lengths = sources[:1], lengths[:1]
    builder = PlanBuilder([LeafWork(Leaf("int8", goal), lengths, sources, destinations)])
    if goal is Goal.COPY:
        add_broadcast(builder, 0)
    else:
        add_concat(builder, 0, destinations[0])
    return Draft(builder.leaves, builder.buffers, builder.steps)


@dataclasses.dataclass(frozen=True)
class Draft:
    """The parts of a plan that nobody has proved."""

    leaves: tuple
    buffers: tuple
    steps: tuple

    def proved(self):
        """Return the plan that runs them, by an executor that needs every fold on one device."""
        words = {"collective": "all_reduce", "algorithm": "", "paths": ("",) * len(self.leaves)}
        return Plan(leaves=self.leaves, buffers=self.buffers, steps=self.steps, **words)


class Mutator:
    """Breaks one thing in a draft; which one is drawn by ``rng``."""

    def __init__(self, rng):
        self.rng = rng
        self.kinds = (
            self._drop, self._duplicate, self._move, self._swap_steps, self._swap_actions, self._merge_steps,
            self._drop_step, self._retarget, self._resource, self._shift, self._resize, self._reorder_sources,
            self._drop_source, self._duplicate_source, self._flip_final, self._change_device, self._change_role,
            self._change_length, self._change_leaf, self._change_position, self._swap_buffers,
        )  # fmt: skip

    def mutant(self, draft):
        """Return the name of a kind of mutation and a draft so changed; None where it does not apply."""
        kind = self.rng.choice(self.kinds)
        steps = [list(step.actions) for step in draft.steps]
        buffers = list(draft.buffers)
        kind(steps, buffers)
        if self.rng.random() < 0.25:  # a quarter breaks twice
            self.rng.choice(self.kinds)(steps, buffers)
        made = tuple(Step(tuple(actions)) for actions in steps if actions)
        changed = dataclasses.replace(draft, steps=made, buffers=tuple(buffers))
        return None if changed == draft else (kind.__name__, changed)

    def _pick(self, steps):
        step = self.rng.choice([s for s in steps if s])
        return step, self.rng.randrange(len(step))

    def _drop(self, steps, _):
        step, index = self._pick(steps)
        if sum(map(len, steps)) > 1:
            del step[index]

    def _duplicate(self, steps, _):
        step, index = self._pick(steps)
        self.rng.choice(steps).append(step[index])

    def _move(self, steps, _):
        step, index = self._pick(steps)
        self.rng.choice([*steps, step]).append(step.pop(index))

    def _swap_steps(self, steps, _):
        one, two = self.rng.randrange(len(steps)), self.rng.randrange(len(steps))
        steps[one], steps[two] = steps[two], steps[one]

    def _swap_actions(self, steps, _):
        (step, index), (other, place) = self._pick(steps), self._pick(steps)
        step[index], other[place] = other[place], step[index]

    def _merge_steps(self, steps, _):
        index = self.rng.randrange(len(steps))
        steps[index : index + 2] = [[action for step in steps[index : index + 2] for action in step]]

    def _drop_step(self, steps, _):
        if sum(1 for step in steps if step) > 1:
            del steps[self.rng.randrange(len(steps))]
            if not any(steps):
                steps.append([])

    def _retarget(self, steps, buffers):
        step, index = self._pick(steps)
        target = dataclasses.replace(step[index].target, buffer=self.rng.randrange(len(buffers)))
        step[index] = dataclasses.replace(step[index], target=target)

    def _resource(self, steps, buffers):
        self._change_source(steps, lambda s: dataclasses.replace(s, buffer=self.rng.randrange(len(buffers))))

    def _change_source(self, steps, change):
        step, index = self._pick(steps)
        action = step[index]
        if isinstance(action, Copy):
            step[index] = dataclasses.replace(action, source=change(action.source))
        elif action.sources:
            place = self.rng.randrange(len(action.sources))
            sources = [change(s) if i == place else s for i, s in enumerate(action.sources)]
            step[index] = dataclasses.replace(action, sources=tuple(sources))

    def _shift(self, steps, _):
        by = self.rng.choice((-1, 1))
        self._change_source(steps, lambda s: Range(s.buffer, s.start + by, s.stop + by))

    def _resize(self, steps, _):
        start, stop = self.rng.choice(((0, -1), (0, 1), (1, 0), (-1, 0)))
        changed = self.rng.choice(("source", "target", "both"))

        def change(where):
            return Range(where.buffer, where.start + start, where.stop + stop)

        step, index = self._pick(steps)
        action = step[index]
        if changed != "source":
            action = dataclasses.replace(action, target=change(action.target))
        if changed != "target" and isinstance(action, Copy):
            action = dataclasses.replace(action, source=change(action.source))
        elif changed != "target":
            action = dataclasses.replace(action, sources=tuple(map(change, action.sources)))
        step[index] = action

    def _change_sources(self, steps, change):
        step, index = self._pick(steps)
        if not isinstance(step[index], Copy) and step[index].sources:
            sources = list(step[index].sources)
            change(sources)
            step[index] = dataclasses.replace(step[index], sources=tuple(sources))

    def _reorder_sources(self, steps, _):
        self._change_sources(steps, self.rng.shuffle)

    def _drop_source(self, steps, _):
        self._change_sources(steps, lambda sources: sources.pop(self.rng.randrange(len(sources))))

    def _duplicate_source(self, steps, _):
        self._change_sources(steps, lambda sources: sources.insert(0, self.rng.choice(sources)))

    def _flip_final(self, steps, _):
        step, index = self._pick(steps)
        if isinstance(step[index], Combine | Concat):
            step[index] = dataclasses.replace(step[index], final=not step[index].final)

    def _change_buffer(self, buffers, **changes):
        index = self.rng.randrange(len(buffers))
        changes = {name: change(buffers[index]) for name, change in changes.items()}
        buffers[index] = dataclasses.replace(buffers[index], **changes)

    def _change_device(self, _, buffers):
        self._change_buffer(buffers, device=lambda _: self.rng.choice(buffers).device)

    def _change_role(self, _, buffers):
        self._change_buffer(buffers, role=lambda _: self.rng.choice(list(Role)))

    def _change_length(self, _, buffers):
        self._change_buffer(buffers, length=lambda buffer: buffer.length + self.rng.choice((-1, 1)))

    def _change_leaf(self, _, buffers):
        self._change_buffer(buffers, leaf=lambda _: self.rng.choice(buffers).leaf)

    def _change_position(self, _, buffers):
        self._change_buffer(buffers, position=lambda _: self.rng.choice(buffers).position)

    def _swap_buffers(self, _, buffers):
        one, two = self.rng.randrange(len(buffers)), self.rng.randrange(len(buffers))
        buffers[one], buffers[two] = buffers[two], buffers[one]


def verdicts(draft, mutator, number):
    """Return how many of ``number`` mutants were (kind, accepted, right), leaving out (refused, unknown)."""
    counts = Counter()
    for _ in range(number):
        made = mutator.mutant(draft)
        if made is None:
            continue
        kind, changed = made
        try:
            changed.proved()
        except PlanError:
            counts[kind, "refused"] += 1
        else:
            counts[kind, "right" if Interpreter(changed).is_right() else f"WRONG {changed}"] += 1
    return counts


class TestProve:
    @pytest.mark.parametrize("count", range(2, 10))
    def test_refuses_every_broken_plan(self, count):
        """Whatever is changed in a plan: it is refused, or it still gives every destination the right number."""
        mutator, counts = Mutator(drawing(count)), Counter()
        for draft in drafts(count):
            counts.update(verdicts(draft, mutator, MUTANTS))
        accepted_wrong = [key for key in counts if key[1].startswith("WRONG")]
        assert accepted_wrong == []
        assert counts.total() > 28 * MUTANTS  # of 40; where a mutation changed nothing, it is not counted

    @pytest.mark.parametrize("count", range(2, 10))
    def test_accepts_what_planners_make(self, count):
        for draft in drafts(count):
            assert draft.proved().steps == draft.steps
            assert Interpreter(draft).is_right()
