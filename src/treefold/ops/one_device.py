"""Everything on one device: the simplest reduction, and the fallback of all others."""

from __future__ import annotations

from typing import Any

from treefold.backends import read_device
from treefold.errors import ArgumentError
from treefold.fold import Fold
from treefold.ops.base import CrossDeviceOps
from treefold.options import CommunicationOptions
from treefold.packing import Pack, PackingPolicy
from treefold.planners import PlanBuilder, add_star
from treefold.reduce_op import ReduceOp


class ReductionToOneDevice(CrossDeviceOps):
    """Copies all contributions to one device, combines them there, and copies the result to the destinations.

    ``reduce_to_device``: where; None for the first destination. ``accumulation_fn``: combines instead of treefold; it
    is called once per array with the list of the replicas' arrays, read-only and unpacked, and returns one like them;
    MEAN divides afterwards; sparse rows are concatenated without it.

    Source: ``tf.distribute.ReductionToOneDevice``.

    Raises:
        ArgumentError: ``accumulation_fn`` cannot be called.
        DeviceError: ``reduce_to_device`` does not parse; whether it exists is seen when it is used.

    """

    def __init__(
        self,
        reduce_to_device: str | None = None,
        accumulation_fn: Any = None,
        *,
        accumulate: str = "exact",
        topology: object = None,
        group: object = None,
    ) -> None:
        """Remember where and how."""
        super().__init__(accumulate=accumulate, topology=topology, group=group)
        if accumulation_fn is not None and not callable(accumulation_fn):
            raise ArgumentError.option(accumulation_fn=accumulation_fn)
        if group is not None and accumulation_fn is not None:
            raise ArgumentError(
                "accumulation_fn does not go with group=. Leave it out, or reduce in this process, without a group."
            )
        self._own_device = None if reduce_to_device is None else read_device(reduce_to_device)
        self._own_word = reduce_to_device
        self._accumulation_fn = accumulation_fn

    def _policy(self, options: CommunicationOptions) -> PackingPolicy:
        if options.bytes_per_pack and self._accumulation_fn is not None:
            who = "accumulation_fn, which takes whole arrays"
            raise ArgumentError.not_honoured(who, bytes_per_pack=options.bytes_per_pack)
        return PackingPolicy(bytes_per_pack=options.bytes_per_pack)

    def _add_pack(self, builder: PlanBuilder, pack: Pack, index: int) -> None:  # noqa: ARG002
        add_star(builder, pack, self._root(builder.work[pack.fragments[0].leaf].destinations))

    def _fold(self, op: ReduceOp, weights: tuple[int, ...] | None) -> Fold:
        if weights is not None and self._accumulation_fn is not None:
            raise ArgumentError("weights and accumulation_fn both say how to combine. Leave one of them out.")
        return Fold(op, self._accumulate, weights, self._accumulation_fn)

    def __repr__(self) -> str:
        given = [f"reduce_to_device={self._own_device!r}"] if self._own_device else []
        given += ["accumulation_fn=…"] if self._accumulation_fn is not None else []
        given += self._accumulate_words()
        return f"ReductionToOneDevice({', '.join(given)})"
