"""Exact means and sums of values that arrive one after the other, or in parts that are merged."""

from __future__ import annotations

import decimal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

import optree

from treefold.backends import HostArray
from treefold.backends.numpy_partial import MOST_WEIGHT
from treefold.backends.tracing import as_written
from treefold.calls.arguments import read_number
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.partials.leaves import Example, ReadValue, ValueReader, container_difference, example_of, like
from treefold.partials.totals import ONE, Totals
from treefold.reduce_op import ReduceOp
from treefold.values.structure import unflatten

if TYPE_CHECKING:
    from treefold.group import Group


class _Running:
    """Base class of ``Mean`` and ``Sum``: values are added exactly, and only ``result`` rounds."""

    _op: ClassVar[ReduceOp]
    _name: ClassVar[str]

    def __init__(self) -> None:
        """Begin without values. The first value that is added sets the structure, shapes and dtypes of all others."""
        self._lock = threading.RLock()
        self._hold(Totals())

    @property
    def count(self) -> int:
        """The number of values that were added, including those of weight 0."""
        return self._totals.count

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the sums of floats take. Sums of integers are Python integers and not counted."""
        return self._totals.nbytes

    def not_finite(self) -> list[str]:
        """Return the paths of the leaves to which an infinity or NaN was added, such as ``"['dense']['kernel']"``."""
        with self._intact():
            return self._totals.not_finite()

    @as_written
    def merge(self, other: Self) -> None:
        """Add all values of ``other``, which was filled by another thread or process and stays unchanged.

        Raises:
            ArgumentError: ``other`` is another kind of sum, flags or texts differ, or an addition was interrupted.
            MismatchError: Structures, shapes or dtypes differ. Nothing was added.

        """
        if getattr(other, "_op", None) is not self._op:
            raise ArgumentError(f"{self._name}.merge got {short(other)}. It takes a treefold.{self._name}.")
        first, second = sorted((self, other), key=id)  # one order for all threads
        with first._intact(), second._intact():  # noqa: SLF001 - its own class
            if other._totals.forms:
                totals, structure = other._totals, other._structure
                self._prepare(ReadValue([], structure, totals.forms, digests=totals.digests), other._examples)
                with self._changing():
                    self._totals.merge(totals)

    def clear(self) -> None:
        """Drop all values, and keep the memory for new ones of the same structure, shapes and dtypes."""
        with self._lock:
            self._totals.clear()
            self._is_broken = False

    @as_written
    def result(self, *, group: Group | None = None) -> Any:
        """Return the exact value, rounded once, with the types, structure and dtypes of the added values.

        Call this at any time; more values can be added afterwards.

        Args:
            group: Ranks that have each added values of their own. All of them call, and get the result over all values.
                None: this process alone.

        Raises:
            ArgumentError: Nothing with a weight above 0 has been added, a rank has added nothing, flags or texts of
                ranks differ, or an addition was interrupted.
            MismatchError: Values of different ranks differ in structure, shape or dtype. All ranks raise it.

        """
        with self._intact():
            words = self._totals.words if group is None else self._totals.check_between(self._op, group)
            if self._structure is None:
                raise ArgumentError(
                    f"{self._name} has seen no value that says what the result looks like. Call add first: "
                    "zeros change no Sum, and weight=0 changes no Mean."
                )
            if not words:
                raise ArgumentError(f"{self._name} has got values of weight 0 only. Add one with a weight above 0.")
            results = zip(self._examples, self._totals.results(self._op, words, group), self._totals.forms, strict=True)
            return unflatten(self._structure, [like(*result) for result in results])

    def state_dict(self) -> dict[str, HostArray]:
        """Return the exact state as NumPy arrays, by name, to be saved with ``numpy.savez`` or safetensors.

        The array ``header`` is JSON in bytes: the format, its version, and the path, dtype and shape of each leaf.
        """
        with self._intact():
            return self._totals.state(self._format)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace everything that was added by a state that ``state_dict`` has returned.

        A state has shapes and dtypes, but neither containers nor frameworks: the next value that is added sets these.
        To set them in a ``Mean`` and add nothing, add a value with ``weight=0``.

        Args:
            state: Arrays by name.

        Raises:
            ArgumentError: ``state`` is not the state of such a sum. Nothing was loaded.

        """
        totals = Totals.of_state(state, self._format)
        with self._lock:
            self._hold(totals)

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle saves: the state, the structure, and the types of the leaves."""
        with self._intact():
            return {"state": self.state_dict(), "structure": self._structure, "examples": self._examples}

    def __setstate__(self, saved: Mapping[str, Any]) -> None:
        """Restore what ``__getstate__`` has returned."""
        self._lock = threading.RLock()
        self._hold(Totals.of_state(saved["state"], self._format), saved["structure"], saved["examples"])

    def __repr__(self) -> str:
        """Return the class and the number of added values."""
        return f"treefold.{self._name}(count={self.count})"

    @property
    def _format(self) -> str:
        return f"treefold.{self._name}"

    def _hold(
        self, totals: Totals, structure: optree.PyTreeSpec | None = None, examples: list[Example] | None = None
    ) -> None:
        """Replace everything by totals. ``structure``: the containers of their values; None if they are not known."""
        self._totals, self._structure, self._examples = totals, structure, examples or []
        self._is_broken = False
        self._reader = ValueReader(self._op, self._name)
        self._reader.expect(structure, totals.forms)

    @as_written
    def _add(self, value: Any, words: int) -> None:
        with self._intact():
            read = self._reader.read(value)
            self._prepare(read, None)
            with self._changing():
                self._totals.add(read, words)

    def _prepare(self, read: ReadValue, examples: list[Example] | None) -> None:
        """Check a value before it is added; the first one sets the structure, shapes and dtypes of all others.

        ``examples``: descriptions of the leaves of the result; None makes them from the leaves of the value.
        """
        structure = read.structure
        if self._totals.forms:
            self._totals.check(read.forms, read.digests, "This value", "those before")
            if self._structure is not None and structure is not None and structure != self._structure:
                raise container_difference(self._structure, structure)
        else:
            self._totals = Totals.of(read.forms, read.digests)
        if self._structure is None and structure is not None:
            self._structure = structure
            self._examples = [example_of(leaf) for leaf in read.leaves] if examples is None else examples
            self._reader.expect(structure, self._totals.forms)

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Hold the lock. Raise an error if an exception has left a value half added."""
        with self._lock:
            if self._is_broken:
                raise ArgumentError(
                    f"An addition to this {self._name} was interrupted, so what it holds is not known. Begin "
                    "anew, or load the last state."
                )
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Mark the sums as broken, and remove the mark if no exception ends the context."""
        self._is_broken = True
        yield
        self._is_broken = False


class Mean(_Running):
    """The exact weighted mean of values that arrive one after the other, in any order, rounded once at the end.

    Any order of arrival and any tree of merges give the same bits: those of ``treefold.all_reduce`` of all values at
    once. Memory does not grow with the number of values: of float32 it is about twice that of one value, with weights
    about four times.

    >>> import numpy as np
    >>> mean = Mean()
    >>> mean.add({"w": np.float32([1, 2])}, weight=1)
    >>> mean.add({"w": np.float32([4, 8])}, weight=2)
    >>> mean.result()
    {'w': array([3., 6.], dtype=float32)}
    >>> mean.count, mean.weight
    (2, 3)
    """

    _op, _name = ReduceOp.MEAN, "Mean"

    def add(self, value: Any, *, weight: Any = 1) -> None:
        """Add a value; several threads may.

        Floats and complex numbers are averaged exactly. Integers keep their dtype: the nearest whole number to the
        mean, halves to even. Flags and text must be equal in all values.

        Args:
            value: An array or number, or a pytree of them: NumPy, PyTorch, JAX, TensorFlow. Values have one structure,
                and equal shapes and dtypes.
            weight: The weight of the value, such as its number of samples: a whole number or float, 0 or more and below
                2**64, a multiple of 2**-64. A value of weight 0 is left out, even if it has NaN.

        Raises:
            ArgumentError: ``weight`` is no such number, a leaf cannot be added, flags or texts differ from those
                before, or an addition was interrupted.
            DtypeError: A dtype has no mean.
            MismatchError: The structure, a shape or a dtype differs from those before; the error names the place.
                Nothing was added.

        """
        self._add(value, read_weight(weight))

    @property
    def weight(self) -> int | Fraction:
        """The sum of all weights, exactly."""
        number = Fraction(self._totals.words, ONE)
        return int(number) if number.denominator == 1 else number


class Sum(_Running):
    """The exact sum of values that arrive one after the other, in any order, rounded once at the end.

    >>> import numpy as np
    >>> total = Sum()
    >>> for number in (1e30, 1.0, -1e30):
    ...     total.add(np.float32(number))
    >>> print(total.result())
    1.0
    """

    _op, _name = ReduceOp.SUM, "Sum"

    def add(self, value: Any) -> None:
        """Add a value; several threads may.

        Args:
            value: An array or number, or a pytree of them. Sums of integers wrap modulo 2**bits of their dtype.

        Raises:
            ArgumentError: A leaf cannot be added, text differs from that before, or an addition was interrupted.
            DtypeError: A dtype has no sum.
            MismatchError: The structure, a shape or a dtype differs from those before; the error names the place.
                Nothing was added.

        """
        self._add(value, ONE)


def read_weight(weight: Any) -> int:
    """Return a weight in units of 2**-64.

    Raises:
        ArgumentError: The weight is no whole number or float, is out of range, or is no multiple of 2**-64.

    """
    words = Fraction(-1)
    if not isinstance(weight, decimal.Decimal | Fraction):
        with suppress(TypeError, ValueError, OverflowError):  # no number, or not finite
            words = read_number(weight) * ONE
    if words.denominator != 1 or not 0 <= words < MOST_WEIGHT:
        raise ArgumentError(
            f"weight is {short(weight)}. It takes a whole number or a float, 0 or more and below 2**64, that is a "
            "multiple of 2**-64. Multiply all weights by the same number until they are whole."
        )
    return int(words)
