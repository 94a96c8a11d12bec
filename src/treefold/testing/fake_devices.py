"""Fake devices: arrays that behave as if they lay on several GPUs, and a record of all operations.

Use them with ``treefold.backends.additional_backend``. A fake device is as strict as a real one. An array on another
device must be copied before it is used, and the host cannot view device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend, ThroughNumpyBackend
from treefold.errors import FakeOutOfMemoryError
from treefold.errors.words import some
from treefold.fold import Fold


@dataclass(frozen=True, slots=True)
class RecordedCopy:
    """One copy: its source, its target, and its bytes."""

    source: str
    target: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class RecordedCombine:
    """One fold: its device, the dtypes of its arrays and of its result, and whether it was the last one."""

    device: str
    dtypes: tuple[str, ...]
    result: str
    is_final: bool


class FakeArray:
    """An array on a fake device.

    Args:
        data: The contents, which tests may read and treefold does not; not copied.
        device: The device, such as ``"gpu:0"``.
        owner: The backend of the device.

    """

    __slots__ = ("data", "device", "owner")

    def __init__(self, data: HostArray, device: str, owner: FakeBackend) -> None:
        """Put ``data``, which is not copied, on a device of ``owner``."""
        self.data, self.device, self.owner = data, device, owner

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.data.dtype

    def __repr__(self) -> str:
        """Show the contents and the device."""
        return f"FakeArray({self.data!r}, {self.device!r})"


class FakeBackend(ThroughNumpyBackend):
    """Arrays on fake devices ``gpu:0`` … ``gpu:k``, computed by NumPy.

    ``copies`` and ``combines`` record all operations, in order.

    Args:
        num_devices: The number of devices.
        is_mutable: Whether arrays can be ``out``.
        fail_at_copy: The number, from 1, of the copy that runs out of memory; None: none does.

    >>> from treefold import all_reduce
    >>> from treefold.backends import additional_backend
    >>> with additional_backend(FakeBackend(2)) as fake:
    ...     totals = all_reduce([fake.array([1.0], "gpu:0"), fake.array([2.0], "gpu:1")])
    >>> [total.data.item() for total in totals]
    [3.0, 3.0]
    >>> [(hop.source, hop.target, hop.nbytes) for hop in fake.hops]
    [('gpu:1', 'gpu:0', 8), ('gpu:0', 'gpu:1', 8)]
    """

    name = "fake"

    def __init__(self, num_devices: int = 8, *, is_mutable: bool = True, fail_at_copy: int | None = None) -> None:
        """Start with empty devices and nothing recorded."""
        self.devices = tuple(f"gpu:{index}" for index in range(num_devices))
        self.is_mutable = is_mutable
        self.fail_at_copy = fail_at_copy
        self.copies: list[RecordedCopy] = []
        self.combines: list[RecordedCombine] = []

    def array(self, data: Any, device: str) -> FakeArray:
        """Return a new array on a device.

        Args:
            data: The contents, anything that ``numpy.array`` accepts; copied.
            device: One of the fake devices.

        Returns:
            The array.

        """
        if device not in self.devices:
            raise ValueError(device)
        return FakeArray(np.array(data), device, self)

    @property
    def hops(self) -> list[RecordedCopy]:
        """The copies from one device to another, without those within one device."""
        return [copy for copy in self.copies if copy.source != copy.target]

    def describe_devices(self) -> str:
        return some(self.devices)

    def owns(self, value: object) -> bool:
        """Return whether this object made the array: two fake backends are two frameworks."""
        return type(value) is FakeArray and value.owner is self

    def has_device(self, device: str) -> bool:
        return device in self.devices

    def device_of(self, array: FakeArray) -> str:
        return array.device

    def shape_dtype(self, array: FakeArray) -> tuple[tuple[int, ...], str]:
        return array.shape, array.dtype.name

    def copy_to(self, array: FakeArray, device: str) -> FakeArray:
        """Copy and record.

        Args:
            array: One of this backend's arrays.
            device: One of the fake devices.

        Returns:
            The copy, in new memory.

        Raises:
            FakeOutOfMemoryError: It is the copy that is to fail.

        """
        if device not in self.devices:
            raise ValueError(device)
        self.copies.append(RecordedCopy(array.device, device, array.data.nbytes))
        if len(self.copies) == self.fail_at_copy:
            raise FakeOutOfMemoryError(device)
        return FakeArray(self.numpy.copy_to(array.data, device), device, self)

    def combine(
        self, arrays: Sequence[FakeArray], fold: Fold, *, dtype: str, divisor: int | None, result: str
    ) -> FakeArray:
        """Fold 1-d arrays of one length and device, in their order, and record.

        Args:
            arrays: Contributions, or partial folds.
            fold: The arithmetic.
            dtype: The dtype of the contributions.
            divisor: The number of contributions, by which MEAN divides; None while some are missing.
            result: The dtype of the result.

        Returns:
            A new array on the same device.

        """
        dtypes = tuple(part.dtype.name for part in self.contents(arrays))
        self.combines.append(RecordedCombine(arrays[0].device, dtypes, result, divisor is not None))
        made: FakeArray = super().combine(arrays, fold, dtype=dtype, divisor=divisor, result=result)
        return made

    def contents(self, arrays: Sequence[FakeArray]) -> list[HostArray]:
        """Return the contents of this backend's own arrays, which must all be on one device."""
        if not all(self.owns(array) for array in arrays):
            raise TypeError(arrays)
        devices = sorted({array.device for array in arrays})
        if len(devices) != 1:
            raise ValueError(devices)
        return [array.data for array in arrays]

    def beside(self, array: FakeArray, made: HostArray) -> FakeArray:
        """Return an array on the same fake device.

        Args:
            array: An array on the device.
            made: The contents of the new array; not copied.

        Returns:
            The new array.

        """
        return FakeArray(made, array.device, self)

    def assign(self, target: FakeArray, source: FakeArray) -> None:
        """Write an array into another one on the same device.

        Args:
            target: The array to write.
            source: The array to read, of the same shape and dtype.

        """
        to, contents = self.contents([target, source])
        self.numpy.assign(to, contents)

    def is_writable(self, array: FakeArray) -> bool:
        """Return whether the array can be written: not if the backend was made with immutable ones."""
        return self.is_mutable and self.numpy.is_writable(array.data)

    def synchronize(self, array: FakeArray) -> None:
        """Do nothing: fake devices compute at once."""

    def host_view(self, array: FakeArray) -> None:
        """Return None: the memory of a device is not the host's."""

    def footprint(self, array: FakeArray) -> HostArray | None:
        """Return the host memory that emulates the device's."""
        return array.data

    def from_host(self, array: HostArray, device: str) -> NoReturn:
        """Refuse: only ``cpu:k`` can take over host memory.

        Args:
            array: The host memory.
            device: A fake device.

        Raises:
            ValueError: Always.

        """
        raise ValueError(device, array.shape)


class _Shapes(NumpyBackend):
    """NumPy without contents: zeros of the right shape and dtype, which take no memory."""

    def copy_to(self, array: HostArray, device: str) -> HostArray:  # noqa: ARG002
        return _nothing(array.shape, array.dtype.name)

    def combine(
        self, arrays: Sequence[HostArray], fold: Fold, *, dtype: str, divisor: int | None, result: str
    ) -> HostArray:
        del fold, dtype, divisor
        return _nothing(arrays[0].shape, result)

    def scale(self, array: HostArray, divisor: int, result: str) -> HostArray:  # noqa: ARG002
        return _nothing(array.shape, result)

    def ravel_concat(self, arrays: Sequence[HostArray]) -> HostArray:
        return _nothing((sum(array.size for array in arrays),), arrays[0].dtype.name)

    def reshape(self, array: HostArray, shape: tuple[int, ...]) -> HostArray:
        return _nothing(shape, array.dtype.name)

    def densify(self, values: HostArray, indices: HostArray, shape: tuple[int, ...]) -> HostArray:  # noqa: ARG002
        return _nothing(shape, values.dtype.name)

    def assign(self, target: HostArray, source: HostArray) -> None:
        """Do nothing: there are no contents."""

    def is_writable(self, array: HostArray) -> bool:  # noqa: ARG002
        return True


class RecordingBackend(FakeBackend):
    """A fake backend that computes nothing: arrays are shapes, results are zeros that take no memory.

    Use it to see what a plan does with arrays that would not fit.

    Args:
        num_devices: See ``FakeBackend``.
        is_mutable: See ``FakeBackend``.
        fail_at_copy: See ``FakeBackend``.

    """

    name = "recording"
    numpy = _Shapes()

    def empty(self, shape: tuple[int, ...], dtype: str, device: str) -> FakeArray:
        """Return an array with a shape, a dtype and a device, but without contents.

        Args:
            shape: Its shape.
            dtype: Its dtype, by NumPy's name.
            device: One of the fake devices.

        Returns:
            The array; its elements are zeros that share one place in memory.

        """
        if device not in self.devices:
            raise ValueError(device)
        return FakeArray(_nothing(shape, dtype), device, self)

    def footprint(self, array: FakeArray) -> None:
        """Return None: an array without contents has no memory."""


def _nothing(shape: tuple[int, ...], dtype: str) -> HostArray:
    return np.broadcast_to(np.zeros((), dtype), shape)  # strides of 0: one element stands for all
