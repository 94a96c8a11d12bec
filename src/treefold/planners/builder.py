"""The parts that planners share: buffers made on demand, and actions gathered into steps.

A planner adds one pack after another. Packs are independent of each other, so the actions of all packs at one stage
form one step. Planners see lengths and devices, never an array.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.keyed import grouped
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Leaf, Range, Role, Step
from treefold.plan.movement import Movement
from treefold.planners.packing import Pack


@dataclass(frozen=True, slots=True)
class LeafWork:
    """One leaf to be planned: ``lengths`` and ``sources`` per replica, ``destinations`` per component."""

    leaf: Leaf
    lengths: tuple[int, ...]
    sources: tuple[str, ...]
    destinations: tuple[str, ...]

    @property
    def result_length(self) -> int:
        """Number of elements of each output."""
        return sum(self.lengths) if self.leaf.goal in {Goal.ROWS, Goal.GATHER} else self.lengths[0]


class PlanBuilder:
    """Collects the buffers and steps of a movement."""

    def __init__(self, work: Sequence[LeafWork]) -> None:
        """Make the input and output buffers of every leaf."""
        self.work = tuple(work)
        self._buffers: list[Buffer] = []
        # By stage: packs are added one after the other, and steps hold actions of all packs.
        self._stages: dict[int, list[Action]] = defaultdict(list)
        self._pack_numbers = itertools.count()
        kinds = {
            item.destinations: grouped((name, component) for component, name in enumerate(item.destinations))
            for item in work
        }
        self._components_on = [kinds[item.destinations] for item in work]  # shared: arrays of a batch lie alike
        self.inputs: dict[tuple[int, int], Range] = {}
        self.outputs: dict[tuple[int, int], Range] = {}
        for index, item in enumerate(work):
            for replica, (length, device) in enumerate(zip(item.lengths, item.sources, strict=True)):
                buffer = Buffer(f"in{index}.{replica}", device, length, Role.INPUT, index, replica)
                self.inputs[index, replica] = self._add(buffer)
            for component, device in enumerate(item.destinations):
                buffer = Buffer(f"out{index}.{component}", device, item.result_length, Role.OUTPUT, index, component)
                self.outputs[index, component] = self._add(buffer)

    def new_pack(self) -> int:
        """Return the index of the next pack."""
        return next(self._pack_numbers)

    def device_of(self, part: Range) -> str:
        """Return the device that holds a range."""
        return self._buffers[part.buffer].device

    def scratch(self, role: Role, device: str, length: int, leaf: int) -> Range:
        """Return a new buffer of the dtype of ``leaf``."""
        # Always a new one: the proof refuses ranges that are written twice, so no write has to wait for readers.
        return self._add(Buffer(f"{role.value}{len(self._buffers)}", device, length, role, leaf))

    def act(self, stage: int, action: Action) -> None:
        """Add an action. All actions of a stage make one step; lower stages come first."""
        self._stages[stage].append(action)

    def packed_input(self, pack: Pack, number: int, replica: int, stage: int) -> Range:
        """Return one replica's contributions to a pack as one range on its device, copied only if they are apart."""
        parts = tuple(_part(self.inputs[f.leaf, replica], f.start, f.stop) for f in pack.fragments)
        # One fragment stays in place: a copy would cost memory and a step, and give the same numbers.
        if len(parts) == 1:
            return parts[0]
        device = self.device_of(parts[0])
        target = self.scratch(Role.SCRATCH, device, pack.length, pack.fragments[0].leaf)
        self.act(stage, Concat(parts, target, number))
        return target

    def send(self, source: Range, device: str, number: int, stage: int) -> Range:
        """Return a range on ``device`` with the contents of ``source``: itself if it is there, else a copy."""
        if self.device_of(source) == device:
            return source
        # A copy of an input is still a contribution, and a copy of an output is a result.
        origin = self._buffers[source.buffer]
        # The role decides the copy's dtype: a partial fold may travel in a wider one than a contribution.
        role = Role.SCRATCH if origin.role is Role.INPUT else origin.role
        role = Role.RESULT if role is Role.OUTPUT else role
        target = self.scratch(role, device, source.length, origin.leaf)
        self.act(stage, Copy(source, target, number))
        return target

    def combine(self, sources: Sequence[Range], target: Range, number: int, stage: int, *, final: bool) -> Range:
        """Fold ranges, given in replica order, into ``target``."""
        self.act(stage, Combine(tuple(sources), target, number, final))
        return target

    def partial_fold(
        self, held: Sequence[tuple[int, Range]], number: int, stage: int, role: Role = Role.PARTIAL
    ) -> tuple[int, Range]:
        """Fold ranges of one device in replica order; return the first replica and the range of the fold.

        ``held``: contributions and partial folds, each with its first replica. A single one is returned as it is.
        """
        # The proof demands replica order; ranges come in order of arrival.
        in_order = sorted(held, key=lambda item: item[0])
        first, part = in_order[0]
        if len(in_order) == 1:
            return first, part
        target = self.scratch(role, self.device_of(part), part.length, self._buffers[part.buffer].leaf)
        return first, self.combine([item for _, item in in_order], target, number, stage, final=False)

    def landing(self, pack: Pack, device: str) -> Range:
        """Return the range for a pack's result on a device: of an output if the pack is one fragment, else scratch."""
        first = pack.fragments[0]
        # Several fragments are apart in the outputs, so they arrive in one scratch buffer and are unpacked from there.
        if len(pack.fragments) == 1:
            # Straight into the output, which saves a copy: packs cover disjoint parts, so no other one writes there.
            components = self._components(first.leaf, device)
            if components:
                return _part(self.outputs[first.leaf, components[0]], first.start, first.stop)
        return self.scratch(Role.RESULT, device, pack.length, first.leaf)

    def deliver(self, result: Range, pack: Pack, device: str, number: int, stage: int) -> Range:
        """Copy a pack's result into its range on another device."""
        target = self.landing(pack, device)
        self.act(stage, Copy(result, target, number))
        return target

    def unpack(self, result: Range, pack: Pack, number: int, stage: int) -> None:
        """Copy a pack's result, which has arrived on a device, into every output there."""
        for component in self._components(pack.fragments[0].leaf, self.device_of(result)):
            position = result.start
            for fragment in pack.fragments:
                output, stop = self.outputs[fragment.leaf, component], position + fragment.length
                if output.buffer != result.buffer:  # else ``landing`` chose this very range
                    source = _part(result, position, stop)
                    self.act(stage, Copy(source, _part(output, fragment.start, fragment.stop), number))
                position = stop

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves that are planned."""
        return tuple(item.leaf for item in self.work)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers, inputs and outputs first."""
        return tuple(self._buffers)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, by their stages."""
        # Only the order of stages counts: planners leave gaps in their numbers.
        return tuple(Step(tuple(self._stages[stage])) for stage in sorted(self._stages))

    def movement(self) -> Movement:
        """Return the leaves, buffers and steps as a proved movement.

        Raises:
            PlanError: The proof fails.

        """
        return Movement(leaves=self.leaves, buffers=self.buffers, steps=self.steps)

    def _components(self, leaf: int, device: str) -> Sequence[int]:
        """Return the components of a leaf's result that lie on a device."""
        return self._components_on[leaf].get(device, ())

    def _add(self, buffer: Buffer) -> Range:
        self._buffers.append(buffer)
        return Range(len(self._buffers) - 1, 0, buffer.length)


def _part(whole: Range, start: int, stop: int) -> Range:
    return Range(whole.buffer, start, stop)
