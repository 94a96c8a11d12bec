"""Backends that compute on the contents of their arrays as NumPy arrays, and put the results back beside them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from treefold.backends.interface import ArrayBackend, HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.fold import Fold


class ThroughNumpyBackend(ArrayBackend):
    """A framework whose arrays are folded, cut and joined by ``NumpyBackend``."""

    #: What computes.
    numpy: NumpyBackend = NumpyBackend()

    @abc.abstractmethod
    def contents(self, arrays: Sequence[Any]) -> list[HostArray]:
        """Return the contents of arrays on one device, as views where they can be seen."""

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
