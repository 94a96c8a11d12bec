"""The suite that every backend passes: the promises of ``ArrayBackend``, and every op on top of it, on exact values.

>>> import numpy as np
>>> from treefold.backends.numpy import NumpyBackend
>>> adapter = Adapter(NumpyBackend(), ("cpu:0", "cpu:1"), make=lambda array, device: array.copy(), to_numpy=np.asarray)
>>> for case in CONFORMANCE:
...     case.run(adapter)
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import ArrayBackend, HostArray, additional_backend, backend_of
from treefold.dtypes import COMPLEX, FLOATS
from treefold.errors import ConformanceError
from treefold.fold import Fold
from treefold.ops import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from treefold.reduce_op import ReduceOp
from treefold.testing.inputs import owned
from treefold.values import IndexedSlices, Mirrored, PerReplica

_SHAPES: tuple[tuple[int, ...], ...] = ((), (11,), (0, 3), (3, 5), (2, 3, 4))


@dataclass(frozen=True)
class Adapter:
    """A backend, and how a test gets arrays in and out of it.

    Args:
        backend: The backend under test.
        devices: Canonical names, at least one; replicas are placed on them in turn.
        make: Returns an array on a device with a copy of a NumPy array.
        to_numpy: Returns an array's contents.
        dtypes: The dtypes to try. Results of MEAN must exist, too: float64 for integers of 32 and 64 bits.

    """

    backend: ArrayBackend
    devices: tuple[str, ...]
    make: Callable[[HostArray, str], Any]
    to_numpy: Callable[[Any], HostArray]
    dtypes: tuple[str, ...] = ("float32", "int32")


class Case(NamedTuple):
    """One check; ``run`` raises ``ConformanceError`` if it fails.

    Args:
        name: The name of the check.
        run: Takes an ``Adapter``.

    """

    name: str
    run: Callable[[Adapter], None]


def check_owns(adapter: Adapter) -> None:
    """Check that the backend owns its arrays, and nothing else."""
    for shape in _SHAPES:
        _expect(_made(adapter, shape), "owns() is true of its arrays", adapter.backend.owns(_made(adapter, shape)))
    for stranger in (None, "array", b"", [1.0], (1.0,), {"a": 1.0}, object(), np.ndarray, _Unreadable(), print):
        _expect(stranger, "owns() is false of anything else", adapter.backend.owns(stranger) is False)


def check_devices(adapter: Adapter) -> None:
    """Check that its devices exist and hold the arrays made there, and that others do not exist."""
    _expect("nowhere:0", "has_device() is false", not adapter.backend.has_device("nowhere:0"))
    for device in adapter.devices:
        _expect(device, "has_device() is true", adapter.backend.has_device(device))
        found = adapter.backend.device_of(_made(adapter, (3,), device=device))
        is_there = device.startswith("cpu:") if found is None else found == device
        _expect(found, f"device_of() is {device}, or None in host memory", is_there)


def check_shape_dtype(adapter: Adapter) -> None:
    """Check that shapes are tuples, and dtypes NumPy's names."""
    for dtype in adapter.dtypes:
        for shape in _SHAPES:
            found = adapter.backend.shape_dtype(_made(adapter, shape, dtype))
            _expect(found, f"shape_dtype() is {(shape, dtype)}", found == (shape, dtype))


def check_copy_to(adapter: Adapter) -> None:
    """Check that a copy has the contents, is on its device, and has memory of its own."""
    for source in adapter.devices:
        for target in adapter.devices:
            for shape in _SHAPES:
                array = _made(adapter, shape, device=source)
                copy = adapter.backend.copy_to(array, target)
                _expect_on(adapter, copy, target)
                if adapter.backend.is_writable(copy):
                    adapter.backend.assign(copy, adapter.backend.copy_to(_made(adapter, shape, replica=3), target))
                    _expect_equal(adapter, array, owned(0, shape, adapter.dtypes[0]))
                else:
                    _expect_equal(adapter, copy, owned(0, shape, adapter.dtypes[0]))


def check_combine(adapter: Adapter) -> None:
    """Check that every op folds arrays into a new one of the requested dtype; MEAN divides only when all are there."""
    for dtype in adapter.dtypes:
        for op in _ops_of(dtype):
            fold = Fold(op)
            parts = _contributions(op, 4, (13,), dtype)
            arrays = [adapter.make(part, adapter.devices[0]) for part in parts]
            kinds, result = {"dtype": dtype}, fold.result_dtype(dtype)
            whole = adapter.backend.combine(arrays, fold, **kinds, divisor=4, result=result)
            _expect_equal(adapter, whole, _reduced(op, parts, result))
            halves = [
                adapter.backend.combine(half, fold, **kinds, divisor=None, result=fold.partial_dtype(dtype))
                for half in (arrays[:2], arrays[2:])
            ]
            joined = adapter.backend.combine(halves, fold, **kinds, divisor=4, result=result)
            _expect_equal(adapter, joined, _reduced(op, parts, result))
            for array, part in zip(arrays, parts, strict=True):
                _expect_equal(adapter, array, part)


def check_scale(adapter: Adapter) -> None:
    """Check that a division rounds once, to the requested dtype."""
    for dtype in adapter.dtypes:
        result = Fold(ReduceOp.MEAN).result_dtype(dtype)
        contents = _wide(owned(2, (13,), dtype)) / 4
        scaled = adapter.backend.scale(_made(adapter, (13,), dtype, replica=2), 4, result)
        _expect_equal(adapter, scaled, contents.astype(result))


def check_ravel_concat(adapter: Adapter) -> None:
    """Check that arrays are read in row-major order and concatenated."""
    for dtype in adapter.dtypes:
        contents = [owned(replica, shape, dtype) for replica, shape in enumerate(_SHAPES)]
        arrays = [adapter.make(array, adapter.devices[-1]) for array in contents]
        joined = adapter.backend.ravel_concat(arrays)
        _expect_equal(adapter, joined, np.concatenate([array.reshape(-1) for array in contents]))
        _expect_on(adapter, joined, adapter.devices[-1])
        turned = adapter.backend.ravel_concat([adapter.backend.moveaxis(arrays[-1], 0, 2)])
        _expect_equal(adapter, turned, np.moveaxis(contents[-1], 0, 2).reshape(-1))


def check_shapes(adapter: Adapter) -> None:
    """Check that splitting, reshaping and moving an axis keep the order of the contents."""
    backend = adapter.backend
    flat = owned(1, (24,), adapter.dtypes[0])
    array = adapter.make(flat, adapter.devices[0])
    for start, stop in ((0, 24), (5, 17), (23, 24), (7, 7)):
        _expect_equal(adapter, backend.split(array, start, stop), flat[start:stop])
    for shape in ((24,), (2, 3, 4), (1, 24), (24, 1)):
        _expect_equal(adapter, backend.reshape(array, shape), flat.reshape(shape))
    cube = backend.reshape(array, (2, 3, 4))
    for source in range(3):
        for target in range(3):
            _expect_equal(
                adapter, backend.moveaxis(cube, source, target), np.moveaxis(flat.reshape(2, 3, 4), source, target)
            )


def check_sparse(adapter: Adapter) -> None:
    """Check that rows are added at their indices, duplicates add up, and the bounds of indices are found."""
    rows, indices = owned(0, (3, 2), adapter.dtypes[0]), np.array([4, 1, 4], "int32")
    expected = np.zeros((6, 2), rows.dtype)
    np.add.at(expected, indices, rows)
    positions = adapter.make(indices, adapter.devices[0])
    _expect_equal(adapter, adapter.backend.densify(adapter.make(rows, adapter.devices[0]), positions, (6, 2)), expected)
    bounds = adapter.backend.index_bounds(positions)
    _expect(bounds, "index_bounds() is (1, 4), in Python's int", bounds == (1, 4) and type(bounds[0]) is int)


def check_assign(adapter: Adapter) -> None:
    """Check that a writable array takes a value, and keeps it when the source changes."""
    for shape in _SHAPES:
        target, source = _made(adapter, shape), _made(adapter, shape, replica=2)
        if not adapter.backend.is_writable(target):
            continue
        adapter.backend.assign(target, source)
        adapter.backend.assign(source, _made(adapter, shape))
        adapter.backend.synchronize(target)
        _expect_equal(adapter, target, owned(2, shape, adapter.dtypes[0]))


def check_host_view(adapter: Adapter) -> None:
    """Check that host memory is viewed in place, other memory is not, and ``cpu:k`` takes over a NumPy array."""
    for device in adapter.devices:
        array = _made(adapter, (2, 3), device=device)
        view = adapter.backend.host_view(array)
        if view is None:
            is_placed = adapter.backend.device_of(array) is not None
            _expect(device, "host_view() is None only where device_of() names a device", is_placed)
            continue
        _expect(view, "host_view() has the contents", np.array_equal(view, owned(0, (2, 3), adapter.dtypes[0])))
        if adapter.backend.is_writable(array):
            view[...] = owned(1, (2, 3), adapter.dtypes[0])
            _expect_equal(adapter, array, view)
        _expect_equal(adapter, adapter.backend.from_host(np.arange(3.0), device), np.arange(3.0))


def check_read(adapter: Adapter) -> None:
    """Check that arrays are not refused, and that rows of them have their contents."""
    for dtype in adapter.dtypes:
        for shape in _SHAPES:
            arrays = tuple(_made(adapter, shape, dtype, replica=replica) for replica in range(2))
            _expect(arrays, "refusal() is None", all(adapter.backend.refusal(array) is None for array in arrays))
            is_read = type(arrays[0]) in adapter.backend.row_types
            for row in filter(None, [adapter.backend.read(arrays)] if is_read else []):
                _expect(row, f"read() is of {(shape, dtype)}", (row.shape, row.dtype.name) == (shape, dtype))
                for view, array in zip(row.views or (), arrays, strict=False):
                    _expect(view, "read() sees what it holds", np.array_equal(view, adapter.to_numpy(array)))


def check_reduce(num_replicas: int, adapter: Adapter) -> None:
    """Check every ops class, op and dtype: each contribution once, on each destination, and the inputs unchanged."""
    with _known(adapter):
        for ops in _ops(adapter):
            for dtype in adapter.dtypes:
                for op in _ops_of(dtype):
                    parts = _contributions(op, num_replicas, (3, 5), dtype)
                    value = _per_replica(adapter, parts)
                    result = ops.reduce(op, value, value)
                    expected = _reduced(op, parts, adapter.backend.result_dtype(Fold(op), dtype))
                    _expect_mirrored(adapter, result, expected, value.devices)
                    for array, part in zip(value, parts, strict=True):
                        _expect_equal(adapter, array, part)


def check_batch_reduce(num_replicas: int, adapter: Adapter) -> None:
    """Check that a batch of many shapes and dtypes, sparse rows among them, is right and in order."""
    kinds = [(shape, dtype) for dtype in adapter.dtypes for shape in _SHAPES]
    with _known(adapter):
        for ops in _ops(adapter):
            contents = [_contributions(ReduceOp.SUM, num_replicas, shape, dtype) for shape, dtype in kinds]
            values = [_per_replica(adapter, parts) for parts in contents]
            rows = _slices(adapter, num_replicas)
            pairs = [(value, value) for value in values] + [(rows, rows), (values[1], adapter.devices[-1])]
            *dense, sparse, single = ops.batch_reduce("sum", pairs)
            for result, parts, value in zip(dense, contents, values, strict=True):
                _expect_mirrored(adapter, result, _reduced(ReduceOp.SUM, parts, parts[0].dtype.name), value.devices)
            for component in sparse:
                expected = [owned(r, (1, 2), adapter.dtypes[0]) for r in range(num_replicas)]
                _expect_equal(adapter, component.values, np.concatenate(expected))
                _expect_equal(adapter, component.indices, np.arange(num_replicas, dtype="int32"))
            expected_single = _reduced(ReduceOp.SUM, contents[1], adapter.dtypes[0])
            _expect_mirrored(adapter, single, expected_single, adapter.devices[-1:])


def check_broadcast(num_replicas: int, adapter: Adapter) -> None:
    """Check that every destination gets a copy."""
    with _known(adapter):
        for ops in _ops(adapter):
            for dtype in adapter.dtypes:
                devices = _places(adapter, num_replicas)
                array = adapter.make(owned(2, (3, 5), dtype), devices[0])
                _expect_mirrored(adapter, ops.broadcast(array, devices), owned(2, (3, 5), dtype), devices)


def check_gather(num_replicas: int, adapter: Adapter) -> None:
    """Check that arrays of different lengths are concatenated along any axis."""
    with _known(adapter):
        for ops in _ops(adapter):
            for axis in (0, 1, -1):
                shapes = [[3, 2] for _ in range(num_replicas)]
                for replica, shape in enumerate(shapes):
                    shape[axis] = replica % 3
                parts = [owned(r, (shape[0], shape[1]), adapter.dtypes[0]) for r, shape in enumerate(shapes)]
                value = _per_replica(adapter, parts)
                _expect_mirrored(adapter, ops.gather(value, value, axis), np.concatenate(parts, axis), value.devices)


class _Unreadable:
    """A value that answers no question."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def _ops(adapter: Adapter) -> Iterator[CrossDeviceOps]:
    yield ReductionToOneDevice()
    yield ReductionToOneDevice(reduce_to_device=adapter.devices[-1])
    yield HierarchicalCopyAllReduce()
    yield HierarchicalCopyAllReduce(num_packs="auto")
    yield NcclAllReduce(num_packs=3)
    yield AllReduceCrossDeviceOps("hierarchical_copy", num_packs=0)
    yield AllReduceCrossDeviceOps("hierarchical_copy", 0, agg_small_grads_max_bytes=64)


def _ops_of(dtype: str) -> Sequence[ReduceOp]:
    return [op for op in ReduceOp if dtype not in COMPLEX or op not in {ReduceOp.MIN, ReduceOp.MAX}]


def _contributions(op: ReduceOp, num_replicas: int, shape: tuple[int, ...], dtype: str) -> list[HostArray]:
    """Return values that name their owner, with a reduction that every dtype holds."""
    replicas = range(num_replicas)
    if op is not ReduceOp.PRODUCT:
        factor = np.array(num_replicas if op is ReduceOp.MEAN else 1, dtype)
        return [owned(replica, shape, dtype) * factor for replica in replicas]
    positions = np.arange(math.prod(shape)).reshape(shape) % num_replicas
    return [np.where(positions == replica, replica + 2, 1).astype(dtype) for replica in replicas]


def _wide(array: HostArray) -> HostArray:
    name = array.dtype.name
    return array.astype("complex128" if name in COMPLEX else "float64" if name in FLOATS else "int64")


def _reduced(op: ReduceOp, parts: Sequence[HostArray], result: str) -> HostArray:
    stack = np.stack([_wide(part) for part in parts])
    names = {ReduceOp.PRODUCT: "prod"}
    with np.errstate(over="ignore"):
        return np.asarray(getattr(np, names.get(op, op.name.lower()))(stack, axis=0)).astype(result)


def _made(
    adapter: Adapter, shape: tuple[int, ...], dtype: str = "", *, replica: int = 0, device: str | None = None
) -> Any:
    return adapter.make(owned(replica, shape, dtype or adapter.dtypes[0]), device or adapter.devices[0])


def _places(adapter: Adapter, num_replicas: int) -> list[str]:
    return [adapter.devices[replica % len(adapter.devices)] for replica in range(num_replicas)]


def _per_replica(adapter: Adapter, parts: Sequence[HostArray]) -> PerReplica:
    devices = _places(adapter, len(parts))
    return PerReplica([adapter.make(p, device) for p, device in zip(parts, devices, strict=True)], devices)


def _slices(adapter: Adapter, num_replicas: int) -> PerReplica:
    devices = _places(adapter, num_replicas)
    rows = [adapter.make(owned(r, (1, 2), adapter.dtypes[0]), device) for r, device in enumerate(devices)]
    indices = [adapter.make(np.array([r], "int32"), device) for r, device in enumerate(devices)]
    return PerReplica([IndexedSlices(*pair, (8, 2)) for pair in zip(rows, indices, strict=True)], devices)


@contextlib.contextmanager
def _known(adapter: Adapter) -> Iterator[None]:
    """Register the backend, and silence the warning that NCCL is not used."""
    is_known = backend_of(_made(adapter, ())) is not None
    with contextlib.nullcontext() if is_known else additional_backend(adapter.backend), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "NCCL is not used", RuntimeWarning)
        yield


def _expect(found: object, promise: str, holds: bool) -> None:  # noqa: FBT001 - the claim itself
    if not holds:
        message = f"{promise}; got {found!r}"
        raise ConformanceError(message)


def _expect_on(adapter: Adapter, array: Any, device: str) -> None:
    _expect(array, f"it is on {device}", adapter.backend.device_of(array) in {None, device})


def _expect_equal(adapter: Adapter, array: Any, expected: HostArray) -> None:
    found = np.asarray(adapter.to_numpy(array))
    is_like = (found.shape, found.dtype) == (expected.shape, expected.dtype)
    _expect(array, f"it is {expected!r}", is_like and np.array_equal(found, expected))


def _expect_mirrored(adapter: Adapter, result: Mirrored, expected: HostArray, devices: Sequence[str]) -> None:
    _expect(result.devices, f"the result is on {tuple(devices)}", result.devices == tuple(devices))
    for array, device in zip(result, devices, strict=True):
        _expect_on(adapter, array, device)
        _expect_equal(adapter, array, expected)


_PRIMITIVES = (
    check_owns,
    check_devices,
    check_shape_dtype,
    check_copy_to,
    check_combine,
    check_scale,
    check_ravel_concat,
    check_shapes,
    check_sparse,
    check_assign,
    check_host_view,
    check_read,
)
_COLLECTIVES = (check_reduce, check_batch_reduce, check_broadcast, check_gather)
_MAX_REPLICAS = 8

#: Every primitive of ``ArrayBackend``, then every collective between 1 … 8 replicas.
CONFORMANCE: tuple[Case, ...] = (
    *(Case(check.__name__.removeprefix("check_"), check) for check in _PRIMITIVES),
    *(
        Case(f"{check.__name__.removeprefix('check_')} of {n}", functools.partial(check, n))
        for check in _COLLECTIVES
        for n in range(1, _MAX_REPLICAS + 1)
    ),
)
