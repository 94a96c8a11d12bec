"""Sums over whole arrays: the exact value, rounded once, the same for any cut, order or number of ranks.

>>> import numpy as np
>>> import treefold
>>> print(treefold.exact.sum([np.float32([1e30, 1]), np.float32([-1e30])]))
1.0
>>> print(treefold.exact.norm([np.float32([3, 0]), np.float32([4])]))
5.0

A value is an array or a pytree of arrays, in host memory; all of its elements are added. With ``group``, all ranks of a
``Group`` call the same function, each with its part, and get the same bits. The result is a 0-d array of the first
array's framework. Its dtype is ``dtype``, or the widest of the value's by NumPy's rules, in which 16-bit floats count
as float32.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import ArrayBackend
from treefold.backends.tracing import as_written
from treefold.calls.entry import LeafForm, Part, at, read_entry
from treefold.calls.leaves import read_copied_leaf
from treefold.calls.reader import Brought, read_components
from treefold.dtypes import DTYPES, FLOATS, HALVES, INTEGERS, UNSIGNED
from treefold.errors import ArgumentError, DeviceError, DtypeError, MismatchError
from treefold.errors.words import short
from treefold.exact.scalar_sum import ScalarSum, sum_of
from treefold.group import Group
from treefold.group.contributions import host_arrays
from treefold.group.protocol import CallKind, call_key
from treefold.group.traced_calls import tracing_backend
from treefold.group.transport.link import one_call
from treefold.values import PerReplica

__all__ = ["dot", "mean", "norm", "sum"]

_DEVICE = "cpu:0"


@as_written
def sum(value: Any, *, dtype: Any = None, group: Group | None = None) -> Any:  # noqa: A001 - NumPy's name, too
    """Return the sum of all elements.

    Integers and bools give a whole number, by default of 64 bits. A sum of zeros is -0 if all of them are, else +0.

    Args:
        value: An array or a pytree of arrays, in host memory: floats, integers or bools.
        dtype: The dtype of the result, rounded to once; None: the widest of the value's, at least float32.
        group: Ranks that call with a part each; None: this process alone.

    Returns:
        A 0-d array of the first array's framework; the same on all ranks.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    >>> import numpy as np
    >>> print(sum([np.float32([1e30, 1]), np.float32([-1e30])]))
    1.0
    """
    return _reduce("sum", [value], dtype, group)


@as_written
def mean(value: Any, *, dtype: Any = None, group: Group | None = None) -> Any:
    """Return the mean of all elements: their exact sum, divided by their number, and rounded once.

    Integers and bools have a float mean: float32 for 8 and 16 bits, else float64.

    Args:
        value: An array or a pytree of arrays, in host memory: floats, integers or bools.
        dtype: The dtype of the result, rounded to once; None: the widest of the value's, at least float32.
        group: Ranks that call with a part each; None: this process alone.

    Returns:
        A 0-d array of the first array's framework; the same on all ranks.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks; also if there are no elements.

    >>> import numpy as np
    >>> print(mean(np.float16([60000, 60000, 60001])))
    60000.0
    """
    return _reduce("mean", [value], dtype, group)


@as_written
def norm(value: Any, *, dtype: Any = None, group: Group | None = None) -> Any:
    """Return the square root of the sum of all squares, correctly rounded; floats only.

    Args:
        value: An array or a pytree of arrays of floats, in host memory.
        dtype: The dtype of the result, rounded to once; None: the widest of the value's, at least float32.
        group: Ranks that call with a part each; None: this process alone.

    Returns:
        A 0-d array of the first array's framework; the same on all ranks.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    >>> import numpy as np
    >>> print(norm({"w": np.float32([3e30]), "b": np.float32([4e30])}))
    5e+30
    """
    return _reduce("norm", [value, value], dtype, group)


@as_written
def dot(one: Any, other: Any, *, dtype: Any = None, group: Group | None = None) -> Any:
    """Return the sum of the products of corresponding elements; floats only. A zero is +0.

    Args:
        one: An array or a pytree of arrays of floats, in host memory.
        other: The same structure, shapes and dtypes.
        dtype: The dtype of the result, rounded to once; None: the widest of the value's, at least float32.
        group: Ranks that call with a part each; None: this process alone.

    Returns:
        A 0-d array of the first array's framework; the same on all ranks.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks; also if arrays differ in shape or dtype.

    >>> import numpy as np
    >>> print(dot(np.float32([1e30, 1, -1e30]), np.float32([1e30, 2, 1e30])))
    2.0
    """
    return _reduce("dot", [one, other], dtype, group)


class RankSum(NamedTuple):
    """The exact sum of this rank's part, and the form of the result."""

    operation: str
    dtype: str
    backend: ArrayBackend
    total: ScalarSum

    @property
    def call(self) -> str:
        """The call in words, in which all ranks must agree."""
        return f"exact.{self.operation} as {self.dtype}"

    def result(self) -> Any:
        """Return the rounded result.

        Raises:
            ArgumentError: There is none, as for a mean without elements.

        """
        return self.backend.from_hosts([self.total.rounded(self.operation, self.dtype)], [_DEVICE])[0]


class RankAdder:
    """Adds the sums of all ranks of a group."""

    def __init__(self, group: Group) -> None:
        self._link = group.link

    @one_call
    def add(self, read: Callable[[], RankSum]) -> RankSum:
        """Return the sum over all ranks; if one rank cannot read its part, all fail.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, on all ranks.

        """
        own = read()
        key = call_key(CallKind.EXACT, digest=hashlib.blake2b(own.call.encode(), digest_size=16).digest())
        said = self._link.announce(key, own.total.to_json(), description=own.call)
        return own._replace(total=functools.reduce(ScalarSum.plus, map(ScalarSum.from_json, said)))


def _reduce(operation: str, values: Sequence[Any], dtype: Any, group: Group | None) -> Any:
    if group is not None and not isinstance(group, Group):
        raise ArgumentError(f"group={short(group)} is no group of ranks. It takes what treefold.connect() returns.")
    read = functools.partial(rank_sum, operation, values, dtype)
    return (read() if group is None else RankAdder(group).add(read)).result()


def rank_sum(operation: str, values: Sequence[Any], dtype: Any) -> RankSum:
    """Return the exact sum of this process's value, or of the products of two.

    Raises:
        TreefoldError: A value cannot be read, or two differ.

    """
    columns = [_parts(operation, value) for value in ([values[0]] if values[0] is values[-1] else values)]
    _check_alike(operation, columns)
    parts = columns[0]
    if not parts:
        raise ArgumentError(f"exact.{operation} got no array. It takes an array, or a pytree of some.")
    terms: dict[str, list[Any]] = {}
    for row in zip(*columns, strict=True):
        arrays = [host_arrays(part)[0].reshape(-1) for part in row]
        terms.setdefault(row[0].dtype, []).append((*arrays, *arrays)[: len(values)])
    wanted = _result_dtype(operation, list(terms), dtype)
    totals = [sum_of(name, some) for name, some in terms.items()]
    return RankSum(operation, wanted, parts[0].operand.backend, functools.reduce(ScalarSum.plus, totals))


def _parts(operation: str, value: Any) -> list[Part]:
    """Return the arrays of a value.

    Raises:
        ArgumentError: The value is traced, or holds something else.
        DeviceError: An array is not in host memory.
        DtypeError: The operation has no meaning for an array's dtype.

    """
    if tracing_backend(value) is not None:
        raise ArgumentError.traced(f"exact.{operation}")
    entry = read_entry(PerReplica([value]), read_components((value,)), _DEVICE, _read_leaf)
    takes = FLOATS if operation in {"norm", "dot"} else (*FLOATS, *INTEGERS, "bool")
    for part in entry.parts:
        if not part.is_in_host_memory:
            raise DeviceError(
                f"exact.{operation} adds in host memory, where the value{at(part.path)} is not. Copy it to the CPU."
            )
        if part.dtype not in takes:
            kinds = "floats" if takes is FLOATS else "floats, integers and bools"
            raise DtypeError(
                f"exact.{operation} has no meaning for {part.dtype}{at(part.path)}. It takes {kinds}; convert it first."
            )
    return list(entry.parts)


def _read_leaf(path: str, leaves: list[Brought]) -> tuple[LeafForm, list[Part]]:
    form, parts = read_copied_leaf(path, leaves)
    if form.num_parts > 1:
        raise ArgumentError(f"IndexedSlices{at(path)} may name a row twice. Make them dense, or pass their values.")
    return form, parts


def _check_alike(operation: str, columns: Sequence[Sequence[Part]]) -> None:
    forms = [[(part.path, part.dtype, part.operand.shape) for part in parts] for parts in columns]
    for one, other in zip(forms[0], forms[-1], strict=False):
        if one != other:
            texts = [f"{dtype} {shape}{at(path)}" for path, dtype, shape in (one, other)]
            raise MismatchError(f"exact.{operation} got {texts[0]} and {texts[1]}. Both values must be alike.")
    if len(forms[0]) != len(forms[-1]):
        raise MismatchError(
            f"exact.{operation} got {len(forms[0])} arrays and {len(forms[-1])}. Both values must be alike."
        )


def _result_dtype(operation: str, dtypes: Sequence[str], asked: Any) -> str:
    """Return the dtype of the result.

    Raises:
        ArgumentError: The requested one cannot be that of a result.

    """
    widest: str = np.result_type(*[_default_dtype(operation, dtype) for dtype in dtypes]).name
    if asked is None:
        return widest
    name = _name_of(asked)
    if name not in FLOATS and not (name in INTEGERS and widest in INTEGERS):
        kinds = f"{', '.join(FLOATS)}{', or an integer dtype' * (widest in INTEGERS)}"
        raise ArgumentError(f"exact.{operation} got dtype={short(asked)}. Its result is one of {kinds}.")
    return name


def _default_dtype(operation: str, dtype: str) -> str:
    if dtype in FLOATS:
        return "float32" if dtype in HALVES else dtype
    if operation == "sum":
        return "uint64" if dtype in UNSIGNED else "int64"
    return DTYPES[dtype].mean or "float32"  # bools are numbers of 8 bits


def _name_of(dtype: Any) -> str:
    """Return NumPy's name of a dtype of any framework."""
    try:
        name: str = np.dtype(dtype).name
    except (TypeError, ValueError):  # PyTorch's, TensorFlow's, or of ml_dtypes, which is not imported
        return str(getattr(dtype, "name", dtype)).rpartition(".")[2]
    return name


def __dir__() -> list[str]:
    return __all__
