"""The values of calls: distributed values, sparse rows, and the pytrees that components may be."""

from treefold.values.distributed import Bare, DistributedValues, Mirrored, PerReplica, T, Weights
from treefold.values.sparse import IndexedSlices
from treefold.values.structure import StructureKey, are_same, flatten, leaf_paths, unflatten

__all__ = [
    "Bare",
    "DistributedValues",
    "IndexedSlices",
    "Mirrored",
    "PerReplica",
    "StructureKey",
    "T",
    "Weights",
    "are_same",
    "flatten",
    "leaf_paths",
    "unflatten",
]
