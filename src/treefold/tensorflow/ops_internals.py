"""What traced reductions need of treefold's ops objects that their public methods do not tell.

All accesses to private names of ``treefold.ops`` are here.
"""

from __future__ import annotations

from collections.abc import Sequence

import treefold.ops
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp


def fold_of(ops: treefold.ops.CrossDeviceOps, op: ReduceOp) -> Fold:
    """Return the arithmetic of a call without weights."""
    return ops._fold(op, None)  # noqa: SLF001 - ours


def own_devices(ops: treefold.ops.CrossDeviceOps) -> tuple[str, ...]:
    """Return the devices that the ops object itself names."""
    return ops._own_devices()  # noqa: SLF001 - ours


def root_of(ops: treefold.ops.CrossDeviceOps, destinations: Sequence[str]) -> str:
    """Return the device on which values meet that no plan carries."""
    return ops._root(destinations)  # noqa: SLF001 - ours
