"""The optimal packing of spanning trees into a machine's links, and plans along them."""

from treefold.planners.tree_packing.optimal import optimal_packing
from treefold.planners.tree_packing.packing import Certificate, Tree, TreePacking
from treefold.planners.tree_packing.steps import add_tree, plan_trees

__all__ = ["Certificate", "Tree", "TreePacking", "add_tree", "optimal_packing", "plan_trees"]
