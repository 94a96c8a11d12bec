"""treefold: fold values up a tree of devices, and unfold the result back along it.

Combines one value per device into one value on every device that wants it. ``import treefold`` loads NumPy and no
framework.
"""

from treefold.execution.native import empty_cache, host_memory_info, set_num_threads
from treefold.ops import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    all_reduce,
    broadcast,
    choose_cross_device_ops,
    reduce,
)
from treefold.options import CollectiveHints, CommunicationImplementation, CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, IndexedSlices, Mirrored, PerReplica

__version__ = "0.1.0"

__all__ = [
    "AllReduceCrossDeviceOps",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedValues",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "Mirrored",
    "NcclAllReduce",
    "PerReplica",
    "ReduceOp",
    "ReductionToOneDevice",
    "all_reduce",
    "broadcast",
    "choose_cross_device_ops",
    "empty_cache",
    "host_memory_info",
    "reduce",
    "set_num_threads",
]
