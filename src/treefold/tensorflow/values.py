"""What ``tf.distribute`` hands over, taken apart; and results put together as its callers expect them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util
from tensorflow.python.distribute.values import DistributedValues, Mirrored

import treefold.values
from treefold.devices import canonical_device
from treefold.errors import ArgumentError
from treefold.options import CommunicationOptions


@dataclass(frozen=True, slots=True)
class Pair:
    """One value of a call: a tensor or ``tf.IndexedSlices`` per replica, where they are, and where the result goes."""

    components: tuple[Any, ...]
    places: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def is_sparse(self) -> bool:
        """Whether the result is sparse rows, too."""
        return all(isinstance(component, tf.IndexedSlices) for component in self.components)

    def tensors(self) -> list[Any]:
        """Return all tensors that the components are made of, in order."""
        return [tensor for component in self.components for tensor in tensors_of(component)]


def read_pair(value: Any, destinations: Any) -> Pair:
    """Take a value and its destinations apart.

    Raises:
        ArgumentError: one of them is none of ``tf.distribute``'s forms.
        DeviceError: a device that does not parse or is another task's.

    """
    if isinstance(value, DistributedValues):
        components = tuple([_read_component(component) for component in value.values])
    else:
        components = (_read_component(value),)
    places = tuple([device_name(component.device) for component in components])
    return Pair(components, places, places if destinations is value else read_destinations(destinations))


def read_destinations(destinations: Any) -> tuple[str, ...]:
    """Return the device of each component that a result is to have; a variable or tensor stands for its device.

    Raises:
        ArgumentError: none of the forms, or empty.

    """
    if isinstance(destinations, DistributedValues):
        return tuple([device_name(component.device) for component in destinations.values])
    if isinstance(destinations, tf.Tensor | tf.Variable | tf.IndexedSlices):
        return (device_name(destinations.device),)
    names = (destinations,) if isinstance(destinations, str) else destinations
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ArgumentError.destinations(destinations)
    if not names or not all(names):
        raise ArgumentError.no_destinations()
    return tuple(device_name(name) for name in names)


def device_name(name: str) -> str:
    """Return the canonical name of a device; what it leaves open is taken from ``tf.device``, as TensorFlow does."""
    is_full = name.startswith("/job:") and "/device:" in name
    return canonical_device(name if is_full else device_util.resolve(name))


def read_options(options: Any) -> CommunicationOptions | None:
    """Return TensorFlow's ``CommunicationOptions`` as treefold's.

    Their ``implementation`` is left out: ``MirroredStrategy`` fills it in by itself, for its own collective ops.

    Raises:
        ArgumentError: they are something else.

    """
    if options is None or isinstance(options, CommunicationOptions):
        return options
    try:
        return _made_options(options.bytes_per_pack, options.timeout_seconds)
    except AttributeError:
        raise ArgumentError.not_options(options) from None


@functools.lru_cache(maxsize=64)
def _made_options(bytes_per_pack: int, timeout_seconds: float | None) -> CommunicationOptions:
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


def tensors_of(component: Any) -> list[Any]:
    """Return a tensor, or the two or three tensors of ``tf.IndexedSlices``."""
    if not isinstance(component, tf.IndexedSlices):
        return [component]
    shape = [] if component.dense_shape is None else [component.dense_shape]
    return [component.values, component.indices, *shape]


def to_treefold(component: Any) -> Any:
    """Return a component as treefold takes it: tensors as they are, sparse rows as ``treefold.IndexedSlices``."""
    if not isinstance(component, tf.IndexedSlices):
        return component
    shape = component.dense_shape
    if shape is not None:
        shape = tf.get_static_value(shape)
    return treefold.values.IndexedSlices(component.values, component.indices, shape)


def from_treefold(component: Any, like: Any) -> Any:
    """Return a component of a result as TensorFlow takes it; ``like``: the first replica's contribution."""
    if not isinstance(component, treefold.values.IndexedSlices):
        return component
    return tf.IndexedSlices(component.values, component.indices, like.dense_shape)


def regrouped(components: Sequence[Any]) -> Any:
    """Return one component bare, several as ``Mirrored``: TensorFlow's callers count on it."""
    return components[0] if len(components) == 1 else Mirrored(tuple(components))


def _read_component(component: Any) -> Any:
    if isinstance(component, tf.Tensor | tf.IndexedSlices):
        return component
    if isinstance(component, list | tuple | dict):
        raise ArgumentError.bare_structure(component, "per_replica_value")
    if component is None or isinstance(component, type | str | bytes):
        raise ArgumentError.not_a_value(component, "per_replica_value")
    device = getattr(component, "device", None)
    try:
        with tf.device(device if isinstance(device, str) else None):
            return tf.convert_to_tensor(component)
    except (TypeError, ValueError):
        raise ArgumentError.not_a_value(component, "per_replica_value") from None
