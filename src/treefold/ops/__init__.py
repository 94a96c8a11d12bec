"""The public classes: each call validates, packs, plans, executes and wraps."""

from treefold.ops.all_reduce_ops import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce
from treefold.ops.base import CrossDeviceOps
from treefold.ops.choose import Choice, choose_cross_device_ops
from treefold.ops.one_device import ReductionToOneDevice
from treefold.ops.short_forms import all_reduce, broadcast, reduce

__all__ = [
    "AllReduceCrossDeviceOps",
    "Choice",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
    "all_reduce",
    "broadcast",
    "choose_cross_device_ops",
    "reduce",
]
