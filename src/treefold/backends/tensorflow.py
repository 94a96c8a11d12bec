"""TensorFlow tensors: on logical CPU devices they are host memory; on GPUs and in XLA, TensorFlow's ops compute.

TensorFlow's tensors never change. So a copy may share memory with its source, and one memory may be the result on
several CPU devices, as in TensorFlow itself. Nothing is ever written into a tensor. Variables contribute their value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.ops import EagerTensor  # the only constructor that adopts memory, on any device

from treefold.backends.interface import ArrayBackend, HostArray, Refusal, Row, read_arrays
from treefold.backends.numpy import NumpyBackend
from treefold.backends.numpy_fold import fold_block, scale_block
from treefold.backends.tensorflow_calls import call_in_order, call_numpy, is_traced_on_host, is_tracing
from treefold.backends.tensorflow_fold import add_rows, fold_tensors, scale_tensor
from treefold.backends.tracing import Like
from treefold.devices import canonical_device, tensorflow_device
from treefold.dtypes import FOLDABLE
from treefold.errors import ArgumentError
from treefold.errors.words import some
from treefold.fold import Fold

_HOST = NumpyBackend()
_TAKEN = "or use the ops of treefold.tensorflow, which take it."
_NOT_ARRAYS = (
    (tf.IndexedSlices, f"Pass treefold.IndexedSlices(x.values, x.indices), {_TAKEN}"),
    (tf.SparseTensor, "Pass tf.sparse.to_dense(x)."),
    (tf.RaggedTensor, "Pass x.to_tensor(), or x.flat_values if all replicas have rows of the same lengths."),
    (tf.distribute.DistributedValues, f"Pass treefold.PerReplica(x.values), {_TAKEN}"),
    (CompositeTensor, "It is made of several tensors: pass those, for instance as a dict."),
)


class TensorflowBackend(ArrayBackend):
    """Eager and symbolic tensors, and variables by their value."""

    name = "TensorFlow"
    row_types = frozenset({EagerTensor})
    shares_results = True
    not_arrays = _NOT_ARRAYS

    def owns(self, value: object) -> bool:
        """Own tensors and variables; ``IndexedSlices``, ragged and sparse tensors consist of several."""
        return isinstance(value, tf.Tensor | tf.Variable)

    def has_device(self, device: str) -> bool:
        """Look the device up among TensorFlow's logical devices, which are fixed when it starts."""
        return device in _logical_devices()

    def describe_devices(self) -> str:
        return some(sorted(_logical_devices()))

    def name_of(self, device: object) -> str | None:
        """Return the name of a ``tf.config.LogicalDevice`` or a ``tf.DeviceSpec``."""
        name = own_name(device)
        return None if name is None else local_device(name)

    def device_of(self, array: Any) -> str:
        """Return the tensor's device; a symbolic tensor without one counts as on the first CPU."""
        return local_device(array.device or "cpu:0")

    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        """Return the static shape, which ``refusal`` has checked, and the dtype."""
        return tuple(array.shape.as_list()), _dtype_name(array.dtype)

    def refusal(self, array: Any) -> Refusal | None:
        """Refuse symbolic tensors of unknown shape, because plans have lengths."""
        if array.shape.is_fully_defined():
            return None
        advice = "Set its shape with tf.ensure_shape, or use the ops of treefold.tensorflow, which take such tensors"
        return Refusal(f"a tensor of shape {array.shape}", advice)

    def copy_to(self, array: Any, device: str) -> Any:
        """Let TensorFlow copy; between CPU devices it shares the memory."""
        with tf.device(device):
            return tf.identity(array)

    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
        """Fold in NumPy if it can view the memory, else by TensorFlow's ops with the same arithmetic."""
        views = self._views(arrays)
        if views is not None:
            return self._on(arrays[0], fold_block(views, fold, dtype=dtype, divisor=divisor, result=result))
        with tf.device(arrays[0].device):
            return fold_tensors(arrays, fold, dtype=dtype, divisor=divisor, result=result)

    def scale(self, array: Any, divisor: int, result: str) -> Any:
        views = self._views([array])
        if views is not None:
            return self._on(array, scale_block(views[0], divisor, result))
        with tf.device(array.device):
            return scale_tensor(array, divisor, result)

    def ravel_concat(self, arrays: Sequence[Any]) -> Any:
        """Return a reshaped tensor, or a new one of several."""
        with tf.device(arrays[0].device):
            flat = [tf.reshape(array, [-1]) for array in arrays]
            return flat[0] if len(flat) == 1 else tf.concat(flat, 0)

    def split(self, array: Any, start: int, stop: int) -> Any:
        with tf.device(array.device):
            return array[start:stop]

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a tensor on the same memory."""
        with tf.device(array.device):
            return tf.reshape(array, shape)

    def moveaxis(self, array: Any, source: int, target: int) -> Any:
        axes = list(range(len(array.shape)))
        axes.insert(target, axes.pop(source))
        with tf.device(array.device):
            return tf.transpose(array, axes)

    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
        views = self._views([values, indices])
        if views is None:
            return _rows_added(values, indices, shape)
        return self._on(values, _HOST.densify(views[0], views[1], shape))

    def index_bounds(self, indices: Any) -> tuple[int, int]:
        """Read all indices; a symbolic one counts as 0 here, and is checked when the graph runs."""
        if not tf.executing_eagerly() and tf.is_symbolic_tensor(indices):
            return 0, 0
        return int(tf.reduce_min(indices)), int(tf.reduce_max(indices))

    def assign(self, target: Any, source: Any) -> None:
        """Raise an error: nothing is writable, so no caller should get here."""
        raise AssertionError(target, source)

    def is_writable(self, array: Any) -> bool:  # noqa: ARG002
        """Return False: tensors never change, and variables are never updated."""
        return False

    def synchronize(self, array: Any) -> None:
        """Do nothing: reading a tensor waits for it."""

    def host_view(self, array: Any) -> HostArray | None:
        """Return the memory of an eager tensor on a CPU device; strings and the like have none."""
        if isinstance(array, tf.Variable):
            array = array.read_value()
        if not isinstance(array, EagerTensor) or "CPU:" not in array.device or _dtype_name(array.dtype) not in _SEEN:
            return None
        return _read_only(array)

    def from_host(self, array: HostArray, device: str) -> Any:
        """Adopt memory that is aligned to 64 bytes, as TensorFlow requires; copy other memory."""
        return EagerTensor(array, device=tensorflow_device(device), dtype=None)

    def from_hosts(self, arrays: Sequence[HostArray], devices: Sequence[str]) -> list[Any]:
        """Adopt the one memory once, and let TensorFlow share it between its CPU devices."""
        first = self.from_host(arrays[0], devices[0])
        # The same as tf.identity between CPU devices, in 1 µs instead of 20.
        return [first, *[first._copy_to_device(tensorflow_device(device)) for device in devices[1:]]]  # noqa: SLF001

    def is_later(self, array: Any) -> bool:  # noqa: ARG002
        """Return whether a graph is being traced: there, tensors with contents stand for those of every run."""
        return is_tracing()

    def call_later(self, function: Callable[..., Any], arrays: Sequence[Any], likes: Sequence[Like]) -> list[Any]:
        """Add a call with eager tensors."""
        return call_in_order(function, arrays, likes)

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        """Read eager tensors in host memory; the key has their devices in TensorFlow's spelling."""
        if not tf.executing_eagerly():
            return None
        views, devices = [], []
        for array in arrays:
            if type(array) is not EagerTensor or "CPU:" not in array.device:
                return None
            try:
                views.append(_read_only(array))
            except tf.errors.InvalidArgumentError:  # tensor lists and the like are no arrays
                return None
            devices.append(array.device)
        if views[0].dtype.name not in _SEEN:
            return None
        return read_arrays(self, arrays, tuple(views), tuple(devices))

    def _views(self, arrays: Sequence[Any]) -> list[HostArray] | None:
        views = [self.host_view(array) for array in arrays]
        return None if any(view is None for view in views) else views  # type: ignore[return-value] # none is None

    def _on(self, array: Any, made: HostArray) -> Any:
        return self.from_host(made, local_device(array.device))


_SEEN = frozenset(FOLDABLE)


def _read_only(tensor: EagerTensor) -> HostArray:
    view = np.asarray(tensor._numpy())  # noqa: SLF001 - .numpy() is this and a copy
    view.setflags(write=False)
    return view


def _rows_added(values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
    """Return the result of ``densify`` for tensors that NumPy cannot view yet, or at all."""

    def densify(rows: HostArray, places: HostArray) -> list[HostArray]:
        outside = [place for place in places.tolist() if not 0 <= place < shape[0]]
        if outside:
            raise ArgumentError(f"An IndexedSlices has index {outside[0]}. Its dense_shape allows 0 to {shape[0] - 1}.")
        return [_HOST.densify(rows, places, shape)]

    if is_traced_on_host():
        [dense] = call_numpy(densify, [values, indices], [values.dtype])
    else:
        with tf.device(values.device):
            dense = add_rows(values, indices, shape[0], _dtype_name(values.dtype))
    return tf.ensure_shape(dense, shape)


def own_name(device: object) -> str | None:
    """Return TensorFlow's name of a device that is one of its own objects; None for anything else."""
    if isinstance(device, tf.config.LogicalDevice):  # a tuple of two names
        return str(device.name)
    return str(device.to_string()) if isinstance(device, tf.DeviceSpec) else None


def local_device(name: str) -> str:
    """Return the canonical name for TensorFlow's, which in a cluster contains the job and task of this process.

    Raises:
        DeviceError: It does not parse, or belongs to another task.

    """
    own = _own_task()
    return canonical_device(name.replace(f"{own}/", "/").replace(f"{own.replace('/replica:0', '')}/", "/"))


def _own_task() -> str:
    """Return the job and task of this process, as ``"/job:worker/replica:0/task:1"``; without a cluster ``""``.

    TensorFlow lists this process's devices before those of other tasks, and renames them when it joins a cluster.
    """
    name: str = tf.config.list_logical_devices("CPU")[0].name
    return name.removesuffix("/device:CPU:0")


@functools.cache
def _logical_devices() -> frozenset[str]:
    names, own = [device.name for device in tf.config.list_logical_devices()], f"{_own_task()}/"
    return frozenset(local_device(name) for name in names if name.startswith(own))


def _dtype_name(dtype: Any) -> str:
    """Return TensorFlow's name of a dtype, which is NumPy's if NumPy has the dtype."""
    name: str = dtype.base_dtype.name
    return name
