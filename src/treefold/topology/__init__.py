"""Machines: the graph, and the machines known by name."""

from treefold.topology.graph import Link, Node, Topology, TopologyBuilder

__all__ = ["Link", "Node", "Topology", "TopologyBuilder"]
