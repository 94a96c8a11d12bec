"""Planners: from lengths and devices to the steps of a plan.

Ops choose among them in ``ops/cross_device_ops.py``. ``topology/planning/registry.py`` registers the methods that are
compared for a machine.
"""

from treefold.planners.builder import LeafWork, PlanBuilder
from treefold.planners.star import add_broadcast, add_concat, add_one_pass, add_one_shot, add_star
from treefold.planners.two_level import add_two_level, two_level_roots

__all__ = [
    "LeafWork",
    "PlanBuilder",
    "add_broadcast",
    "add_concat",
    "add_one_pass",
    "add_one_shot",
    "add_star",
    "add_two_level",
    "two_level_roots",
]
