"""The result of planning: trees with their shares, their steps, and the certificate that bounds any plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.errors.words import counted
from treefold.plan.ir import Range
from treefold.plan.movement import drawn
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method
from treefold.planners.packing import Pack
from treefold.topology.planning.tree_packing.network import Route

_PACK = 0


@dataclass(frozen=True, slots=True)
class SpanningTree:
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
    """Prices of links that prove a bound, and that anyone can check.

    Every plan pays at least ``cost`` per byte, and all links together can be paid at most Σ capacity·price per second.
    The quotient of the two is the bound.

    Attributes:
        prices: (source, target, price) of every directed link with a price that is not 0; whole numbers.
        cost: The price of the cheapest tree, up and down, with each edge along its cheapest route.
        bound: The bound, in bytes per second.
        parts: The groups of devices that links of price 0 connect.
        is_partition: True if the parts alone prove the bound. The bound is then the capacity between them in one
            direction, over their number less one (Tutte, Nash-Williams).
        is_directed: True if links differ in their two directions. The bound is then that of plans that reduce each
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

    In the model, links are independent and carry both directions at once, and only devices combine values.

    Attributes:
        devices: The devices that take part.
        trees: The trees with their shares of the values.
        algbw: Exact bytes per second that the trees together reduce and broadcast in a pipeline, within the capacity of
            every link. None for one device.
        certificate: The proof of the bound. None for one device.
        notes: Sentences for the reader, such as what was lost and why.

    """

    devices: tuple[str, ...]
    trees: tuple[SpanningTree, ...]
    algbw: Fraction | None
    certificate: Certificate | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return one line with the bandwidth that the trees reach."""
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


def along(trees: Sequence[SpanningTree], words: str, notes: tuple[str, ...] = ()) -> Method:
    """Return the method that folds each tree's share of the values along it."""
    shares = tuple(tree.share for tree in trees)
    return Method(shares, lambda builder, pack, number: add_tree(builder, pack, trees[number]), words, notes)


def along_packing(packing: TreePacking) -> Method:
    """Return the method of a packing: one pack per tree."""
    words = f"{counted(len(packing.trees), 'tree')} packed into the links of the topology"
    return along(packing.trees, words, packing.notes)


def add_tree(builder: PlanBuilder, pack: Pack, tree: SpanningTree) -> None:
    """Reduce a pack along a tree to its root and send the result back to all of the tree's devices.

    The values' devices must be the tree's and the destinations, in any order. A copy from device to device is one hop,
    whatever nodes lie between them. Costs 2·(n − 1) copies of the pack between n devices.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    held: dict[str, list[tuple[int, Range]]] = {tree.root: []}  # by device: first replica folded in, and where it is
    for replica, device in enumerate(work.sources):
        packed = builder.packed_input(pack, number, replica, _PACK)
        held.setdefault(device, []).append((replica, packed))
    # A device of height h folds in stage 2h + 1 and sends in stage 2h + 2, so all copies from one height share a step.
    heights = _heights(tree.pairs)
    for sender, receiver in tree.pairs:
        # ``pairs`` begins with the leaves: whatever a sender receives has been added to ``held`` before its own turn.
        first, fold = builder.partial_fold(held[sender], number, 2 * heights[sender] + 1)
        arrived = builder.send(fold, receiver, number, 2 * heights[sender] + 2)
        held[receiver].append((first, arrived))
    stage = 2 * heights.get(tree.root, 0) + 1
    # In order of the first replica: results must not depend on the order in which children were listed.
    sources = [part for _, part in sorted(held[tree.root], key=lambda item: item[0])]
    result = builder.combine(sources, builder.landing(pack, tree.root), number, stage, final=True)
    _spread(builder, pack, tree, result, number, stage + 1)


def _heights(pairs: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Return how many edges lie between each device and the farthest one below it; senders come before receivers."""
    heights: dict[str, int] = {}
    for sender, receiver in pairs:
        # A sender comes after all of its own children, so its height is final when it is passed on.
        heights[receiver] = max(heights.get(receiver, 0), heights.setdefault(sender, 0) + 1)
    return heights


def _spread(builder: PlanBuilder, pack: Pack, tree: SpanningTree, result: Range, number: int, stage: int) -> None:
    here, depth = {tree.root: result}, {tree.root: 0}
    builder.unpack(result, pack, number, stage)
    # All copies to one depth share a step. The next step passes on, or unpacks, the values that arrived in it.
    for route in tree.down:
        parent, child = route[0], route[-1]
        depth[child] = depth[parent] + 1
        here[child] = builder.deliver(here[parent], pack, child, number, stage + depth[parent])
        builder.unpack(here[child], pack, number, stage + depth[child])
