"""Prices plans: simulated on a machine, in closed form, and from measurements."""

from treefold.topology.cost.calibrate import from_copies, refine
from treefold.topology.cost.simulation import MovementTimes, simulate

__all__ = ["MovementTimes", "from_copies", "refine", "simulate"]
