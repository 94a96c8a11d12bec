"""The interface between treefold and an array framework.

A new framework is one file with a subclass of ``ArrayBackend`` and one line in the registry; the conformance suite in
``treefold.testing`` then covers it. An array that a backend returns never aliases its arguments, except where a method
says "view".
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import optree

from treefold.backends.tracing import Like
from treefold.compiled import HAS_NATIVE
from treefold.fold import Fold

# Rows: arrays of one leaf in every replica, read at once by the native core. Without it there are none.
if TYPE_CHECKING or HAS_NATIVE:
    from treefold._native import Row, new_arrays, new_tensors, read_arrays, read_tensors
else:

    class Row:
        """A class without objects: nothing is read natively."""

    def read_arrays(*_: object) -> None:
        """Return None: calls are not recognised."""

    read_tensors = new_arrays = new_tensors = read_arrays

__all__ = [
    "ArrayBackend",
    "Container",
    "Exchange",
    "HostArray",
    "Refusal",
    "Row",
    "new_arrays",
    "new_tensors",
    "read_arrays",
    "read_tensors",
]

HostArray = npt.NDArray[Any]


class Refusal(NamedTuple):
    """Why an array is refused: its kind, as in "a sparse tensor", and a sentence with the remedy."""

    got: str
    advice: str


class Container(NamedTuple):
    """A flattened container.

    Args:
        children: The parts that may hold arrays.
        rest: Everything else that it is made of.
        names: The names of the children.
        entry_type: Decides how optree writes a name in a path.

    """

    children: Sequence[Any]
    rest: Hashable
    names: tuple[Any, ...]
    entry_type: type[optree.PyTreeEntry]


class Exchange(NamedTuple):
    """The types of a framework's arrays, their ``__dlpack_c_exchange_api__``, and methods for ``read_tensors``."""

    types: tuple[type, ...]
    capsule: Any
    methods: tuple[Callable[[Any], Any], ...]


class ArrayBackend(abc.ABC):
    """The adapter of one framework's arrays: everything that treefold knows about them and does to them.

    Methods other than ``owns`` get only arrays that the backend owns, ranges inside them, and devices for which
    ``has_device`` is true.
    """

    #: The framework's name, as its users write it.
    name: str
    #: The types of which ``read`` makes rows; exactly these, not their subclasses.
    row_types: frozenset[type] = frozenset()
    #: Whether its arrays may lie in memory that cannot be written; in others a write there would end the process.
    takes_read_only: bool = False
    #: Whether one memory may stand for a result on every ``cpu:k``, because its arrays never change.
    shares_results: bool = False
    #: Classes of the framework's values that are not arrays, each with the advice for it. The first match counts.
    not_arrays: Sequence[tuple[type, str]] = ()

    @abc.abstractmethod
    def owns(self, value: object) -> bool:
        """Return whether a value is an array of this framework. Must not raise, whatever the value."""

    @abc.abstractmethod
    def has_device(self, device: str) -> bool:
        """Return whether the framework can place arrays on a device, given by its canonical name."""

    def describe_devices(self) -> str:
        """Return the names of the devices for which ``has_device`` is true, in words, for errors."""
        return "those that it reports"

    def why_missing(self, device: str) -> str:  # noqa: ARG002
        """Return a sentence with the reason why there is no such device; empty if there is no more to say."""
        return ""

    def name_of(self, device: object) -> str | None:  # noqa: ARG002
        """Return the name of a device that is an object of the framework's own class; None for anything else."""
        return None

    @abc.abstractmethod
    def device_of(self, array: Any) -> str | None:
        """Return the canonical name of the array's device; None for host memory, which is every ``cpu:k``."""

    @abc.abstractmethod
    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        """Return the shape and NumPy's name of the dtype."""

    @abc.abstractmethod
    def copy_to(self, array: Any, device: str) -> Any:
        """Return a copy on ``device``, always in new memory."""

    def result_dtype(self, fold: Fold, dtype: str) -> str:
        """Return the dtype of a fold's result, from arrays of ``dtype``, in this framework."""
        return fold.result_dtype(dtype)

    @abc.abstractmethod
    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
        """Fold arrays, in their order, into a new array.

        Args:
            arrays: 1-d arrays of one length and device: contributions of dtype ``dtype``, or partial folds of dtype
                ``fold.partial_dtype(dtype)``.
            fold: The arithmetic.
            dtype: The dtype of the contributions.
            divisor: The number of contributions, by which MEAN divides; None while some are missing.
            result: The dtype of the result.

        """

    @abc.abstractmethod
    def scale(self, array: Any, divisor: int, result: str) -> Any:
        """Return a 1-d array divided by ``divisor``, rounded once to dtype ``result``."""

    @abc.abstractmethod
    def ravel_concat(self, arrays: Sequence[Any]) -> Any:
        """Return arrays on one device, each read in row-major order, concatenated; one array may give a view."""

    @abc.abstractmethod
    def split(self, array: Any, start: int, stop: int) -> Any:
        """Return elements ``start`` to ``stop`` of a 1-d array, as a view if the framework has views."""

    @abc.abstractmethod
    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a 1-d array in another shape, as a view if the framework has views."""

    @abc.abstractmethod
    def moveaxis(self, array: Any, source: int, target: int) -> Any:
        """Return an array with one axis moved, as a view if the framework has views."""

    @abc.abstractmethod
    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
        """Return zeros of ``shape`` with each row of ``values`` added at its index; indices are within bounds."""

    @abc.abstractmethod
    def index_bounds(self, indices: Any) -> tuple[int, int]:
        """Return the smallest and the largest index; there is at least one."""

    @abc.abstractmethod
    def assign(self, target: Any, source: Any) -> None:
        """Write ``source`` into ``target``, of the same shape and dtype."""

    @abc.abstractmethod
    def is_writable(self, array: Any) -> bool:
        """Return whether ``assign`` may write into the array. Elements that share memory do not count here."""

    @abc.abstractmethod
    def synchronize(self, array: Any) -> None:
        """Wait until the array holds its value."""

    @abc.abstractmethod
    def host_view(self, array: Any) -> HostArray | None:
        """Return a NumPy view of the array's own memory, or None if that is not host memory."""

    def is_later(self, array: Any) -> bool:  # noqa: ARG002
        """Return whether the array gets its contents only when the graph that is being traced runs."""
        return False

    def call_later(self, function: Callable[..., Any], arrays: Sequence[Any], likes: Sequence[Like]) -> list[Any]:
        """Add a call to the graph that is being traced, and return its future results: an array for each of ``likes``.

        Whenever the graph runs, ``function`` gets the arrays with their contents, in the order of the program's calls.
        """
        raise AssertionError(function, arrays, likes)

    def footprint(self, array: Any) -> HostArray | None:
        """Return an array of the same addresses, shape and strides, only to compare memory, never to read; or None."""
        return self.host_view(array)

    @abc.abstractmethod
    def from_host(self, array: np.ndarray[Any, Any], device: str) -> Any:
        """Return an array of this framework that takes over a NumPy array's memory as ``device``, a ``cpu:k``."""

    def from_hosts(self, arrays: Sequence[HostArray], devices: Sequence[str]) -> list[Any]:
        """Return ``from_host`` of each array on its device; all have one shape and dtype. One call for many is faster.

        With ``shares_results`` there is one array for all devices.
        """
        return [self.from_host(array, device) for array, device in zip(arrays, devices, strict=True)]

    def new_row(self, like: Row, dtype: np.dtype[Any], count: int) -> Row:
        """Return a row of new arrays of this framework, uninitialised, of the shape of another row.

        A row without a backend holds NumPy arrays; ``from_hosts`` takes them over when they are written.
        """
        return new_arrays(None, like, dtype, count)

    def take_apart(self, value: object) -> Container | None:  # noqa: ARG002
        """Return the children of a container that was registered with this framework; None for anything else."""
        return None

    def put_together(self, rest: Hashable, children: Sequence[Any]) -> Any:
        """Return a container with other children; ``rest``: the one of its ``Container``."""
        raise NotImplementedError(rest, children)

    def refusal(self, array: Any) -> Refusal | None:  # noqa: ARG002
        """Return why an array of this framework cannot be reduced by any op; None if it can.

        Called once for each array that is to be read or written, before anything else touches its contents.
        """
        return None

    def read(self, arrays: tuple[Any, ...]) -> Row | None:  # noqa: ARG002
        """Return arrays of one shape and dtype, row-major and on one device, as a row; None if they are something else.

        The type of the first array is in ``row_types``; the others may be anything. For rows of equal keys,
        ``refusal``, ``write_refusal`` and ``is_writable`` must return the same, except for NumPy's flag. Every call
        runs this, so it must be quick.
        """
        return None

    def exchange(self, arrays: Sequence[Any]) -> Exchange | None:  # noqa: ARG002
        """Return the functions by which the core reads arrays of this framework through DLPack; None if it cannot."""
        return None

    def write_refusal(self, array: Any) -> Refusal | None:  # noqa: ARG002
        """Return why a writable array must not be written now; None if it may be."""
        return None

    def wrote(self, arrays: Sequence[Any]) -> None:  # noqa: B027 - most frameworks need not know
        """Note that arrays are written through their host views."""
