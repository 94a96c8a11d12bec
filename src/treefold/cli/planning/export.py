"""The plan for RCCL and MSCCL: packs of equal size, because their chunks are."""

from __future__ import annotations

import math
from pathlib import Path

from treefold.cli.errors import CommandError
from treefold.errors import ExportError
from treefold.export.msccl import to_msccl
from treefold.files import write_atomically
from treefold.planners.methods import one_array
from treefold.planners.tree_packing import TreePacking, optimal_packing, plan_trees
from treefold.topology import Topology

_EQUAL = (32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
_FEW_CHUNKS = 32
_WORTH = 0.97  # of the best: a number of packs that is a power of two divides the sizes of most values


def write_msccl(path: Path, topology: Topology, packs: int | None, packing: TreePacking) -> str:
    """Write a packing, or equal packs that come near it, as MSCCL XML; return what was written, in a sentence.

    Raises:
        CommandError: no number of packs stays within the interpreters' limits.

    """
    refused = "one device has nothing to send."
    for candidate in _candidates(topology, packs, packing) if len(packing.devices) > 1 else []:
        chunks = math.lcm(*(tree.share.denominator for tree in candidate.trees))
        plan = plan_trees(one_array(candidate.devices, length=chunks), candidate)
        name = f"treefold {topology.name}".strip()
        try:
            write_atomically(path, to_msccl(plan, name=name))
        except ExportError as error:
            refused = str(error)
        else:
            reached = candidate.algbw_bytes_per_s / 1e9
            return (
                f"Written: {path}: {len(candidate.trees)} packs, {reached:.2f} GB/s, for numbers of elements that "
                f"{chunks} divides; read back and proved to be an all-reduce."
            )
    raise CommandError.not_exportable(refused)


def _candidates(topology: Topology, packs: int | None, packing: TreePacking) -> list[TreePacking]:
    """Return packings to try in order: what was asked for, or the best with few chunks, powers of two first."""
    if packs is not None:
        return [packing]
    found = [optimal_packing(topology, packs=count) for count in _EQUAL]
    if all(tree.share.denominator <= _FEW_CHUNKS for tree in packing.trees):
        found.append(packing)
    best = max(candidate.algbw_bytes_per_s for candidate in found)
    near = [c for c in found if c.algbw_bytes_per_s >= _WORTH * best]
    near.sort(key=lambda c: (not _is_power_of_two(c), -c.algbw_bytes_per_s, len(c.trees)))
    rest = [candidate for candidate in found if candidate not in near]
    return near + sorted(rest, key=lambda candidate: -candidate.algbw_bytes_per_s)


def _is_power_of_two(packing: TreePacking) -> bool:
    chunks = math.lcm(*(tree.share.denominator for tree in packing.trees))
    return chunks & (chunks - 1) == 0
