"""What plans cost: simulated on a machine, in closed form, and from measurements."""

from treefold.cost.simulate import simulate

__all__ = ["simulate"]
