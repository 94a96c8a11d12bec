"""Machines: the graph, and the machines known by name."""

from treefold.topology.drawing import register_drawings
from treefold.topology.graph import Link, Node, Topology, TopologyBuilder
from treefold.topology.known import known_names, known_topology, with_nvlinks

__all__ = ["Link", "Node", "Topology", "TopologyBuilder", "known_names", "known_topology", "with_nvlinks"]


register_drawings()
