"""What a rank brings, read as in one process; among it batches of values with different numbers of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from treefold.calls.entry import Entry, LeafForm, LeafReader, Part, read_entry
from treefold.calls.leaves import read_folded_leaf
from treefold.calls.reader import Brought, Reading, read_components
from treefold.execution import Operand
from treefold.fold import Fold
from treefold.group.contributions import own_weights
from treefold.values import DistributedValues, PerReplica, flatten


@dataclass(frozen=True, slots=True)
class Batch:
    """Values that are reduced in one call, as those of a list, with replicas of their own."""

    values: Sequence[DistributedValues]

    def read(self, device: str, read_leaf: LeafReader, *, is_planned: bool) -> Entry:
        """Return the entry of a list of these values, whose parts have different numbers of contributions.

        Raises:
            TreefoldError: replicas of one value do not agree.

        """
        entries = [
            read_entry(value, read_components(value.values), device, read_leaf, is_planned=is_planned)
            for value in self.values
        ]
        parts = [replace(part, path=f"[{i}]{part.path}") for i, entry in enumerate(entries) for part in entry.parts]
        return Entry(
            flatten([value.values[0] for value in self.values])[1],
            tuple(form for entry in entries for form in entry.forms),
            tuple(parts),
            entries[0].sources,
            (device,),
        )


def read_value(
    value: Any, reading: Reading | None, fold: Fold, weights: Any, device: str, *, is_planned: bool = False
) -> tuple[tuple[Fraction, ...] | None, Entry]:
    """Return this rank's weights, and its value validated by itself, as in one process. ``reading``: None of a batch.

    Raises:
        TreefoldError: replicas do not agree, or the weights are none for them.

    """
    local = value if isinstance(value, DistributedValues | Batch) else PerReplica([value])
    counts = {len(one) for one in local.values} if isinstance(local, Batch) else {len(local)}
    own = None
    if weights is not None:
        own, *_ = [own_weights(weights, count, fold.op) for count in sorted(counts)]  # no batch gets further
    # Those of the other ranks are not known yet; that there are weights is all that reading asks for.
    weighted = replace(fold, weights=None if own is None else (1,) * len(own))

    def read_leaf(path: str, leaves: list[Brought]) -> tuple[LeafForm, list[Part]]:
        return read_folded_leaf(path, leaves, weighted)

    if isinstance(local, Batch):
        return own, local.read(device, read_leaf, is_planned=is_planned)
    entry = read_entry(local, reading or read_components(local.values), device, read_leaf, is_planned=is_planned)
    return own, entry


def without_arrays(entry: Entry) -> Entry:
    """Return an entry to keep for later calls, which must not hold the arrays of this one."""
    bare = [replace(one, operand=Operand(one.operand.backend, (), one.operand.shape)) for one in entry.parts]
    return replace(entry, parts=tuple(bare), reading=None, columns=())
