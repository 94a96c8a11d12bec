"""NumPy arrays, NumPy scalars and Python numbers: host memory, on any number of logical ``cpu:k``.

Frameworks with arrays that NumPy can view compute with the same functions.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from treefold.backends.interface import ArrayBackend, HostArray, Row, new_arrays, read_arrays
from treefold.backends.numpy_fold import add_rows, fold_block, scale_block
from treefold.devices import HOST_DEVICES, device_type
from treefold.fold import Fold


class NumpyBackend(ArrayBackend):
    """Arrays in host memory. Python numbers count as 0-d arrays of NumPy's default dtypes."""

    name = "NumPy"
    row_types = frozenset({np.ndarray})
    takes_read_only = True

    def owns(self, value: object) -> bool:
        """Own arrays and numbers, but not masked arrays: their masks would be lost silently."""
        if type(value) is np.ndarray:
            return True
        if isinstance(value, np.ndarray):
            return all(base.__name__ != "MaskedArray" for base in type(value).__mro__)
        return isinstance(value, np.generic | int | float | complex)

    def has_device(self, device: str) -> bool:
        """Return True for every ``cpu:k``: logical devices share the host's memory."""
        return device_type(device) == "cpu"

    def describe_devices(self) -> str:
        return HOST_DEVICES

    def device_of(self, array: Any) -> str | None:  # noqa: ARG002
        """Return None: NumPy arrays have no device of their own."""
        return None

    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype name; byte order does not matter. JAX's ``float0`` is a record without bytes."""
        array = np.asarray(array)
        return array.shape, "float0" if array.dtype.names == ("float0",) else array.dtype.name

    def copy_to(self, array: Any, device: str) -> HostArray:  # noqa: ARG002
        """Return a row-major copy."""
        return np.array(array, order="C", subok=False)

    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> HostArray:
        """Fold by the same kernel as the host executor, so that both give the same bits."""
        return fold_block(arrays, fold, dtype=dtype, divisor=divisor, result=result)

    def scale(self, array: Any, divisor: int, result: str) -> HostArray:
        return scale_block(array, divisor, result)

    def ravel_concat(self, arrays: Sequence[Any]) -> HostArray:
        """Return a flat view of one array, or a new array of several."""
        flat = [np.asarray(array).reshape(-1) for array in arrays]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def split(self, array: Any, start: int, stop: int) -> HostArray:
        """Return a view."""
        part: HostArray = array[start:stop]
        return part

    def reshape(self, array: Any, shape: tuple[int, ...]) -> HostArray:
        """Return a view."""
        shaped: HostArray = array.reshape(shape)
        return shaped

    def moveaxis(self, array: Any, source: int, target: int) -> HostArray:
        """Return a view."""
        return np.moveaxis(np.asarray(array), source, target)

    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> HostArray:
        """Add duplicates in the accumulator's dtype and round once, as other sums do."""
        return add_rows(values, indices, shape)

    def index_bounds(self, indices: Any) -> tuple[int, int]:
        return int(np.min(indices)), int(np.max(indices))

    def assign(self, target: Any, source: Any) -> None:
        """Write through any strides of the target."""
        target[...] = source

    def is_writable(self, array: Any) -> bool:
        """Return True for arrays that are not marked read-only; numbers cannot be written."""
        return isinstance(array, np.ndarray) and array.flags.writeable

    def synchronize(self, array: Any) -> None:
        """Do nothing: NumPy computes at once."""

    def host_view(self, array: Any) -> HostArray:
        """Return the array itself; numbers become 0-d arrays."""
        return np.asarray(array)

    def from_host(self, array: HostArray, device: str) -> HostArray:  # noqa: ARG002
        """Return the array itself."""
        return array

    def new_row(self, like: Row, dtype: np.dtype[Any], count: int) -> Row:
        return new_arrays(self, like, dtype, count)

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        return read_arrays(self, arrays, arrays)


class ThroughNumpyBackend(ArrayBackend):
    """A framework with arrays that ``NumpyBackend`` folds, cuts and joins."""

    #: The backend that computes.
    numpy: NumpyBackend = NumpyBackend()

    @abc.abstractmethod
    def contents(self, arrays: Sequence[Any]) -> list[HostArray]:
        """Return the contents of arrays on one device, as views where possible."""

    @abc.abstractmethod
    def beside(self, array: Any, made: HostArray) -> Any:
        """Return an array of this framework with new contents, on the device of ``array``."""

    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
        parts = self.contents(arrays)
        return self.beside(arrays[0], self.numpy.combine(parts, fold, dtype=dtype, divisor=divisor, result=result))

    def scale(self, array: Any, divisor: int, result: str) -> Any:
        return self.beside(array, self.numpy.scale(self.contents([array])[0], divisor, result))

    def ravel_concat(self, arrays: Sequence[Any]) -> Any:
        return self.beside(arrays[0], self.numpy.ravel_concat(self.contents(arrays)))

    def split(self, array: Any, start: int, stop: int) -> Any:
        return self.beside(array, self.numpy.split(self.contents([array])[0], start, stop))

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.beside(array, self.numpy.reshape(self.contents([array])[0], shape))

    def moveaxis(self, array: Any, source: int, target: int) -> Any:
        return self.beside(array, self.numpy.moveaxis(self.contents([array])[0], source, target))

    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
        rows, positions = self.contents([values, indices])
        return self.beside(values, self.numpy.densify(rows, positions, shape))

    def index_bounds(self, indices: Any) -> tuple[int, int]:
        return self.numpy.index_bounds(self.contents([indices])[0])
