"""The trees of a packing alone, where the machine that they were planned for is not at hand."""

from __future__ import annotations

from treefold.errors.words import counted
from treefold.topology.drawing.machine_drawing import STYLE
from treefold.topology.drawing.machine_layout import lay_out
from treefold.topology.drawing.packs import Pack
from treefold.topology.drawing.svg import drawing, element
from treefold.topology.drawing.tree_drawing import tree_marks
from treefold.topology.graph import Topology, TopologyBuilder
from treefold.topology.planning.tree_packing import TreePacking

_WIDTH, _MARGIN = 960.0, 28.0


def draw_bare_packing(packing: TreePacking) -> str:
    """Return the trees of a packing, one for those of one shape, as one SVG element; devices stand by their edges."""
    edges = _edges(packing)
    packs = [Pack(float(tree.share), tree.root, tree.pairs) for tree in packing.trees]
    marks, height = tree_marks(edges, lay_out(edges), packs, width=_WIDTH)
    title = f"{counted(len(packs), 'tree')} on {counted(len(packing.devices), 'device')}"
    parts = [element("style", STYLE), marks]
    return drawing(parts, width=_WIDTH, height=height + _MARGIN, title=title, description=repr(packing))


def _edges(packing: TreePacking) -> Topology:
    """Return the trees' edges as a machine: which nodes between devices are switches or hosts is not known."""
    builder = TopologyBuilder()
    for device in packing.devices:
        builder.device(device)
    for one, other in sorted({(min(pair), max(pair)) for tree in packing.trees for pair in tree.pairs}):
        builder.link(one, other, gb_per_s=1)
    return builder.build()
