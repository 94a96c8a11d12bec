"""Chooses ops for a set of devices by the prices of their plans, on links that are given or measured."""

from treefold.topology.choosing.best_ops import Choice, choose_cross_device_ops

__all__ = ["Choice", "choose_cross_device_ops"]
