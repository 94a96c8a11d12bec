"""SUM and MEAN by TensorFlow's ops and by treefold's, on generated values, compared bit for bit.

A case is one call. Replica r contributes 2**r times a small whole number that depends on the position, for floats times
one power of two. A wrong result therefore shows which contribution is lost, doubled or misplaced. Every sum, partial
ones too, is exact in every dtype. Calls in which TensorFlow differs are named by ``why_left_out``; each has a test of
its own in the files beside this one. Set ``TREEFOLD_CASES`` to the number of cases, or to ``full`` for ten times as
many.
"""

import dataclasses
import functools
import math
import os
import random

import numpy as np
import pytest
import tensorflow as tf

import treefold

DEFAULT_CASES = 1_000
PARTS = 4  # tests per kind of call, for several processes to share
ALL_DEVICES = range(8)
SPELLINGS = ("/cpu:{}", "cpu:{}", "CPU:{}", "/device:CPU:{}", "/job:localhost/replica:0/task:0/device:CPU:{}")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
# The numbers of elements 0, 1, 2 … of an array, from the start again after a prime count: no axis falls in step.
MULTIPLIERS = {
    "float16": (1.0, -3.0, 0.0, 7.0, -0.0, 5.0, -2.0),
    "bfloat16": (1.0, -4.0, 0.0, 8.0, -0.0, 2.0, -1.0),  # 8 bits hold 255 times a power of two, and no more
    "float32": (1.0, -30.0, 0.0, 77.0, -0.0, 51.0, -2.0),
    "float64": (1.0, -300.0, 0.0, 777.0, -0.0, 511.0, -2.0),
    "complex64": (1 + 2j, -3 + 1j, 5 - 7j, 0j, 2 - 4j),
    "complex128": (1 + 20j, -30 + 1j, 50 - 77j, 0j, 2 - 4j),
}
DTYPES = (*MULTIPLIERS, *INTEGERS)


@dataclasses.dataclass(frozen=True)
class Value:
    """One value of a call: the replicas' contributions, their devices, and the destinations of the result.

    Attributes:
        rows: The number of sparse rows of each replica, -1 for an array. Empty if all contribute arrays.
        destination: A device name, the devices of a distributed value, or None for the value itself.

    """

    dtype: str
    shape: tuple[int, ...]
    start: int  # which multiplier comes first, so that values of a batch differ
    exponent: int
    devices: tuple[int, ...]
    destination: str | tuple[int, ...] | None
    rows: tuple[int, ...] = ()
    index_dtype: str = "int64"
    has_dense_shape: bool = True

    @property
    def destination_devices(self):
        if isinstance(self.destination, str):
            return (int(self.destination[-1]),)
        return self.devices if self.destination is None else self.destination

    @property
    def is_sparse(self):
        return bool(self.rows) and -1 not in self.rows

    def contribution(self, replica):
        """Return what a replica brings: a read-only array, or treefold's ``IndexedSlices`` of some of its rows."""
        numbers = np.resize(np.roll(self._multipliers(), -self.start), math.prod(self.shape)) * 2**replica
        scaled = numbers if self.dtype in INTEGERS else numbers * 2.0**self.exponent
        array = scaled.reshape(self.shape).astype(tf.as_dtype(self.dtype).as_numpy_dtype)
        rows = self.rows[replica] if self.rows else -1
        if rows < 0:
            array.flags.writeable = False
            return array
        indices = (replica + 2 * np.arange(rows, dtype=self.index_dtype)) % self.shape[0]
        values = array[indices]
        values.flags.writeable = False
        return treefold.IndexedSlices(values, indices, self.shape if self.has_dense_shape else None)

    def _multipliers(self):
        """Return whole numbers so small that even the sum over all replicas fits the dtype."""
        if self.dtype not in INTEGERS:
            return MULTIPLIERS[self.dtype]
        limit = min(7, np.iinfo(self.dtype).max // (2 ** len(self.devices) - 1))
        signs = (-limit, -1) if self.dtype in SIGNED else ()
        return (1, limit, 0, limit // 2, limit, *signs)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of one ops object; ``argument`` is its ``reduce_to_device`` or its ``num_packs``."""

    ops: str
    argument: int | str | None
    method: str
    op: str
    values: tuple[Value, ...]

    @property
    def matches(self):
        devices = set(self.values[0].devices)
        return all(devices == set(v.devices) == set(v.destination_devices) for v in self.values)

    @property
    def is_packed(self):
        """Whether TensorFlow takes its all-reduce path: its ``reduce`` never does on a CPU."""
        return self.ops == "HierarchicalCopyAllReduce" and self.method == "batch_reduce" and self.matches


def why_left_out(case):
    """Return in what TensorFlow differs in this call, None for nothing."""
    first = case.values[0]
    if case.op == "MEAN" and any(v.dtype in INTEGERS and takes_shortcut(case, v) for v in case.values):
        return "keeps the dtype in the MEAN of one integer"
    if case.matches and len(first.devices) == 1:
        several = any(len(value.devices) > 1 for value in case.values)
        return "returns a whole batch unreduced if its first value has one component" if several else None
    if case.is_packed:
        if len(first.devices) % 2:
            return "loses the last replica of an odd count"
        if any(v.destination_devices != first.devices or v.devices != first.devices for v in case.values):
            return "orders the result like the value, not like the destination, and asserts one order in a batch"
        if case.argument and len({value.dtype for value in case.values if not value.is_sparse}) > 1:
            return "cannot pack two dtypes"
    return None


def takes_shortcut(case, value):
    """Tell whether TensorFlow returns a value as it is: one component that stays on its device."""
    stays = len(value.devices) == 1 and value.devices == value.destination_devices
    # A batch of ReductionToOneDevice does not come past the check, unless all its values stay on one device.
    return stays and (case.matches or case.ops == "HierarchicalCopyAllReduce")


def draw_devices(rng, count=None):
    """Return the devices of ``count`` replicas; in one of five draws, replicas may share them."""
    count = count or rng.randint(1, 8)
    return tuple(rng.choices(ALL_DEVICES, k=count) if rng.random() < 0.2 else rng.sample(ALL_DEVICES, count))


def draw_destination(rng):
    """Return the value itself, one named device, some devices in some order, or all of them."""
    some = tuple(rng.sample(ALL_DEVICES, rng.randint(1, 7)))
    return rng.choice((None, rng.choice(SPELLINGS).format(rng.choice(ALL_DEVICES)), some, tuple(ALL_DEVICES)))


def draw_dtype(rng, devices):
    """Return any dtype, but int8 for no more than seven replicas: it has no 2**7."""
    return rng.choice([name for name in DTYPES if len(devices) < 8 or name != "int8"])


def draw_value(rng, devices, destination, dtype=None):
    """Return arrays three times of four, else sparse rows or, rarely, both."""
    shape = tuple(rng.choice((0, 1, 2, 3, 4, 5, 7)) for _ in range(rng.randint(0, 3)))
    value = Value(
        dtype=dtype or draw_dtype(rng, devices),
        shape=shape,
        start=rng.randint(0, 6),
        exponent=rng.randint(-2, 2),
        devices=devices,
        destination=destination,
    )
    kind = rng.choice(("array",) * 9 + ("sparse", "sparse", "both"))
    if kind == "array":
        return value
    rows = tuple(rng.randint(0, 3) for _ in devices)
    if kind == "both":  # five rows of which each replica names at most three, none of them twice
        rows = tuple(count if replica % 2 else -1 for replica, count in enumerate(rows))
    return dataclasses.replace(
        value,
        dtype=draw_dtype(rng, devices) if kind == "sparse" else value.dtype,
        shape=(rng.randint(1, 5) if kind == "sparse" else 5, *shape[1:]),
        rows=rows,
        index_dtype=rng.choice(("int32", "int64")),
        has_dense_shape=kind == "both" or rng.random() < 0.7,
    )


def draw_one_device(rng, method):
    """Return a call of ``ReductionToOneDevice``: every value has devices and a destination of its own."""
    count = 1 if method == "reduce" else rng.randint(1, 5)
    values = [draw_value(rng, draw_devices(rng), draw_destination(rng)) for _ in range(count)]
    root = rng.choice((None, None, rng.choice(SPELLINGS).format(rng.choice(ALL_DEVICES))))
    return Case("ReductionToOneDevice", root, method, rng.choice(("SUM", "MEAN")), tuple(values))


def draw_all_reduce(rng):
    """Return a batch that TensorFlow packs: values of one even number of devices, each its own destination."""
    devices = draw_devices(rng, rng.choice((2, 4, 6, 8)))
    num_packs = rng.choice((0, 1, 2, 3, len(devices), len(devices) + 5))
    dtype = draw_dtype(rng, devices) if num_packs else None
    values = [draw_value(rng, devices, None, dtype) for _ in range(rng.randint(1, 6))]
    return Case("HierarchicalCopyAllReduce", num_packs, "batch_reduce", rng.choice(("SUM", "MEAN")), tuple(values))


def draw_elsewhere(rng, method):
    """Return a call of ``HierarchicalCopyAllReduce`` in which all or some values go to other devices."""
    shared = draw_devices(rng)
    count = 1 if method == "reduce" else rng.randint(2, 5)
    where = [(rng.choice((shared, draw_devices(rng))), rng.choice((None, draw_destination(rng)))) for _ in range(count)]
    values = tuple(draw_value(rng, devices, destination) for devices, destination in where)
    num_packs = rng.choice((0, 1, 2, len(shared)))
    return Case("HierarchicalCopyAllReduce", num_packs, method, rng.choice(("SUM", "MEAN")), values)


#: The kinds of calls: how many of a hundred cases each has, and what draws one.
KINDS = {
    "one_device_reduce": (25, functools.partial(draw_one_device, method="reduce")),
    "one_device_batch": (25, functools.partial(draw_one_device, method="batch_reduce")),
    "all_reduce": (30, draw_all_reduce),
    "hierarchical_reduce": (10, functools.partial(draw_elsewhere, method="reduce")),
    "hierarchical_batch": (10, functools.partial(draw_elsewhere, method="batch_reduce")),
}


def asked_cases():
    asked = os.environ.get("TREEFOLD_CASES", str(DEFAULT_CASES))
    return 20 * DEFAULT_CASES if asked == "full" else int(asked)


@functools.cache
def draw_cases(kind, total):
    """Return this kind's share of ``total`` different cases, the same ones in every run."""
    percent, draw = KINDS[kind]
    rng = random.Random(kind)  # noqa: S311 - it draws cases, not secrets
    cases = {}
    while len(cases) < max(PARTS, math.ceil(total * percent / 100)):
        case = draw(rng)
        if why_left_out(case) is None:
            cases[case] = None
    return tuple(cases)


def part_of(kind, part):
    return draw_cases(kind, asked_cases())[part::PARTS]


@pytest.fixture(scope="session")
def run_both(on_devices, read):
    """Return a function that runs a case in TensorFlow and in treefold and reads both results."""

    def pairs_of(value):
        arrays = [value.contribution(replica) for replica in range(len(value.devices))]
        theirs = on_devices(arrays, value.devices)
        ours = treefold.PerReplica(arrays, [component.device for component in theirs.values])
        if value.destination is None:
            return (theirs, theirs), (ours, ours)
        if isinstance(value.destination, str):
            return (theirs, value.destination), (ours, value.destination)
        zeros = [np.zeros(2, np.float32) for _ in value.destination]
        names = [f"cpu:{device}" for device in value.destination]
        return (theirs, on_devices(zeros, value.destination)), (ours, treefold.PerReplica(zeros, names))

    def run(case):
        pairs = [pairs_of(value) for value in case.values]
        op, results = tf.distribute.ReduceOp(case.op), []
        for library, own in zip((tf.distribute, treefold), zip(*pairs, strict=True), strict=True):
            method = getattr(getattr(library, case.ops)(case.argument), case.method)
            result = method(op, list(own)) if case.method == "batch_reduce" else [method(op, *own[0])]
            results.append([read(mirrored) for mirrored in result])
        return results

    return run


@pytest.mark.parametrize("part", range(PARTS))
class TestReductionToOneDevice:
    def test_reduces_like_tensorflow(self, run_both, part):
        for case in part_of("one_device_reduce", part):
            by_tensorflow, by_treefold = run_both(case)
            assert by_treefold == by_tensorflow, repr(case)

    def test_reduces_batches_like_tensorflow(self, run_both, part):
        for case in part_of("one_device_batch", part):
            by_tensorflow, by_treefold = run_both(case)
            assert by_treefold == by_tensorflow, repr(case)


@pytest.mark.parametrize("part", range(PARTS))
class TestHierarchicalCopyAllReduce:
    def test_all_reduces_batches_like_tensorflow(self, run_both, part):
        for case in part_of("all_reduce", part):
            by_tensorflow, by_treefold = run_both(case)
            assert by_treefold == by_tensorflow, repr(case)

    def test_reduces_like_tensorflow(self, run_both, part):
        for case in part_of("hierarchical_reduce", part):
            by_tensorflow, by_treefold = run_both(case)
            assert by_treefold == by_tensorflow, repr(case)

    def test_reduces_batches_to_mixed_destinations_like_tensorflow(self, run_both, part):
        for case in part_of("hierarchical_batch", part):
            by_tensorflow, by_treefold = run_both(case)
            assert by_treefold == by_tensorflow, repr(case)


class TestTheCases:
    def test_are_as_many_as_asked_for_and_all_different(self):
        cases = [case for kind in KINDS for case in draw_cases(kind, asked_cases())]
        assert len(set(cases)) == len(cases) >= asked_cases()
        assert {why_left_out(case) for case in cases} == {None}

    def test_take_tensorflow_through_its_packing(self):
        cases = draw_cases("all_reduce", DEFAULT_CASES)
        assert all(case.is_packed for case in cases)
        counts = {(case.argument, len(case.values[0].devices)) for case in cases}
        assert counts >= {(packs, n) for n in (2, 4, 6, 8) for packs in (0, 1, 2, 3, n, n + 5)}

    def test_cover_what_they_should(self):
        cases = [case for kind in KINDS for case in draw_cases(kind, DEFAULT_CASES)]
        values = [value for case in cases for value in case.values]
        assert {(case.op, v.dtype) for case in cases for v in case.values} == {
            (op, dtype) for op in ("SUM", "MEAN") for dtype in DTYPES
        }
        assert {len(value.devices) for value in values} == set(range(1, 9))
        assert {len(value.shape) for value in values} == {0, 1, 2, 3}
        assert {math.prod(value.shape) == 0 for value in values} == {True, False}
        assert {(value.is_sparse, bool(value.rows)) for value in values} == {
            (True, True),
            (False, True),
            (False, False),
        }
        assert {len(value.destination_devices) for value in values} == set(range(1, 9))
