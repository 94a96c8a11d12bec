"""Reads the values that ``tf.distribute`` passes, and builds the results that its callers expect."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.distribute.values import DistributedValues, Mirrored
from tensorflow.python.distribute.values import PerReplica as TensorflowPerReplica
from tensorflow.python.framework.composite_tensor import CompositeTensor

import treefold.values
from treefold.backends.tensorflow import local_device, own_name
from treefold.dtypes import itemsize
from treefold.errors import ArgumentError, CallError
from treefold.errors.words import short
from treefold.options import CommunicationOptions
from treefold.tensorflow.errors import warn_without_timeouts

_NO_OPTIONS = tf.distribute.experimental.CommunicationOptions()


@dataclass(frozen=True, slots=True)
class TensorPair:
    """One value of a call: a tensor or ``tf.IndexedSlices`` per replica, their devices, and the result's devices."""

    components: tuple[Any, ...]
    places: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def is_sparse(self) -> bool:
        """True if the result is sparse rows, too."""
        return all(isinstance(component, tf.IndexedSlices) for component in self.components)

    @property
    def dtype(self) -> str:
        """NumPy's name of the first contribution's dtype."""
        name: str = self.components[0].dtype.base_dtype.name
        return name

    @property
    def nbytes(self) -> int:
        """Bytes of the first contribution, which is dense and of a known shape."""
        length: int = math.prod(self.components[0].shape)
        return length * itemsize(self.dtype)

    @property
    def is_in_cluster(self) -> bool:
        """True if some devices may be another process's; such devices have their long names."""
        return any(name.startswith("/") for name in (*self.places, *self.targets))

    def tensors(self) -> list[Any]:
        """Return all tensors of the components, in order."""
        return [tensor for component in self.components for tensor in tensors_of(component)]


def is_alike(pair: TensorPair) -> bool:
    """Tell whether all contributions are dense, and known to have one shape and dtype."""
    if any(isinstance(component, tf.IndexedSlices) for component in pair.components):
        return False
    first = pair.components[0]
    return first.shape.is_fully_defined() and all(
        component.shape == first.shape and component.dtype == first.dtype for component in pair.components[1:]
    )


def as_distributed(value: Any, what: str = "per_replica_value") -> Any:
    """Return a distributed value as it is, and one tensor (or what converts to one) as the value of one replica.

    Raises:
        ArgumentError: it is none of ``tf.distribute``'s forms; ``what`` names it.

    """
    return value if isinstance(value, DistributedValues) else TensorflowPerReplica((_read_component(value, what),))


def read_pair(value: Any, destinations: Any, what: str = "per_replica_value") -> TensorPair:
    """Read a value and its destinations; errors call the value ``what``.

    Raises:
        ArgumentError: one of them is none of ``tf.distribute``'s forms.
        DeviceError: a device that does not parse or is another task's.

    """
    if isinstance(value, DistributedValues):
        components = tuple([_read_component(component, what) for component in value.values])
    else:
        components = (_read_component(value, what),)
    places = tuple([device_name(component.device) for component in components])
    return TensorPair(components, places, places if destinations is value else read_destinations(destinations))


def read_destinations(destinations: Any) -> tuple[str, ...]:
    """Return the device of each component of a result; a variable or tensor stands for its device.

    Raises:
        ArgumentError: none of the forms, or empty.

    """
    if isinstance(destinations, DistributedValues):
        return tuple([device_name(component.device) for component in destinations.values])
    if isinstance(destinations, tf.Tensor | tf.Variable | tf.IndexedSlices):
        return (device_name(destinations.device),)
    is_one = isinstance(destinations, str) or own_name(destinations) is not None
    devices = (destinations,) if is_one else destinations
    if not isinstance(devices, list | tuple):
        raise ArgumentError.destinations(destinations)
    names = []
    for device in devices:
        name = device if isinstance(device, str) else own_name(device)
        if name is None:
            raise ArgumentError.destinations(destinations)
        names.append(name)
    if not names or not all(names):
        raise ArgumentError.no_destinations()
    return tuple(device_name(name) for name in names)


def device_name(name: str) -> str:
    """Return the canonical name of a device. Missing parts of a name come from ``tf.device``, as in TensorFlow.

    In a graph for sessions, the devices of a cluster keep the long name that TensorFlow gives them.
    """
    is_full = name.startswith("/job:") and "/device:" in name
    full = name if is_full else device_util.resolve(name)
    if not full.startswith("/job:localhost") and not tf.compat.v1.executing_eagerly_outside_functions():
        return full
    return local_device(full)


def chosen_options(options: Any, experimental_hints: Any) -> Any:
    """Return the options of a call, which may have either of two names; TensorFlow's defaults if there are none.

    Raises:
        CallError: they came under both names.

    """
    if options is not None and experimental_hints is not None:
        raise CallError.both_option_names()
    given = experimental_hints if options is None else options
    return _NO_OPTIONS if given is None else given


def read_options(options: Any) -> CommunicationOptions | None:
    """Return TensorFlow's ``CommunicationOptions`` as treefold's.

    The ``implementation`` is left out: ``MirroredStrategy`` sets it by itself, for its own collective ops. The
    ``timeout_seconds`` are left out with a warning: TensorFlow's documentation passes them to every call, and its ops
    drop them.

    Raises:
        ArgumentError: they are something else.

    """
    if options is None:
        return None
    try:
        seconds = options.timeout_seconds
        if seconds is not None:
            warn_without_timeouts()
        if not isinstance(options, CommunicationOptions):
            return _made_options(options.bytes_per_pack)
    except AttributeError:
        raise ArgumentError.option(options=options) from None
    return options if seconds is None else dataclasses.replace(options, timeout_seconds=None)


@functools.lru_cache(maxsize=64)
def _made_options(bytes_per_pack: int) -> CommunicationOptions:
    return CommunicationOptions(bytes_per_pack)


def tensors_of(component: Any) -> list[Any]:
    """Return the tensor of a component, or the two or three tensors of ``tf.IndexedSlices``."""
    if not isinstance(component, tf.IndexedSlices):
        return [component]
    shape = [] if component.dense_shape is None else [component.dense_shape]
    return [component.values, component.indices, *shape]


def to_treefold(component: Any) -> Any:
    """Return a component in treefold's form: tensors unchanged, sparse rows as ``treefold.IndexedSlices``."""
    if not isinstance(component, tf.IndexedSlices):
        return component
    shape = component.dense_shape
    if shape is not None:
        shape = tf.get_static_value(shape)
    return treefold.values.IndexedSlices(component.values, component.indices, shape)


def from_treefold(component: Any, like: Any) -> Any:
    """Return a component of a result in TensorFlow's form. ``like``: the first replica's contribution."""
    if not isinstance(component, treefold.values.IndexedSlices):
        return component
    return tf.IndexedSlices(component.values, component.indices, like.dense_shape)


def copied(component: Any, devices: Sequence[str]) -> list[Any]:
    """Return a copy of a tensor or ``tf.IndexedSlices`` on every device, made by TensorFlow, also eagerly."""
    copies = []
    for device in devices:
        with tf.device(device):
            copies.append(tf.nest.map_structure(tf.identity, component, expand_composites=True))
    return copies


def regrouped(components: Sequence[Any]) -> Any:
    """Return one component bare, and several as ``Mirrored``, as TensorFlow's callers expect."""
    return components[0] if len(components) == 1 else Mirrored(tuple(components))


def _read_component(component: Any, what: str) -> Any:
    if isinstance(component, tf.Tensor | tf.IndexedSlices):
        return component
    if isinstance(component, list | tuple | dict):
        raise ArgumentError.bare_structure(component, what)
    if component is None or isinstance(component, type | str | bytes):
        raise ArgumentError.not_a_value(component, what)
    if isinstance(component, CompositeTensor) and not isinstance(component, tf.Variable):
        raise ArgumentError(
            f"{what} is {short(component)}, which is made of several tensors. It takes tensors and IndexedSlices: make "
            "it dense, or reduce its tensors by themselves where they agree in shape."
        )
    device = getattr(component, "device", None)
    try:
        with tf.device(device if isinstance(device, str) else None):
            return tf.convert_to_tensor(component)
    except (TypeError, ValueError):
        raise ArgumentError.not_a_value(component, what) from None
