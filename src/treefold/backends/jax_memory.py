"""JAX arrays on host memory that treefold allocated, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding

from treefold.backends.interface import HostArray

try:  # what device_put ends in; for eight small arrays device_put itself takes five times as long
    from jax._src.lib import xla_client

    BATCHED_DEVICE_PUT: Any = xla_client.batched_device_put
except (ImportError, AttributeError):  # a release of JAX that keeps it elsewhere
    BATCHED_DEVICE_PUT = None

_MOST_WITHOUT_X64 = 4  # bytes of an element; complex64 has 8, and does not mind


def place(arrays: Sequence[HostArray], devices: tuple[Any, ...]) -> list[Any]:
    """Commit the memory of arrays of one shape and dtype, which nobody else writes to, to one device each.

    Elements stay as wide as they are, whatever jax_enable_x64 says.
    """
    dtype = arrays[0].dtype
    if dtype.itemsize <= _MOST_WITHOUT_X64:
        return _placed(arrays, devices)
    with jax.enable_x64(True):  # noqa: FBT003 - JAX's own signature
        return _placed(arrays, devices)


def _placed(arrays: Sequence[HostArray], devices: tuple[Any, ...]) -> list[Any]:
    if BATCHED_DEVICE_PUT is None:
        placed: list[Any] = jax.device_put(list(arrays), list(devices))
        return placed
    aval, places = _places(arrays[0].shape, arrays[0].dtype, devices)
    rows = zip(arrays, places, strict=True)
    return [BATCHED_DEVICE_PUT(aval, sharding, [array], device, True) for array, (sharding, device) in rows]  # noqa: FBT003 - committed


@functools.lru_cache(maxsize=256)
def _places(
    shape: tuple[int, ...], dtype: Any, devices: tuple[Any, ...]
) -> tuple[ShapedArray, list[tuple[SingleDeviceSharding, list[Any]]]]:
    return ShapedArray(shape, dtype), [(SingleDeviceSharding(device), [device]) for device in devices]
