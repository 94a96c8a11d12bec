"""One value per replica, and one value on every destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from treefold.backends import backend_of, read_device
from treefold.errors import ArgumentError, CallError, ComponentError, DeviceError
from treefold.errors.words import counted, listed, short
from treefold.values.sparse import IndexedSlices
from treefold.values.structure import flatten, leaf_paths

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar  # typing's own has defaults from Python 3.13 on

    from treefold.plan import Plan

    T = DefaultTypeVar("T", default=Any)
    T_co = DefaultTypeVar("T_co", covariant=True, default=Any)
else:
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)


class HasShape(Protocol):
    """For type checkers: a class with a shape, as the arrays of every framework, but not distributed values, have."""

    @property
    def shape(self) -> Any:
        """The length of each axis."""


#: A value that counts as one replica in the place of distributed values.
Bare = HasShape | complex | IndexedSlices
#: One number per replica: a list, a tuple, or an array of one axis.
Weights = Sequence[float] | HasShape


#: The classes of distributed values; their objects cannot be components.
_KINDS: set[type] = set()


class DistributedValues(Generic[T_co]):
    """A tuple of components, each on a device. ``PerReplica`` and ``Mirrored`` say what the components mean.

    A component is an array, a number, an ``IndexedSlices`` or any pytree of these. For type checkers,
    ``PerReplica[np.ndarray]`` names the component's type, and ``reduce`` keeps it. Nothing is copied.

    Args:
        values: A list or tuple with one component per replica, or per destination.
        devices: The name of each component's device. None: arrays on real devices keep theirs, and host arrays stand
            for ``cpu:0``, ``cpu:1`` …, one per component.

    Raises:
        ArgumentError: ``values`` is empty or not a sequence of values, or there is not one device per value.
        DeviceError: An array is not on the device that ``devices`` names, or one component is on several.

    """

    __slots__ = ("__weakref__", "_devices", "_values")

    def __init_subclass__(cls) -> None:
        """Add the class to those that cannot be components."""
        super().__init_subclass__()
        _KINDS.add(cls)

    def __init__(self, values: Sequence[T_co], devices: Sequence[str] | None = None) -> None:
        """Hold ``values`` as they are."""
        if type(values) not in _LISTS and (isinstance(values, _NO_LISTS) or not isinstance(values, Sequence)):
            raise ArgumentError.not_components(type(self).__name__, values)
        self._values = tuple(values)
        if not self._values:
            raise ArgumentError.no_replicas(type(self).__name__)
        if not _KINDS.isdisjoint(map(type, values)):
            nested = next(value for value in self._values if isinstance(value, DistributedValues))
            raise ArgumentError.not_components(type(self).__name__, nested)
        self._devices = None if devices is None else self._read_devices(devices)

    def _read_devices(self, devices: object) -> tuple[str, ...]:
        owner = type(self).__name__
        if isinstance(devices, str):
            devices = (devices,)
        if isinstance(devices, bytes) or not isinstance(devices, Sequence):
            raise ArgumentError(
                f"{owner} got devices={short(devices)}. It takes a list or tuple of device names, one for each value."
            )
        if len(devices) != len(self._values):
            raise ArgumentError.device_count(owner, len(self._values), len(devices))
        return tuple(read_device(device) for device in devices)

    # Read by every call: attrgetter gets them without a frame of Python.
    values: tuple[T_co, ...] = property(attrgetter("_values"), doc="The components, in order.")  # type: ignore[assignment]
    named_devices: tuple[str, ...] | None = property(  # type: ignore[assignment]
        attrgetter("_devices"),
        doc="The devices that were named when this was made, None if they follow from the arrays.",
    )

    @property
    def devices(self) -> tuple[str, ...]:
        """The canonical name of each component's device, in order."""
        return tuple(
            self.device_of(index, [_real_device(leaf) for leaf in flatten(value)[0]])
            for index, value in enumerate(self._values)
        )

    def device_of(self, index: int, found: Sequence[str | None]) -> str:
        """Return the device of a component.

        Args:
            index: The component's index.
            found: The device of each of its leaves, None for host memory.

        Returns:
            Its canonical name, such as ``"cpu:0"``.

        Raises:
            DeviceError: They are several, or not the one that ``devices`` named.

        """
        said = None if self._devices is None else self._devices[index]
        real = {device: position for position, device in reversed([*enumerate(found)]) if device is not None}
        if len(real) > 1:
            positions = dict(sorted(real.items(), key=lambda item: item[1]))
            raise DeviceError(
                f"Replica {index} has arrays on {' and '.join(positions)}. The arrays of one replica must be on one "
                f"device; move them together."
            )
        for device, position in real.items():
            if said is not None and said != device:
                path = leaf_paths(flatten(self._values[index])[1])[position]
                raise DeviceError(
                    f"Replica {index} is said to be on {said}, but its array{f' at {path}' if path else ''} is on "
                    f"{device}. Leave devices out to take each array's own, or move the array first."
                )
        return said or next(iter(real), None) or f"cpu:{index}"

    def __len__(self) -> int:
        """Return the number of components."""
        return len(self._values)

    def __iter__(self) -> Iterator[T_co]:
        """Go through the components."""
        return iter(self._values)

    def __getitem__(self, index: int) -> T_co:
        """Return component ``index``.

        Raises:
            ComponentError: There is none.
            CallError: The index is not a whole number.

        """
        try:
            return self._values[index]
        except IndexError:
            count = len(self._values)
            raise ComponentError(
                f"{type(self).__name__} has no component {short(index)}: it has {counted(count, 'component')}. "
                f"Give a whole number from {-count} to {count - 1}."
            ) from None
        except TypeError:
            name, device = type(self).__name__, "devices tells where each is"
            is_device = isinstance(self, Mirrored) and isinstance(index, str)
            if is_device:
                device = f"{name.lower()}.on({short(index)}) returns that of a device"
            raise CallError(
                f"{name} got the index {short(index)}. Components have numbers, 0 to {len(self._values) - 1}, and "
                f"{device}."
            ) from None

    def __repr__(self) -> str:
        """Show each component beside its device."""
        lines = [f"  {i} {d}: {v!r}" for i, (d, v) in enumerate(zip(self.devices, self._values, strict=True))]
        return "\n".join([f"{type(self).__name__}:{{", *lines, "}"])


_KINDS.add(DistributedValues)
_LISTS = frozenset({list, tuple})
_NO_LISTS = (DistributedValues, str, bytes, dict)


class PerReplica(DistributedValues[T_co]):
    """One contribution per replica.

    Args:
        values: See ``DistributedValues``.
        devices: See ``DistributedValues``.

    >>> PerReplica([1.0, 2.0]).devices
    ('cpu:0', 'cpu:1')
    """

    __slots__ = ()


class Mirrored(DistributedValues[T_co]):
    """The same value on every destination, in the order of the destinations.

    ``plan`` is the plan that made it, or None if a user did.

    Args:
        values: See ``DistributedValues``.
        devices: See ``DistributedValues``.

    """

    __slots__ = ("plan",)
    plan: Plan | None

    def __init__(self, values: Sequence[T_co], devices: Sequence[str] | None = None) -> None:
        """Hold ``values`` as they are; no plan made them."""
        super().__init__(values, devices)
        self.plan = None

    @classmethod
    def made(cls, values: tuple[T_co, ...], devices: tuple[str, ...], plan: Plan | None) -> Mirrored[T_co]:
        """Return the result of a plan, without checking it again.

        Args:
            values: The components.
            devices: The canonical name of each component's device.
            plan: The plan that ran; None if there is none.

        Returns:
            The values, as they are.

        """
        mirrored = cls.__new__(cls)  # no __init__: it would look at every component again, in every call
        mirrored._values, mirrored._devices, mirrored.plan = values, devices, plan  # noqa: SLF001 - its own
        return mirrored

    def on(self, device: str) -> T_co:
        """Return the component on a device.

        Raises:
            DeviceError: There is none.

        """
        wanted, devices = read_device(device), self.devices
        if wanted not in devices:
            raise DeviceError(
                f"There is no component on {device!s}; there are components on {listed(devices, quote=False)}."
            )
        return self._values[devices.index(wanted)]


def _real_device(leaf: object) -> str | None:
    array = leaf.values if isinstance(leaf, IndexedSlices) else leaf
    backend = backend_of(array)
    return None if backend is None else backend.device_of(array)
