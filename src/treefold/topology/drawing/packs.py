"""The packs of a movement as they are drawn: the tree of each, and the packs that have one shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.keyed import grouped
from treefold.plan import Movement
from treefold.plan.ir import Combine, Copy, Role

Ends = tuple[str, str]
_WAYS_DOWN = {Role.RESULT, Role.OUTPUT}


@dataclass(frozen=True, slots=True)
class DrawnPack:
    """A pack on paper: its ``share`` of the values, and the (sender, receiver) of every copy that is folded.

    ``root``: the device where all contributions meet; None if every device folds them for itself.
    """

    share: float
    root: str | None
    pairs: tuple[Ends, ...]

    @property
    def depth(self) -> int:
        """The number of edges between the root and the device farthest from it."""
        return 1 if self.root is None else _depth(self.root, self._children())

    def shape(self, host_of: Mapping[str, int]) -> object:
        """Return a key that is equal for packs that differ only in the names of their devices."""
        return len(self.pairs) if self.root is None else _shape(self.root, self._children(), host_of)

    def _children(self) -> dict[str, list[str]]:
        return grouped((receiver, sender) for sender, receiver in self.pairs)


@dataclass(frozen=True, slots=True)
class PackGroup:
    """Packs of one shape, by their numbers."""

    numbers: tuple[int, ...]
    packs: tuple[DrawnPack, ...]

    @property
    def title(self) -> str:
        """The pack's number, or the number of packs, and the share that they carry together.

        >>> PackGroup((0,), (DrawnPack(0.25, "gpu:0", ()),)).title
        'pack 0: 25.0%'
        >>> PackGroup((0, 2, 5), (DrawnPack(0.25, "gpu:0", ()),) * 3).title
        '3 packs: 75.0%'
        """
        name = f"{len(self.packs)} packs" if len(self.packs) > 1 else f"pack {self.numbers[0]}"
        return f"{name}: {sum(pack.share for pack in self.packs):.1%}"

    @property
    def shares(self) -> str:
        """The share that each pack carries, or the sum if shares differ."""
        shares = {f"{pack.share:.1%}" for pack in self.packs}
        if len(shares) > 1:
            return f"{sum(pack.share for pack in self.packs):.1%} in all"
        return shares.pop() + (" each" if len(self.packs) > 1 else "")


def packs_of(movement: Movement) -> tuple[DrawnPack, ...]:
    """Return the packs of a movement."""
    pairs: dict[int, list[Ends]] = defaultdict(list)
    roots: dict[int, set[str]] = defaultdict(set)
    lengths: dict[int, int] = defaultdict(int)
    for step in movement.steps:
        for action in step.actions:
            target = movement.buffers[action.target.buffer]
            if isinstance(action, Combine) and action.final:
                roots[action.pack].add(target.device)
                lengths[action.pack] = action.target.length
            if isinstance(action, Copy) and target.role not in _WAYS_DOWN:
                source = movement.buffers[action.source.buffer]
                if source.device != target.device:
                    pairs[action.pack].append((source.device, target.device))
    whole = sum(lengths.values())
    return tuple(
        DrawnPack(lengths[pack] / whole, next(iter(found)) if len(found) == 1 else None, tuple(pairs[pack]))
        for pack, found in sorted(roots.items())
    )


def group_packs(packs: Sequence[DrawnPack], hosts: Sequence[Sequence[str]]) -> tuple[PackGroup, ...]:
    """Return the packs by shape, groups that carry most first; ``hosts``: the devices of each host."""
    host_of = {device: number for number, devices in enumerate(hosts) for device in devices}
    found = grouped((pack.shape(host_of), number) for number, pack in enumerate(packs))
    groups = (PackGroup(tuple(numbers), tuple(packs[number] for number in numbers)) for numbers in found.values())
    return tuple(sorted(groups, key=lambda group: -sum(pack.share for pack in group.packs)))


def _depth(device: str, children: Mapping[str, Sequence[str]]) -> int:
    return max((1 + _depth(child, children) for child in children.get(device, ())), default=0)


def _shape(device: str, children: Mapping[str, Sequence[str]], host_of: Mapping[str, int]) -> object:
    """Return the tree below a device, without names: its subtrees in an order of their own (Aho, Hopcroft, Ullman)."""
    below = (
        (host_of[child] != host_of[device], _shape(child, children, host_of)) for child in children.get(device, ())
    )
    return tuple(sorted(below, key=repr))
