"""treefold: the exact sum or mean of one value per replica, the same bits in any order and on any number of ranks.

>>> import numpy as np
>>> import treefold
>>> gradients = [np.float32([1e8, 1]), np.float32([1, 2]), np.float32([-1e8, 3])]
>>> treefold.all_reduce(gradients, "mean")[0]
array([0.33333334, 2.        ], dtype=float32)
>>> mean = treefold.Mean()
>>> for gradient in reversed(gradients):
...     mean.add(gradient)
>>> mean.result()
array([0.33333334, 2.        ], dtype=float32)

``all_reduce`` takes a list, and ``Mean`` values as they come. ``connect`` makes a ``Group`` of processes with the same
calls, and ``average`` combines models. ``import treefold`` loads NumPy and no other framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

from treefold.errors import InstallationError, UnknownNameError
from treefold.errors.base import is_sub_interpreter

if is_sub_interpreter():  # before optree is imported
    raise InstallationError(
        "treefold cannot be imported in a sub-interpreter, where optree, which it needs, does not load. Import it "
        "in the main interpreter of a process; under mod_wsgi, set WSGIApplicationGroup %{GLOBAL}."
    )

from treefold.execution.native import empty_cache, host_memory_info, set_num_threads
from treefold.observing import profile
from treefold.ops import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    all_reduce,
    broadcast,
    reduce,
)
from treefold.options import CollectiveHints, CommunicationImplementation, CommunicationOptions
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import DistributedValues, IndexedSlices, Mirrored, PerReplica

if TYPE_CHECKING:
    from treefold import exact
    from treefold.averaging import average
    from treefold.execution.links import verify_links
    from treefold.group import Group, Ticket, connect
    from treefold.partials import Mean, Sum
    from treefold.topology import Topology, known_topology
    from treefold.topology.choosing import choose_cross_device_ops
    from treefold.topology.cost import simulate
    from treefold.topology.load import load_topology
    from treefold.topology.planning.tree_packing import TreePacking, optimal_packing
    from treefold.topology.timeline import Timeline

# Imported lazily: callers that only reduce do not pay for the planner.
_LATER = {
    "Group": "treefold.group",
    "Mean": "treefold.partials",
    "Sum": "treefold.partials",
    "Ticket": "treefold.group",
    "Timeline": "treefold.topology.timeline",
    "Topology": "treefold.topology",
    "TreePacking": "treefold.topology.planning.tree_packing",
    "average": "treefold.averaging.trees",
    "choose_cross_device_ops": "treefold.topology.choosing",
    "connect": "treefold.group",
    "known_topology": "treefold.topology",
    "load_topology": "treefold.topology.load",
    "optimal_packing": "treefold.topology.planning.tree_packing",
    "simulate": "treefold.topology.cost",
    "verify_links": "treefold.execution.links",
}

__version__ = "0.1.0"

__all__ = [
    "AllReduceCrossDeviceOps",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "DistributedValues",
    "Group",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "Mean",
    "Mirrored",
    "NcclAllReduce",
    "PerReplica",
    "ReduceOp",
    "ReduceOpLike",
    "ReductionToOneDevice",
    "Sum",
    "Ticket",
    "Timeline",
    "Topology",
    "TreePacking",
    "all_reduce",
    "average",
    "broadcast",
    "choose_cross_device_ops",
    "connect",
    "empty_cache",
    "exact",
    "host_memory_info",
    "known_topology",
    "load_topology",
    "optimal_packing",
    "profile",
    "reduce",
    "set_num_threads",
    "simulate",
    "verify_links",
]


def __getattr__(name: str) -> Any:
    if name == "exact":  # a module, which its import makes an attribute
        return importlib.import_module("treefold.exact")
    if name not in _LATER:
        raise UnknownNameError.of_package(name, __all__)
    value = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
