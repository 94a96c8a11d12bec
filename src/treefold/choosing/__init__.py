"""Which ops a set of devices deserves: by the prices of their plans, on links that are given or measured."""

from treefold.choosing.choose import Choice, choose_cross_device_ops

__all__ = ["Choice", "choose_cross_device_ops"]
