"""Machines: the graph, and the machines known by name.

>>> from treefold.topology import TopologyBuilder, known_topology
>>> TopologyBuilder("pair").device("gpu:0").device("gpu:1").link("gpu:0", "gpu:1", gb_per_s=25).build()
<Topology 'pair': 2 devices, 2 directed links>
>>> known_topology("dgx2")
<Topology 'dgx2': 16 devices, 1 switch, 32 directed links>
"""

from treefold.topology.drawing import register_drawings
from treefold.topology.graph import Link, Node, Topology, TopologyBuilder
from treefold.topology.known import known_names, known_topology, with_nvlinks

__all__ = ["Link", "Node", "Topology", "TopologyBuilder", "known_names", "known_topology", "with_nvlinks"]


register_drawings()
