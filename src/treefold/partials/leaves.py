"""Leaves of the values that are added: ``ValueReader`` reads them, and ``like`` makes results of their types."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import optree

from treefold.backends import ArrayBackend, HostArray, backend_of, loaded_backends
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import COMPLEX, DTYPES, INTEGERS, REAL, numpy_dtype
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import short
from treefold.fold import Fold
from treefold.partials.partial_sum import Pieces
from treefold.reduce_op import ReduceOp
from treefold.values import IndexedSlices
from treefold.values.structure import flatten, leaf_paths

if HAS_NATIVE:
    from treefold._native import LeafReader

_TEXT = (str, bytes, bool, type(None))


class Form(NamedTuple):
    """The description of a leaf.

    Attributes:
        path: The path of the leaf in its value.
        kind: ``"float"`` for floats and complex numbers, ``"whole"`` for integers, ``"equal"`` for leaves that have to
            be the same in all values.
        dtype: The name of its dtype.
        shape: The lengths of its axes.
        begin: The index of a float leaf's first element in the sequence of all leaves of dtype ``real``; 0 for others.

    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0

    @property
    def real(self) -> str:
        """The dtype of its real elements: for complex numbers that of their parts, else ``dtype``."""
        return REAL[self.dtype] if self.dtype in COMPLEX else self.dtype

    @property
    def length(self) -> int:
        """Its number of real elements; a complex number has two."""
        return int(np.prod(self.shape, dtype=np.int64)) * (2 if self.dtype in COMPLEX else 1)


@dataclass
class ReadValue:
    """A value that was read: the forms of its leaves, and their contents.

    Attributes:
        leaves: The leaves as they were given.
        structure: The containers of the value; None if they are not known.
        forms: The form of each leaf.
        floats: The contents of all float leaves, by real dtype.
        wholes: The contents of each integer leaf, flat.
        digests: The digest of each leaf that has to be equal in all values.

    """

    leaves: list[Any]
    structure: optree.PyTreeSpec | None
    forms: list[Form]
    floats: dict[str, Pieces] = field(default_factory=dict)
    wholes: list[HostArray] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


class Example(NamedTuple):
    """The description of a leaf of the result.

    Attributes:
        kind: The type of the array or number.
        backend: The name of its backend; empty for text, a single flag or None.
        device: The device of the array; None if the framework has no devices.
        value: The contents, if they have to be equal in all values; else None.

    """

    kind: type
    backend: str
    device: str | None
    value: Any


class ValueReader:
    """Reads values for one reduce op. Values with the structure and forms of the first take a fast path."""

    def __init__(self, op: ReduceOp, owner: str) -> None:
        """Begin without a known structure. ``owner``: the public name that errors give, such as ``Mean``."""
        self._op, self._owner = op, owner
        self._structure: optree.PyTreeSpec | None = None
        self._forms: list[Form] = []
        self._readers: dict[str, _LeavesOfDtype] = {}

    def expect(self, structure: optree.PyTreeSpec | None, forms: list[Form]) -> None:
        """Prepare the fast path for values of this structure and these forms; None as the structure prepares none."""
        self._structure, self._forms = structure, forms
        floats = [form for form in forms if form.kind == "float"]
        is_plain = HAS_NATIVE and structure is not None and not any(form.dtype in COMPLEX for form in floats)
        dtypes = dict.fromkeys(form.dtype for form in floats) if is_plain else ()
        self._readers = {dtype: _LeavesOfDtype(dtype, forms) for dtype in dtypes}

    def read(self, value: Any) -> ReadValue:
        """Read a value's leaves into host memory, as views where that is possible.

        Raises:
            ArgumentError: A leaf is no array, number, text or None.
            DtypeError: The op is not defined for a dtype.

        """
        leaves, structure = flatten(value)
        if self._readers and structure == self._structure:
            known = self._read_known(leaves, structure)
            if known is not None:
                return known
        read = ReadValue(leaves, structure, [])
        views: dict[str, list[HostArray]] = {}
        lengths: dict[str, int] = {}
        for leaf, path in zip(leaves, leaf_paths(structure), strict=True):
            form, view = self._read_leaf(leaf, path)
            if form.kind == "float":
                form = form._replace(begin=lengths.get(form.real, 0))
                lengths[form.real] = form.begin + form.length
                views.setdefault(form.real, []).append(view.view(numpy_dtype(form.real)))
            else:
                _keep(read, form, leaf, view)
            read.forms.append(form)
        read.floats = {real: Pieces.of(parts) for real, parts in views.items()}
        return read

    def _read_known(self, leaves: list[Any], structure: optree.PyTreeSpec) -> ReadValue | None:
        """Read a value by the fast path, all leaves of a dtype in one call; return None if it needs the slow path."""
        read = ReadValue(leaves, structure, self._forms)
        for dtype, reader in self._readers.items():
            starts = reader.find(leaves)
            if starts is None:
                return None
            read.floats[dtype] = Pieces(starts, reader.offsets, leaves)
        for leaf, known in zip(leaves, self._forms, strict=True):
            if known.kind != "float":
                form, view = self._read_leaf(leaf, known.path)
                if form != known:
                    return None
                _keep(read, form, leaf, view)
        return read

    def _read_leaf(self, leaf: Any, path: str) -> tuple[Form, Any]:
        """Return a leaf's form, and its contents as a flat, 1-d host array; None for text, a single flag or None."""
        # ``check_dtype`` refuses a flag in a SUM below, like an array of flags.
        is_refused = isinstance(leaf, bool) and self._op is ReduceOp.SUM
        if isinstance(leaf, _TEXT) and not is_refused:
            return Form(path, "equal", type(leaf).__name__, ()), None
        backend = backend_of(leaf)
        where = f" at {path}" if path else ""
        if backend is None:
            advice = "A value is a number, an array of NumPy, PyTorch, JAX or TensorFlow, or a list or dict of these."
            if isinstance(leaf, IndexedSlices):
                advice = "Pass values and indices as two arrays."
            raise ArgumentError(f"{self._owner} got {short(leaf)}{where}, which cannot be added. {advice}")
        refusal = backend.refusal(leaf)
        if refusal is not None:
            raise ArgumentError.unsupported_array(
                owner=self._owner, where=where, got=refusal.got, advice=refusal.advice
            )
        shape, dtype = backend.shape_dtype(leaf)
        is_flag = dtype == "bool" and self._op is ReduceOp.MEAN
        if not is_flag:
            Fold(self._op).check_dtype(dtype, where)
        host = _on_host(backend, leaf)
        view = np.require(host, host.dtype.newbyteorder("="), ["C", "ALIGNED"]).reshape(-1)
        kind = "equal" if is_flag else "whole" if dtype in INTEGERS else "float"
        return Form(path, kind, dtype, shape), view


class _LeavesOfDtype:
    """Finds the addresses of the leaves of one dtype and of known shapes."""

    def __init__(self, dtype: str, forms: Sequence[Form]) -> None:
        self._indices = [index for index, form in enumerate(forms) if form.dtype == dtype]
        shapes = [forms[index].shape for index in self._indices]
        self.offsets = np.cumsum([0, *(forms[index].length for index in self._indices)], dtype=np.int64)
        self._reader = LeafReader(numpy_dtype(dtype), DTYPES[dtype].dlpack or 0, shapes)

    def find(self, leaves: Sequence[Any]) -> HostArray | None:
        """Return the leaves' addresses; None if a leaf has another form or cannot be read in place."""
        chosen = [leaves[index] for index in self._indices]
        ways = [way for way in (backend.exchange(chosen) for backend in loaded_backends()) if way is not None]
        starts: HostArray | None = self._reader.read(chosen, *(ways[0] if ways else ((), None, ())))
        return starts


def difference(known: Sequence[Form], got: Sequence[Form], whose: str, others: str) -> MismatchError | None:
    """Return an error that names the first leaf of another form; None if all forms are equal.

    Args:
        known: The forms of the values before.
        got: The forms of the value to check.
        whose: Words for that value, such as "This value".
        others: Words for the values before, such as "those before".

    """
    by_path = {form.path: form for form in known}
    for form in got:
        other = by_path.pop(form.path, None)
        where = f" at {form.path}" if form.path else ""
        if other is None:
            return MismatchError(f"{whose} has a leaf{where}, and {others} have none there. Nothing was added.")
        if form[1:4] != other[1:4]:
            return MismatchError(
                f"{whose} is {form.dtype} {form.shape}{where}, and {others} are {other.dtype} {other.shape}. Bring the "
                "same shapes and dtypes every time. Nothing was added."
            )
    for path in by_path:
        where = f" at {path}" if path else ""
        return MismatchError(f"{whose} has no leaf{where}, and {others} have one there. Nothing was added.")
    return None


def container_difference(known: optree.PyTreeSpec, got: optree.PyTreeSpec, path: str = "") -> MismatchError:
    """Return an error that names the first container in which two structures with equal leaves differ."""
    if known.type is got.type:
        for key, one, other in zip(got.entries(), known.children(), got.children(), strict=False):
            if one != other:
                return container_difference(one, other, f"{path}[{key!r}]")
    kind, before = ("no container" if spec.type is None else spec.type.__name__ for spec in (got, known))
    where, kind = f" at {path}" if path else "", f"{kind} of other contents" if kind == before else kind
    return MismatchError(
        f"This value is {kind}{where}, and those before are {before}. Bring the same containers every time. "
        "Nothing was added."
    )


def example_of(leaf: Any) -> Example:
    """Return the description that ``like`` needs to make a result with the leaf's type, framework and device."""
    if isinstance(leaf, _TEXT):
        return Example(type(leaf), "", None, leaf)
    backend = backend_of(leaf)
    assert backend is not None  # noqa: S101 - for mypy: the leaf has been read
    is_flag = backend.shape_dtype(leaf)[1] == "bool"
    value = np.array(_on_host(backend, leaf)) if is_flag else None
    return Example(type(leaf), backend.name, backend.device_of(leaf), value)


def like(example: Example, made: HostArray | None, form: Form) -> Any:
    """Return a leaf of the result.

    Args:
        example: Its type, framework and device.
        made: Its contents, flat; None takes those of the example.
        form: Its shape.

    """
    if made is None and not example.backend:
        return example.value
    array = (example.value.copy() if made is None else made).reshape(form.shape)
    if example.kind in {int, float, complex}:
        return array.item()
    if issubclass(example.kind, np.generic):
        return array[()]
    backend = next(backend for backend in loaded_backends() if backend.name == example.backend)
    made_there = backend.from_host(array, "cpu:0")
    return made_there if example.device is None else backend.copy_to(made_there, example.device)


def _keep(read: ReadValue, form: Form, leaf: Any, view: Any) -> None:
    """Keep the contents of a leaf that is no float: integers as an array, others as a digest."""
    if form.kind == "whole":
        read.wholes.append(view)
    else:
        contents = leaf if view is None else view.tobytes()
        read.digests.append(hashlib.sha256(repr((form.dtype, form.shape, contents)).encode()).digest())


def _on_host(backend: ArrayBackend, leaf: Any) -> HostArray:
    """Return a leaf as a host array: a view if it lies in host memory, else a copy."""
    view = backend.host_view(leaf)
    return np.asarray(backend.host_view(backend.copy_to(leaf, "cpu:0")) if view is None else view)
