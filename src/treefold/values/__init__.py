"""What goes in and comes out: distributed values, sparse rows, and the pytrees that components may be."""

from treefold.values.distributed import DistributedValues, Mirrored, PerReplica
from treefold.values.sparse import IndexedSlices
from treefold.values.structure import StructureKey, are_same, flatten, leaf_paths, unflatten

__all__ = [
    "DistributedValues",
    "IndexedSlices",
    "Mirrored",
    "PerReplica",
    "StructureKey",
    "are_same",
    "flatten",
    "leaf_paths",
    "unflatten",
]
