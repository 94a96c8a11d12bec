"""Packs spanning trees into a machine's links optimally, and plans along them."""

from treefold.topology.planning.tree_packing.optimal import Packer, optimal_packing
from treefold.topology.planning.tree_packing.packing import Certificate, SpanningTree, TreePacking, along, along_packing

__all__ = [
    "Certificate",
    "Packer",
    "SpanningTree",
    "TreePacking",
    "along",
    "along_packing",
    "optimal_packing",
]
