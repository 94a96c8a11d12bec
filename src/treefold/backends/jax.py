"""JAX arrays on CPU devices: read in place, and results put on their device without a copy.

Everything is folded in host memory, by the kernels that fold NumPy arrays; JAX only learns the device of a result. On
every CPU device, JAX adopts memory that is 64-byte aligned, as results of 64 KiB and more are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optree

# The class of all arrays that hold numbers; it cannot be subclassed. JAX has no public name for it. To make an array
# and take its type would start JAX's platforms, even if the program only imports JAX.
from jax._src.array import ArrayImpl
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import SingleDeviceSharding

from treefold.backends.interface import Container, HostArray, Refusal, Row, read_arrays
from treefold.backends.numpy import ThroughNumpyBackend
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
#: A number that the parts of a call pass on, so that they run one after the other.
_TURN = jax.ShapeDtypeStruct((), np.uint8)
_MOST_WITHOUT_X64 = 4  # bytes of an element; complex64 has 8, and does not mind


class JaxBackend(ThroughNumpyBackend):
    """Arrays that are committed to a CPU device, or on the default one. All are immutable."""

    name = "JAX"
    row_types = frozenset({ArrayImpl})
    #: True for donated arrays, too: JAX does not write into memory that it has adopted.
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
        """Decide by the class alone: attributes of the value are not trusted."""
        return issubclass(type(value), (jax.Array, jax.core.Tracer))

    def refusal(self, array: Any) -> Refusal | None:
        """Refuse arrays without numbers here and now: tracers, keys, deleted arrays, several devices, accelerators."""
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
        """Return whether JAX was started with this CPU device."""
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
            ArgumentError: It is on none or on several.

        """
        refusal = self.refusal(array)
        if refusal is not None:
            raise ArgumentError.unsupported_array(_ASKED, "", refusal.got, refusal.advice)
        [device] = array.devices()
        return self._names[device]

    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        return array.shape, array.dtype.name

    def copy_to(self, array: Any, device: str) -> Any:
        """Copy in NumPy, because JAX would alias."""
        return self.from_host(np.array(self.host_view(array)), device)

    def result_dtype(self, fold: Fold, dtype: str) -> str:
        """Return float32 for a MEAN of integers without x64, as ``jnp.mean`` does; float64 would break a ``jit``."""
        result = fold.result_dtype(dtype)
        return "float32" if dtype in INTEGERS and result == "float64" and not jax.config.jax_enable_x64 else result

    def is_later(self, array: Any) -> bool:
        """Return whether the array is a tracer."""
        return isinstance(array, jax.core.Tracer)

    def call_later(self, function: Callable[..., Any], arrays: Sequence[Any], likes: Sequence[Like]) -> list[Any]:
        """Call with NumPy arrays."""
        return call_in_order(function, arrays, likes, self.result_dtype)

    def contents(self, arrays: Sequence[Any]) -> list[HostArray]:
        """Return JAX's own views."""
        return [self.host_view(array) for array in arrays]

    def beside(self, array: Any, made: HostArray) -> Any:
        """Return a new array, even if the contents are a view."""
        return self.from_host(made, self.device_of(array))

    def assign(self, target: Any, source: Any) -> None:
        """Raise an error: JAX's arrays are never written, so no caller should get here."""
        raise AssertionError(target, source)

    def is_writable(self, array: Any) -> bool:  # noqa: ARG002
        return False

    def synchronize(self, array: Any) -> None:
        jax.block_until_ready(array)

    def host_view(self, array: Any) -> HostArray:
        """Return JAX's own read-only view, which waits for the value."""
        return np.asarray(array)

    def from_host(self, array: HostArray, device: str) -> Any:
        """Commit memory, which no one else may write, to a device, in its own dtype whatever jax_enable_x64 says."""
        return self.from_hosts([array], [device])[0]

    def from_hosts(self, arrays: Sequence[HostArray], devices: Sequence[str]) -> list[Any]:
        """Commit memory of each array to a device, as ``from_host`` does; a single array may go to all devices."""
        arrays = list(arrays) * len(devices) if len(arrays) == 1 else arrays
        return place(arrays, tuple([self._devices[device] for device in devices]))

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        """Read JAX's own views; an array that was deleted has none.

        Shardings distinguish arrays on one CPU device from all those that ``refusal`` refuses. Results depend on the
        setting of x64, which may change from call to call, so it is in the key.
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

    def take_apart(self, value: object) -> Container | None:
        """Return the children of a container that was registered with JAX, such as a dataclass of parameters."""
        children, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
        if jax.tree_util.treedef_is_leaf(structure):
            return None
        paths = [path[-1] for path, _ in children]
        names = tuple(getattr(path, "name", getattr(path, "key", position)) for position, path in enumerate(paths))
        kind = optree.GetAttrEntry if all(hasattr(path, "name") for path in paths) else optree.FlattenedEntry
        return Container([child for _, child in children], structure, names, kind)

    def put_together(self, rest: Any, children: Sequence[Any]) -> Any:
        return rest.unflatten(children)


def call_in_order(
    function: Callable[..., Any],
    arrays: Sequence[Any],
    likes: Sequence[Like],
    result_dtype: Callable[[Fold, str], str],
) -> list[Any]:
    """Add a call to the program that is being traced, after all earlier ones. The call has no gradient.

    A call reads and writes the memory of the program. JAX's ordered callback would copy large arrays, on a thread of
    JAX's that may also run the program: with one core that copy waits for ever. So the ordered callbacks get only a
    number, and keep the order.

    Args:
        function: Gets NumPy arrays, and returns a NumPy array for each of ``likes``.
        arrays: The arguments of the function.
        likes: The forms of the results.
        result_dtype: Returns the dtype of a fold of arrays of a dtype.

    Raises:
        ArgumentError: A result's length is not known before the call; JAX's programs have fixed shapes.

    """
    if any(like.axis is not None for like in likes):
        raise ArgumentError(
            "A gather, a scatter or sparse rows have lengths that other ranks decide, and JAX's programs have fixed "
            "shapes. Call it outside of jit; all_reduce, reduce and broadcast may stand inside."
        )
    shapes = [jax.ShapeDtypeStruct(like.array.shape, _dtype(like, result_dtype)) for like in likes]

    def call(_: Any, targets: Sequence[Any], _begun: Any, *given: Any) -> None:
        made = function(*map(np.asarray, given))
        for target, array in zip(targets, (0, *made), strict=True):
            np.asarray(target)[...] = array

    begun = io_callback(_begin, _TURN, ordered=True)
    ended, *made = buffer_callback(call, [_TURN, *shapes], has_side_effect=True)(begun, *arrays)
    io_callback(_end, None, ended, ordered=True)
    return list(made)


def _begin() -> Any:
    return np.uint8(0)


def _end(ended: Any) -> None:
    """Let the next call begin, as this one has ended."""


def _dtype(like: Like, result_dtype: Callable[[Fold, str], str]) -> Any:
    own = like.array.dtype
    return own if like.fold is None else np.dtype(result_dtype(like.fold, own.name))


try:  # device_put calls this in the end; for eight small arrays it takes five times as long itself
    from jax._src.lib import xla_client

    BATCHED_DEVICE_PUT: Any = xla_client.batched_device_put
except (ImportError, AttributeError):  # a release of JAX that keeps it elsewhere
    BATCHED_DEVICE_PUT = None


def place(arrays: Sequence[HostArray], devices: tuple[Any, ...]) -> list[Any]:
    """Commit arrays of one shape and dtype to one device each; no one else may write their memory.

    Elements keep their width, whatever jax_enable_x64 says.
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
