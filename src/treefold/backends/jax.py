"""JAX arrays on CPU devices: read where they lie, and results put on their device without a copy.

Everything is folded in host memory, by the kernels that fold NumPy arrays; JAX only learns where a result belongs.
It adopts memory that is 64-byte aligned, as results of 64 KiB and more are, on every CPU device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optree

# The class of all arrays that hold numbers; nothing can be derived from it. JAX has no public name for it, and to make
# an array and look would start JAX's platforms, for callers who only imported it.
from jax._src.array import ArrayImpl

from treefold.backends.interface import HostArray, Node, Refusal
from treefold.backends.jax_calls import call_in_order
from treefold.backends.jax_memory import place
from treefold.backends.rows import Row, read_arrays
from treefold.backends.through_numpy import ThroughNumpyBackend
from treefold.backends.tracing import Like
from treefold.dtypes import INTEGERS
from treefold.errors import ArgumentError
from treefold.errors.words import some
from treefold.fold import Fold

_ASKED = "The value or destination"  # where a device is asked for, no replica is known
_SPREAD = (
    "treefold takes arrays on one device each: pass PerReplica([shard.data for shard in array.addressable_shards]), "
    "or a copy on one device."
)


class JaxBackend(ThroughNumpyBackend):
    """Arrays that are committed to a CPU device, or on the default one. All are immutable."""

    name = "JAX"
    row_types = frozenset({ArrayImpl})
    #: Also true of donated ones: JAX does not write into memory that it adopted.
    shares_results = True
    takes_read_only = True

    # Lazy, because JAX's platforms start when they are first asked.
    @functools.cached_property
    def _devices(self) -> dict[str, Any]:
        try:
            return {f"cpu:{index}": device for index, device in enumerate(jax.local_devices(backend="cpu"))}
        except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
            return {}

    @functools.cached_property
    def _names(self) -> dict[Any, str]:
        return {device: name for name, device in self._devices.items()}

    def owns(self, value: object) -> bool:
        """Tell by the class alone: what a value says of itself does not count."""
        return issubclass(type(value), (jax.Array, jax.core.Tracer))

    def refusal(self, array: Any) -> Refusal | None:
        """Refuse what has no numbers here and now: tracers, keys, deleted arrays, several devices, accelerators."""
        if isinstance(array, jax.core.Tracer):
            advice = (
                "In one process treefold runs outside jit, grad and vmap: call it on their results, or use "
                "jax.lax.psum inside. Calls of a group may stand in jit."
            )
            return Refusal("a JAX tracer, which stands for an array without being one", advice)
        if type(array) is not ArrayImpl:
            advice = "treefold takes arrays of numbers: of random keys, pass jax.random.key_data(keys)."
            return Refusal(f"a {type(array).__name__}", advice)
        if array.is_deleted():
            advice = "Pass the result that took its memory, or do not donate it."
            return Refusal("a JAX array that was deleted or donated", advice)
        devices = array.devices()
        if len(devices) > 1:
            return Refusal(f"a JAX array on {len(devices)} devices", _SPREAD)
        [device] = devices
        if device not in self._names:
            advice = 'Only CPU arrays are reduced so far: pass jax.device_put(array, jax.devices("cpu")[0]).'
            return Refusal(f"a JAX array on {device}", advice)
        return None

    def has_device(self, device: str) -> bool:
        """JAX's own CPU devices exist, however many it was started with."""
        return device in self._devices

    def describe_devices(self) -> str:
        return some([*self._devices]) or "no CPU device, as JAX_PLATFORMS leaves it out"

    def name_of(self, device: object) -> str | None:
        """Take a ``jax.Device``."""
        if not isinstance(device, jax.Device):
            return None
        return self._names.get(device, f"{device.platform}:{device.id}")

    def device_of(self, array: Any) -> str:
        """Return the one CPU device that the array is on.

        Raises:
            ArgumentError: it is on none or on several.

        """
        refusal = self.refusal(array)
        if refusal is not None:
            raise ArgumentError.unsupported_array(_ASKED, "", refusal.got, refusal.advice)
        [device] = array.devices()
        return self._names[device]

    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        return array.shape, array.dtype.name

    def copy_to(self, array: Any, device: str) -> Any:
        """Copy, for JAX would alias."""
        return self.from_host(np.array(self.host_view(array)), device)

    def result_dtype(self, fold: Fold, dtype: str) -> str:
        """Without x64 the MEAN of integers is float32, as ``jnp.mean`` has it: float64 would break the next ``jit``."""
        result = fold.result_dtype(dtype)
        return "float32" if dtype in INTEGERS and result == "float64" and not jax.config.jax_enable_x64 else result

    def is_later(self, array: Any) -> bool:
        """Tell a tracer."""
        return isinstance(array, jax.core.Tracer)

    def call_later(self, function: Callable[..., Any], arrays: Sequence[Any], likes: Sequence[Like]) -> list[Any]:
        """Call with NumPy arrays."""
        return call_in_order(function, arrays, likes, self.result_dtype)

    def contents(self, arrays: Sequence[Any]) -> list[HostArray]:
        """Return JAX's own views."""
        return [self.host_view(array) for array in arrays]

    def beside(self, array: Any, made: HostArray) -> Any:
        """Return a new array, also of contents that are a view."""
        return self.from_host(made, self.device_of(array))

    def assign(self, target: Any, source: Any) -> None:
        """Raise an error: nothing is ever written into JAX's arrays, and nothing asks for it."""
        raise AssertionError(target, source)

    def is_writable(self, array: Any) -> bool:  # noqa: ARG002
        return False

    def synchronize(self, array: Any) -> None:
        jax.block_until_ready(array)

    def host_view(self, array: Any) -> HostArray:
        """Return JAX's own read-only view, which waits for the value."""
        return np.asarray(array)

    def from_host(self, array: HostArray, device: str) -> Any:
        """Commit memory that nobody else writes to a device, as the dtype that it has, whatever jax_enable_x64 says."""
        return self.from_hosts([array], [device])[0]

    def from_hosts(self, arrays: Sequence[HostArray], devices: Sequence[str]) -> list[Any]:
        """Commit memory of each array to a device, as ``from_host`` does; a single array may go to all devices."""
        arrays = list(arrays) * len(devices) if len(arrays) == 1 else arrays
        return place(arrays, tuple([self._devices[device] for device in devices]))

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        """Read JAX's own views; of one that was deleted there is none.

        Shardings tell arrays on one CPU device from all that ``refusal`` refuses. Results depend on the setting of
        x64, which may change from call to call.
        """
        for array in arrays:
            if type(array) is not ArrayImpl:
                return None
        try:
            views = tuple([np.asarray(array) for array in arrays])
        except RuntimeError:
            return None
        extra = (jax.config.jax_enable_x64, *[array.sharding for array in arrays])
        return read_arrays(self, arrays, views, extra)

    def take_apart(self, value: object) -> Node | None:
        """Take a container apart that was registered with JAX, such as a dataclass of parameters."""
        children, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
        if jax.tree_util.treedef_is_leaf(structure):
            return None
        paths = [path[-1] for path, _ in children]
        names = tuple(getattr(path, "name", getattr(path, "key", position)) for position, path in enumerate(paths))
        kind = optree.GetAttrEntry if all(hasattr(path, "name") for path in paths) else optree.FlattenedEntry
        return Node([child for _, child in children], structure, names, kind)

    def put_together(self, rest: Any, children: Sequence[Any]) -> Any:
        return rest.unflatten(children)
