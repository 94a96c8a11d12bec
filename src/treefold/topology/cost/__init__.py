"""Prices plans: simulated on a machine, in closed form, and from measurements."""

from treefold.topology.cost.calibrate import LinkFit, fit_link, fit_links, from_copies, refine
from treefold.topology.cost.simulation import MovementTimes, simulate

__all__ = ["LinkFit", "MovementTimes", "fit_link", "fit_links", "from_copies", "refine", "simulate"]
