"""What the planner returns: trees with their shares, and the certificate of how good they are."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from treefold.planners.tree_packing.network import Route


@dataclass(frozen=True, slots=True)
class Tree:
    """One pack's tree: ``share`` of the values climbs ``up`` to ``root``, folded on the way, and goes ``down`` again.

    Routes name nodes from the sending device to the receiving one, what lies between included. A device's values
    arrive before it sends: ``up`` has the leaves first, ``down`` the root.
    """

    share: Fraction
    root: str
    up: tuple[Route, ...]
    down: tuple[Route, ...]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(sender, receiver) of every edge on the way up, leaves first."""
        return tuple((route[0], route[-1]) for route in self.up)

    @property
    def depth(self) -> int:
        """The number of edges between the root and the device farthest from it, up or down."""
        return max(self._depth([(route[-1], route[0]) for route in self.up[::-1]]), self._depth(_ends(self.down)))

    def _depth(self, pairs: list[tuple[str, str]]) -> int:
        depth = {self.root: 0}
        for parent, child in pairs:
            depth[child] = depth[parent] + 1
        return max(depth.values())


def _ends(routes: tuple[Route, ...]) -> list[tuple[str, str]]:
    return [(route[0], route[-1]) for route in routes]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Prices that prove the bound, for anyone to check.

    ``prices``: (source, target, price) of every directed link that is not free, whole numbers. ``cost``: what the
    cheapest tree costs at these prices, up and down, each edge along the cheapest route. Whatever is planned pays at
    least that for each byte, and all links together earn at most Σ capacity·price in a second; hence ``bound``, their
    quotient, in bytes per second.

    ``parts``: the devices that free links join. ``is_partition``: these parts alone prove the bound: it is the capacity
    between them, one way, over their number less one (Tutte, Nash-Williams).
    ``is_directed``: links differ in their two directions, and the bound is that of plans that reduce each element to
    some root and broadcast it from there.
    """

    prices: tuple[tuple[str, str, int], ...]
    cost: int
    bound: Fraction
    parts: tuple[tuple[str, ...], ...]
    is_partition: bool
    is_directed: bool


@dataclass(frozen=True, slots=True)
class TreePacking:
    """Trees for one machine, what they reach, and the proof of what could be reached at most.

    ``algbw``: bytes per second that the trees reduce and broadcast together, pipelined, no link being over its
    capacity; exact.
    ``certificate``: proves ``bound``. ``notes``: sentences for the reader, such as what was lost and why.
    The model: plain values over independent links that carry both directions at once; devices combine, others do not.
    """

    devices: tuple[str, ...]
    trees: tuple[Tree, ...]
    algbw: Fraction | None
    certificate: Certificate | None
    notes: tuple[str, ...] = ()

    @property
    def algbw_bytes_per_s(self) -> float:
        """What the trees reach; infinite for one device."""
        return float("inf") if self.algbw is None else float(self.algbw)

    @property
    def bound_bytes_per_s(self) -> float:
        """What nothing exceeds; infinite for one device."""
        return float("inf") if self.certificate is None else float(self.certificate.bound)

    @property
    def gap(self) -> float:
        """The share of the bound that is not reached; 0 is proved to be optimal."""
        if self.algbw is None or self.certificate is None:
            return 0.0
        return float(1 - self.algbw / self.certificate.bound)
