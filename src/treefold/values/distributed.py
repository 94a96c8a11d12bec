"""One value per replica, and one value on every destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from treefold.backends import backend_of
from treefold.devices import canonical_device
from treefold.errors import ArgumentError, DeviceError
from treefold.values.sparse import IndexedSlices
from treefold.values.structure import flatten, leaf_paths

if TYPE_CHECKING:
    from treefold.plan import Plan


class DistributedValues:
    """A tuple of components, each on a device. ``PerReplica`` and ``Mirrored`` say what the components mean.

    A component is an array, a number, an ``IndexedSlices`` or any pytree of these. Without ``devices``, arrays on real
    devices keep theirs and host arrays stand for ``cpu:0``, ``cpu:1`` …, one per component. Nothing is copied.

    Raises:
        ArgumentError: no values, no sequence of values, or not one device per value.
        DeviceError: an array is on another device than ``devices`` says, or one component is on several.

    """

    def __init__(self, values: Sequence[Any], devices: Sequence[str] | None = None) -> None:
        """Hold ``values`` as they are."""
        owner = type(self).__name__
        if isinstance(values, DistributedValues | str | bytes | dict) or not isinstance(values, Sequence):
            raise ArgumentError.not_components(owner, values)
        if not values:
            raise ArgumentError.no_replicas(owner)
        for value in values:
            if isinstance(value, DistributedValues):
                raise ArgumentError.not_components(owner, value)
        self._values = tuple(values)
        self._devices = None if devices is None else self._read_devices(devices)

    def _read_devices(self, devices: object) -> tuple[str, ...]:
        owner = type(self).__name__
        if isinstance(devices, str):
            devices = (devices,)
        if isinstance(devices, bytes) or not isinstance(devices, Sequence):
            raise ArgumentError.device_names(owner, devices)
        if len(devices) != len(self._values):
            raise ArgumentError.device_count(owner, len(self._values), len(devices))
        return tuple(canonical_device(device) for device in devices)

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in order."""
        return self._values

    @property
    def named_devices(self) -> tuple[str, ...] | None:
        """The devices that were named when this was made, None if they follow from the arrays."""
        return self._devices

    @property
    def devices(self) -> tuple[str, ...]:
        """The canonical name of each component's device, in order."""
        return tuple(self.device_of(index, flatten(value)[0]) for index, value in enumerate(self._values))

    def device_of(self, index: int, leaves: Sequence[Any]) -> str:
        """Return the device of component ``index``, whose leaves are given."""
        said = None if self._devices is None else self._devices[index]
        found: dict[str, int] = {}
        for position, leaf in enumerate(leaves):
            device = _real_device(leaf)
            if device is not None:
                found.setdefault(device, position)
        if len(found) > 1:
            raise DeviceError.several(index, found, "")
        real = next(iter(found), None)
        if said is not None and real is not None and said != real:
            paths = leaf_paths(flatten(self._values[index])[1])
            raise DeviceError.contradicted(index, said, real, _at(paths[found[real]]))
        return said or real or f"cpu:{index}"

    def __len__(self) -> int:
        """Return the number of components."""
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        """Go through the components."""
        return iter(self._values)

    def __getitem__(self, index: int) -> Any:
        """Return component ``index``."""
        return self._values[index]

    def __repr__(self) -> str:
        """Show each component beside its device."""
        lines = [f"  {i} {d}: {v!r}" for i, (d, v) in enumerate(zip(self.devices, self._values, strict=True))]
        return "\n".join([f"{type(self).__name__}:{{", *lines, "}"])


class PerReplica(DistributedValues):
    """One contribution per replica.

    >>> PerReplica([1.0, 2.0]).devices
    ('cpu:0', 'cpu:1')
    """


class Mirrored(DistributedValues):
    """The same value on every destination, in the order of the destinations.

    ``plan`` is the plan that made it, None if it was made by hand.
    """

    plan: Plan | None = None

    @classmethod
    def made(cls, values: Sequence[Any], devices: tuple[str, ...], plan: Plan) -> Mirrored:
        """Return the result of a plan; components and canonical devices are right already."""
        mirrored = cls.__new__(cls)
        # No __init__: it would look at every component again, in the path that every call takes.
        vars(mirrored).update(_values=tuple(values), _devices=devices, plan=plan)
        return mirrored

    def on(self, device: str) -> Any:
        """Return the component on a device.

        Raises:
            DeviceError: there is none.

        """
        wanted, devices = canonical_device(device), self.devices
        if wanted not in devices:
            raise DeviceError.no_component(wanted, devices)
        return self._values[devices.index(wanted)]


def _real_device(leaf: object) -> str | None:
    array = leaf.values if isinstance(leaf, IndexedSlices) else leaf
    backend = backend_of(array)
    return None if backend is None else backend.device_of(array)


def _at(path: str) -> str:
    return f" at {path}" if path else ""
