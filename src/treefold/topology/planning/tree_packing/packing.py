"""The result of planning: trees with their shares, and the certificate that bounds what any plan can reach."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from treefold.errors.words import counted
from treefold.plan.movement import drawn
from treefold.topology.planning.tree_packing.network import Route


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of one pack, which is ``share`` of the values.

    The values are folded along ``up`` to ``root``, and the result goes along ``down`` to all devices. A route names all
    nodes from the sending device to the receiving one. Every device receives before it sends, so ``up`` begins at the
    leaves and ``down`` at the root.
    """

    share: Fraction
    root: str
    up: tuple[Route, ...]
    down: tuple[Route, ...]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The (sender, receiver) of every edge of ``up``, leaves first."""
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
    """Prices of links that prove a bound, which anyone can check.

    ``prices``: (source, target, price) of every directed link whose price is not 0; whole numbers. ``cost``: what the
    cheapest tree costs at these prices, up and down, each edge along its cheapest route. Every plan pays at least
    ``cost`` per byte, and all links together can be paid at most Σ capacity·price per second. ``bound`` is the
    quotient, in bytes per second.

    ``parts``: the groups of devices that links of price 0 connect. ``is_partition``: whether the parts alone prove the
    bound, which is then the capacity between them in one direction, over their number less one (Tutte, Nash-Williams).
    ``is_directed``: whether links differ in their two directions. The bound is then that of plans that reduce each
    element to some root and broadcast it from there.
    """

    prices: tuple[tuple[str, str, int], ...]
    cost: int
    bound: Fraction
    parts: tuple[tuple[str, ...], ...]
    is_partition: bool
    is_directed: bool


@dataclass(frozen=True, slots=True)
class TreePacking:
    """Trees for one machine, the bytes per second that they reach, and a proof of the most that any plan can reach.

    ``algbw``: the bytes per second that the trees together reduce and broadcast in a pipeline, within the capacity of
    every link; exact.
    ``certificate``: proves ``bound``. ``notes``: sentences for the reader, such as what was lost and why.
    The model: links are independent and carry both directions at once; only devices combine values.
    """

    devices: tuple[str, ...]
    trees: tuple[Tree, ...]
    algbw: Fraction | None
    certificate: Certificate | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a line that says what the trees reach."""
        amounts = f"{counted(len(self.trees), 'tree')} on {counted(len(self.devices), 'device')}"
        reached, bound = self.algbw_bytes_per_s / 1e9, self.bound_bytes_per_s / 1e9
        return f"<TreePacking: {amounts}, {reached:.4g} of at most {bound:.4g} GB/s>"

    def _repr_html_(self) -> str | None:
        """Return the drawing that notebooks show: the trees, without the machine, which a packing does not know."""
        return drawn("packing", self)

    @property
    def algbw_bytes_per_s(self) -> float:
        """The bytes per second that the trees reach; infinite for one device."""
        return float("inf") if self.algbw is None else float(self.algbw)

    @property
    def bound_bytes_per_s(self) -> float:
        """The bytes per second that no plan exceeds; infinite for one device."""
        return float("inf") if self.certificate is None else float(self.certificate.bound)

    @property
    def gap(self) -> float:
        """The share of the bound that is not reached; at 0 the packing is proved optimal."""
        if self.algbw is None or self.certificate is None:
            return 0.0
        # Rounded last: a difference of floats could be 0 although the fractions differ, and 0 means that optimality is
        # proved.
        return float(1 - self.algbw / self.certificate.bound)
