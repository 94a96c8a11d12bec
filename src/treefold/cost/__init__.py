"""What plans cost: simulated on a machine, in closed form, and from measurements."""

from treefold.cost.calibrate import LinkFit, fit_link, fit_links
from treefold.cost.refine import from_copies, refine
from treefold.cost.simulate import predict_s, simulate

__all__ = ["LinkFit", "fit_link", "fit_links", "from_copies", "predict_s", "refine", "simulate"]
