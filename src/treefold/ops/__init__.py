"""The public classes and short forms: each call is read, packed, planned, executed and wrapped."""

from treefold.ops.base import CrossDeviceOps
from treefold.ops.cross_device_ops import (
    AllReduceCrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from treefold.ops.short_forms import all_reduce, broadcast, reduce

__all__ = [
    "AllReduceCrossDeviceOps",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
    "all_reduce",
    "broadcast",
    "reduce",
]
