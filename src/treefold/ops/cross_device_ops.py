"""The three classes of ops: all packs on one device; each pack along its own tree; by NCCL."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

from treefold.backends import read_device
from treefold.calls.arguments import is_word
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.execution import NCCL, CallSummary, Executor
from treefold.fold import Fold
from treefold.ops.base import CrossDeviceOps
from treefold.ops.planning import MachineTrees, PlanRequest, Router
from treefold.options import CommunicationOptions
from treefold.planners import PlanBuilder, add_one_shot, add_two_level
from treefold.planners.packing import Pack, PackingPolicy
from treefold.reduce_op import ReduceOp


class ReductionToOneDevice(CrossDeviceOps):
    """Copies all contributions to one device, combines them there, and copies the result to the destinations.

    Source: ``tf.distribute.ReductionToOneDevice``.

    Args:
        reduce_to_device: The device; None for the first destination.
        accumulation_fn: Combines the values in place of treefold. It is called once per array with the list of the
            replicas' arrays, read-only and unpacked, and returns an array of the same shape and dtype. MEAN divides
            afterwards. Sparse rows are concatenated without it. None: treefold combines.
        accumulate: ``"exact"`` or ``"native"``, see ``CrossDeviceOps``.
        topology: None; a machine is refused.
        group: The ranks that reduce together, see ``CrossDeviceOps``; not with ``accumulation_fn``.

    Raises:
        ArgumentError: ``accumulation_fn`` cannot be called.
        DeviceError: ``reduce_to_device`` does not parse. Whether it exists is checked by the first call.

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
        """Remember the device and the function."""
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

    def _fold(self, op: ReduceOp, weights: tuple[int, ...] | None) -> Fold:
        if weights is not None and self._accumulation_fn is not None:
            raise ArgumentError("weights and accumulation_fn both say how to combine. Leave one of them out.")
        return Fold(op, self._accumulate, weights, self._accumulation_fn)

    def __repr__(self) -> str:
        given = [f"reduce_to_device={self._own_device!r}"] if self._own_device else []
        given += ["accumulation_fn=…"] if self._accumulation_fn is not None else []
        given += self._accumulate_words()
        return f"ReductionToOneDevice({', '.join(given)})"


_ALGORITHMS = ("nccl", "hierarchical_copy")
_NO_NCCL = "NCCL is not used, because {}: each pack is reduced on one device, the documented fallback"


class AllReduceCrossDeviceOps(CrossDeviceOps):
    """Reduces values in packs, each pack along a tree of its own or by NCCL.

    A value that does not return to the devices that it lies on is reduced alone, on its first destination.

    Source: ``AllReduceCrossDeviceOps`` in TensorFlow's ``cross_device_ops.py``.

    Args:
        all_reduce_alg: ``"nccl"``, see ``NcclAllReduce``; or ``"hierarchical_copy"``: devices reduce within two groups
            side by side, then across, and the roots rotate from pack to pack.
        num_packs: The values of one dtype are laid behind each other and cut into this number of packs, whose sizes
            differ by at most one element. 0: no packing. ``"auto"``: one pack per device.
            ``CommunicationOptions.bytes_per_pack`` > 0 overrides it.
        agg_small_grads_max_bytes: With ``num_packs=0``, values of at most this many bytes are grouped; 0: none are.
            ``bytes_per_pack`` > 0 overrides it, too.
        agg_small_grads_max_group: The most values in one such group; 0: no groups.
        accumulate: ``"exact"`` or ``"native"``, see ``CrossDeviceOps``.
        topology: For ``"hierarchical_copy"``: a machine, see ``CrossDeviceOps``. Packs then travel along the trees that
            together use its links best, one pack per tree, and ``num_packs`` is the number of trees of equal share.
            ``"auto"`` takes the method with the shortest predicted time for the bytes at hand; for large values these
            are the optimal trees, in packs of different sizes.
        group: The ranks that reduce together, see ``CrossDeviceOps``.

    Raises:
        ArgumentError: ``all_reduce_alg`` is unknown, or a number is not a whole one ≥ 0.

    """

    def __init__(
        self,
        all_reduce_alg: str = "nccl",
        num_packs: int | str = 1,
        agg_small_grads_max_bytes: int = 0,
        agg_small_grads_max_group: int = 10,
        *,
        accumulate: str = "exact",
        topology: object = None,
        group: object = None,
    ) -> None:
        """Check the packing and the algorithm."""
        if not is_word(all_reduce_alg, _ALGORITHMS):
            raise ArgumentError.choice(_ALGORITHMS, all_reduce_alg=all_reduce_alg)
        self._all_reduce_alg = all_reduce_alg
        super().__init__(accumulate=accumulate, topology=topology, group=group)
        self._packing = PackingPolicy.checked(
            type(self).__name__, num_packs, agg_small_grads_max_bytes, agg_small_grads_max_group
        )
        self._trees = None if self._topology is None else MachineTrees(self._topology, num_packs)

    def _follows_topology(self) -> bool:
        return self._all_reduce_alg == "hierarchical_copy"

    def _router(self, request: PlanRequest) -> Router:
        if request.executor.reduces_packs:
            add_pack = lambda builder, pack, _: add_one_shot(builder, pack)  # noqa: E731
            return dataclasses.replace(super()._router(request), add_pack=add_pack, meets=True)
        if self._trees is None:
            return super()._router(request)
        if request.is_on_one_memory and request.collective == "all_reduce":
            # There are no trees to plan, but naming another machine is a mistake here, too.
            for entry in request.entries:
                self._trees.check_devices(entry.sources)
        return self._trees.router(request.policy, self._root)

    def _policy(self, options: CommunicationOptions) -> PackingPolicy:
        return self._packing.with_bytes_per_pack(options.bytes_per_pack)

    def _add_pack(self, builder: PlanBuilder, pack: Pack, index: int) -> None:
        if self._all_reduce_alg == "hierarchical_copy":
            add_two_level(builder, pack, index)
        else:
            super()._add_pack(builder, pack, index)

    def _asked_executor(self) -> Executor | None:
        return NCCL if self._all_reduce_alg == "nccl" else None

    def _notes(self, call: CallSummary) -> tuple[str, ...]:
        if self._topology is not None and self._topology.missing is not None:
            return (f"{self._topology.missing}; the trees use the links that are there.",)
        asked = self._asked_executor()
        refusal = "" if asked is None or not call.routes else asked.refusal(call)
        if not refusal:
            return ()
        if any(device_type(device) == "gpu" for sources, _ in call.routes for device in sources):
            _warn_without_nccl(refusal)
        return (_NO_NCCL.format(refusal),)

    def __repr__(self) -> str:
        packing = self._packing
        words = [f"num_packs={packing.num_packs!r}"]
        if packing.num_packs == 0 and packing.agg_small_grads_max_bytes:
            words.append(f"agg_small_grads_max_bytes={packing.agg_small_grads_max_bytes}")
            words.append(f"agg_small_grads_max_group={packing.agg_small_grads_max_group}")
        if type(self) is AllReduceCrossDeviceOps:
            words.insert(0, f"all_reduce_alg={self._all_reduce_alg!r}")
        words += self._accumulate_words()
        if self._topology is not None:
            words.append(f"topology={self._topology.name or '…'!r}")
        return f"{type(self).__name__}({', '.join(words)})"


class HierarchicalCopyAllReduce(AllReduceCrossDeviceOps):
    """All-reduce through two groups of devices, for any number of them; each device first folds its own contributions.

    A pack costs 2·(n − 1) copies between n devices; with a ``topology``, it follows that machine's trees.
    Source: ``tf.distribute.HierarchicalCopyAllReduce``, which loses the last replica of an odd count.

    Args:
        num_packs: See ``AllReduceCrossDeviceOps``.
        accumulate: ``"exact"`` or ``"native"``, see ``CrossDeviceOps``.
        topology: The machine whose links packs follow, see ``AllReduceCrossDeviceOps``.
        group: The ranks that reduce together, see ``CrossDeviceOps``.

    Raises:
        ArgumentError: ``num_packs`` is not a whole number ≥ 0 or ``"auto"``.

    """

    def __init__(
        self, num_packs: int | str = 1, *, accumulate: str = "exact", topology: object = None, group: object = None
    ) -> None:
        """Check ``num_packs``."""
        super().__init__("hierarchical_copy", num_packs, accumulate=accumulate, topology=topology, group=group)


class NcclAllReduce(AllReduceCrossDeviceOps):
    """All-reduce by NCCL, one call per pack, between PyTorch's tensors on different GPUs of this process.

    Values that are not such tensors are reduced on one device per pack, the documented fallback. The plan's notes give
    the reason, and a ``RuntimeWarning`` does where the values are on GPUs.

    Floats of 16 bits travel as float32 and are rounded once, unless ``accumulate="native"``; float32 and float64 are
    added as they are, in NCCL's order.

    PyTorch computes MIN and MAX of floats, where NCCL loses NaN, products of complex numbers, the MEAN of 64-bit
    integers, and weights. With ``CommunicationOptions(timeout_seconds=…)`` a call waits until it has ended, at most for
    that time.

    Source: ``tf.distribute.NcclAllReduce``.

    Args:
        num_packs: See ``AllReduceCrossDeviceOps``.
        accumulate: ``"exact"`` or ``"native"``, see ``CrossDeviceOps``.
        topology: None; a machine is refused.
        group: The ranks that reduce together, see ``CrossDeviceOps``.

    Raises:
        ArgumentError: ``num_packs`` is not a whole number ≥ 0 or ``"auto"``.

    """

    def __init__(
        self, num_packs: int | str = 1, *, accumulate: str = "exact", topology: object = None, group: object = None
    ) -> None:
        """Check ``num_packs``."""
        super().__init__("nccl", num_packs, accumulate=accumulate, topology=topology, group=group)


@functools.cache
def _warn_without_nccl(refusal: str) -> None:
    warnings.warn(f"{_NO_NCCL.format(refusal)}.", RuntimeWarning, stacklevel=2)
