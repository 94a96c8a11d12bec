"""A machine, and the trees packed into it, in Graphviz's language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from treefold.topology.drawing.packs import Pack
from treefold.topology.drawing.svg import LIGHT
from treefold.topology.graph import Topology

_SHAPES = {"device": "box", "host": "house", "switch": "hexagon", "nic": "cds"}
_GIGA = 10**9


def to_dot(topology: Topology, packs: Sequence[Pack] = ()) -> str:
    """Return the machine as an undirected graph, links labelled in GB/s and as thick as they are wide.

    The tree of every pack is drawn over it in a colour of its own: dashed, from device to device, arrows towards the
    root. ``neato -Tsvg`` draws it.

    >>> from treefold.topology import known_topology
    >>> print(to_dot(known_topology("line:2")))
    graph "line:2" {
      node [fontname="sans-serif"];
      "gpu:0" [shape=box];
      "gpu:1" [shape=box];
      "gpu:0" -- "gpu:1" [label="25", penwidth=6];
    }
    <BLANKLINE>
    """
    lines = [f"graph {_quoted(topology.name)} {{", '  node [fontname="sans-serif"];']
    lines += [f"  {_quoted(node.name)} [shape={_SHAPES[node.kind]}];" for node in topology.nodes]
    lines += _links(topology)
    return "\n".join([*lines, *_trees(packs), "}", ""])


def _links(topology: Topology) -> Iterator[str]:
    widest = max(topology.capacities.values(), default=Fraction(1))
    for (source, target), width in topology.capacities.items():
        back = topology.capacity(target, source)
        if back and target < source:
            continue  # one line for both directions, drawn from the end that is first by name
        label = f"{float(width / _GIGA):g}" + ("" if back == width else f" / {float(back / _GIGA):g}")
        thick = f"{max(0.5, float(6 * max(width, back) / widest)):.2g}"
        yield f'  {_quoted(source)} -- {_quoted(target)} [label="{label}", penwidth={thick}];'


def _trees(packs: Sequence[Pack]) -> Iterator[str]:
    for number, pack in enumerate(packs):
        colour = LIGHT[number % len(LIGHT)]
        for sender, receiver in pack.pairs:
            words = f"pack {number}, {pack.share:.1%}"
            style = f'color="{colour}", style=dashed, dir=forward, constraint=false, tooltip="{words}"'
            yield f"  {_quoted(sender)} -- {_quoted(receiver)} [{style}];"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
