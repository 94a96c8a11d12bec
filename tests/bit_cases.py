"""Calls of a group drawn from a seed, each compared with one process that holds the replicas of all ranks.

All ranks draw the same calls. A digest tells what all get alike, and one of them, the judge, compares it with one
process. Else each rank makes the values of all replicas, so that it knows what it should get. Values are windows of a
pattern in which every kind of number meets every other: payloads of NaN, signed zeros, infinities, denormals, and
replicas that bring 1e30, 1 and -1e30 in turn. Results are compared as bytes; but which NaN a fold makes
of several, or of none, is nobody's promise, so there any is right if all ranks have the same.
"""

import functools
import hashlib
import random
import traceback

import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
from hostile_arrays import Hostile

import treefold
from treefold.dtypes import COMPLEX, FLOATS, FOLDABLE, REAL, itemsize
from treefold.fold import Fold
from treefold.ops import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.reduce_op import ReduceOp
from treefold.testing import mixed_values
from treefold.values import flatten

OPS = ("sum", "mean", "min", "max", "product")
#: Layouts of single arrays; targets that are written are the first ones.
_LAYOUTS = (
    *("row_major", "strided", "reversed", "column_major", "unaligned", "read_only", "broadcast"),
    *("in the group's memory", "one array as all replicas"),
)
_WRITABLE = _LAYOUTS[:4]
_PERIOD = 4099
_CANCELLING = {"float32": 1e30, "float64": 1e30, "bfloat16": 1e30, "float16": 6e4}
#: Bytes of contributions that a frame of a round has room for.
_INLINE = 16384


class Case:
    """One call: what it is, and what every rank brings."""

    def __init__(self, seed, size, chunk_bytes):
        self.seed, self.size, self.chunk_bytes = seed, size, chunk_bytes
        self.random = random.Random(f"case {seed}")  # noqa: S311 - a test's choice
        pick = self.random.choice
        self.replicas = [pick((1, 1, 2, 3)) for _ in range(size)]
        if pick((0, 1)):
            self.replicas = self.replicas[:1] * size
        if pick([0] * 15 + [1]):
            self.replicas[self.random.randrange(size)] = self.random.randrange(10, 40)
        self.accumulate = pick(("exact", "exact", "native"))
        self.op = pick(OPS)
        self.method = pick((*["all_reduce"] * 6, "reduce", "reduce_scatter", "broadcast", "gather", "batch", "sparse"))
        self.root = self.random.randrange(size)

    def __repr__(self):
        return f"case {self.seed}: {self.method} {self.op} of {self.replicas} replicas, {self.accumulate}"

    def dtype(self, *, is_summed=True):
        """Draw a dtype that the op takes."""
        dtype = self.random.choice(FOLDABLE)
        is_ordered = self.op in {"min", "max"}
        is_refused = (dtype == "bool" and not is_ordered) or (dtype in COMPLEX and is_ordered)
        return self.dtype() if is_summed and is_refused else dtype

    def length(self, dtype):
        """Draw a length: few elements, about as many as a frame holds, and about whole chunks for every owner."""
        itemsize_ = itemsize(dtype)
        most = max(self.replicas)
        chunk = max(1, self.chunk_bytes // itemsize_)
        length = self.random.choice(
            (
                0,
                1,
                self.random.randrange(2, 40),
                _INLINE // itemsize_ // most,
                self.size * chunk * self.random.randrange(1, 4) // self.random.choice((1, most)),
                self.random.randrange(_INLINE // itemsize_, 3 * _INLINE // itemsize_),
            )
        )
        return max(0, length + self.random.choice((-1, 0, 0, 1)))

    def shape(self, length):
        if length and length % 2 == 0 and self.random.choice((0, 1)):
            return (2, length // 2)
        return (length,)

    def specs(self):
        """Draw leaves as pairs of dtype and shape: one, several, or a whole model's."""
        count = self.random.choice((1, 1, 1, 2, 4, 9, 161))
        specs = []
        for _ in range(count):
            dtype = self.dtype()
            length = self.length(dtype) if count < 100 else self.random.randrange(70)
            specs.append((dtype, self.shape(length)))
        return specs


@functools.cache
def _pattern(dtype):
    return mixed_values(1, (_PERIOD,), dtype)


def contribution(seed, replica, leaf, dtype, shape):
    """Return what a replica brings to a leaf."""
    length = int(np.prod(shape))
    start = (seed * 31 + replica * 1013 + leaf * 577) % _PERIOD
    pattern = np.roll(_pattern(dtype), -start)
    made = np.resize(pattern, length) if length else np.empty(0, pattern.dtype)
    if dtype in _CANCELLING:
        made[leaf % 5 :: 5] = _CANCELLING[dtype] * (1, 0, -1)[replica % 3] + (replica % 3 == 1)
    return made.reshape(shape)


def structured(arrays):
    """Return arrays as one value: alone, or as a pytree."""
    if len(arrays) == 1:
        return arrays[0]
    return {"first": arrays[0], "rest": [tuple(arrays[1:3]), arrays[3:]]}


def bits_of(value, change=lambda array: array):
    """Return dtypes, shapes and bytes of everything in a value, after a change."""
    leaves, structure = flatten(value)
    return str(structure), [(one.dtype.name, one.shape, change(np.array(one, order="C")).tobytes()) for one in leaves]


def folded_bits_of(value):
    """Return the same of the result of a fold, with one NaN for all."""
    return bits_of(value, _with_one_nan)


def _with_one_nan(array):
    numbers = array.view(REAL.get(array.dtype.name, array.dtype))
    if numbers.dtype.name in FLOATS:
        numbers[np.isnan(numbers)] = np.nan
    return array


def check(case, group, ops):
    """Make the call on this rank; fail unless its result is that of one process. ``ops``: as ``ops_of`` gives.

    Return a digest of what all ranks should have alike.
    """
    calls = _Calls(case, group, ops)
    try:
        getattr(calls, case.method)()
    except Exception as error:
        raise CaseError(case) from error
    return calls.common.hexdigest()


def differences(group, dtype, replicas, count, *, length=(1 << 21) + 7):
    """Sum at least ``count`` elements; return how many this rank compares with one process, and how many differ.

    Every rank compares every so manieth sum. Values are windows of one pattern, in which 1e30, 1 and -1e30 meet.
    """
    generator = np.random.default_rng(5)
    pattern = generator.normal(size=2 * length).astype(dtype)
    pattern[::3] = generator.choice(np.array([1e30, 1, -1e30, 1e-30], dtype), len(pattern[::3]))
    unsigned = f"u{pattern.itemsize}"
    compared, differing = 0, 0
    for call in range(-(-count // length)):
        everyone = [
            pattern[(replica * 7919 + call * 104729) % length :][:length] for replica in range(group.size * replicas)
        ]
        own = everyone[group.rank * replicas : (group.rank + 1) * replicas]
        got = group.all_reduce(treefold.PerReplica(own))
        if call % group.size == group.rank:
            expected = treefold.all_reduce(everyone)[0]
            compared += length
            differing += int(np.count_nonzero(got.view(unsigned) != expected.view(unsigned)))
    return compared, differing


class CaseError(AssertionError):
    """A call with a wrong result or an error. The reason is in its text, which is all that ranks send back."""

    def __str__(self):
        return f"{self.args[0]!r}\n{''.join(traceback.format_exception(self.__cause__))}"


def ops_of(group):
    """Return ops objects of a group, and those of one process that say what is right, by accumulation."""
    kinds = (ReductionToOneDevice, AllReduceCrossDeviceOps, HierarchicalCopyAllReduce)
    return {
        mode: ([kind(accumulate=mode, group=group) for kind in kinds], HierarchicalCopyAllReduce(accumulate=mode))
        for mode in ("exact", "native")
    }


class _Calls:
    """The kinds of calls."""

    def __init__(self, case, group, ops):
        self.case, self.group, self.rank = case, group, group.rank
        self.ops, self.alone = ops[case.accumulate]
        self.random = case.random
        self.common = hashlib.sha256()
        self.is_judge = case.seed % case.size == self.rank

    def assert_alike(self, got, expected):
        """Note what all ranks should have alike; on one of them, compare it with what ``expected`` returns."""
        structure, leaves = bits_of(got)
        self.common.update(structure.encode())
        for dtype, shape, contents in leaves:
            self.common.update(f"{dtype} {shape}".encode())
            self.common.update(contents)
        if self.is_judge:
            assert folded_bits_of(got) == folded_bits_of(expected())

    def all_reduce(self):
        """Into new arrays, other arrays or the value itself; of arrays in any layout; also with weights."""
        case, specs = self.case, self.case.specs()
        form = self.random.choice(("new", "out", "in place"))
        layout = self.random.choice(_LAYOUTS if form != "in place" else _WRITABLE)
        weights = self.drawn_weights()
        own, everyone = self.values(specs, layout)
        mine = None if weights is None else weights[self.first() : self.first() + case.replicas[self.rank]]
        group, before = self.group, bits_of(list(own))
        if form == "new":
            got = self.call(own, weights=mine)
        elif form == "out":
            zeros = [np.zeros(shape, self.result(dtype)) for dtype, shape in specs]
            out = structured([Hostile(one, self.random.choice(_WRITABLE)).array for one in zeros])
            assert self.call(own, weights=mine, out=out) is not None
            got = out
        else:
            out = own[0]
            if any(self.result(dtype) != dtype for dtype, _ in specs):
                out = None  # a mean of integers is float
            got = self.call(own, weights=mine, out=out)
            got = got if out is None else out
        self.assert_alike(got, lambda: self.expected(everyone(), weights))
        assert form == "in place" or bits_of(list(own)) == before, "an input has changed"
        if form == "new" and weights is None and case.accumulate == "exact":
            assert bits_of(group.all_reduce(self.brought(own), case.op)) == bits_of(got)

    def call(self, own, *, weights=None, out=None):
        """Reduce by the group itself, or by an ops object that accumulates as the case says."""
        case = self.case
        if case.accumulate == "exact":
            return self.group.all_reduce(self.brought(own, out), case.op, out=out, weights=weights)
        ends = None if out is None else treefold.PerReplica([out])
        weights = [weights] if isinstance(weights, float) else weights
        value = treefold.PerReplica(list(own))
        return self.ops[0].reduce(case.op, value, "cpu:0", out=ends, weights=weights).values[0]

    def reduce(self):
        """Onto one rank; the others get None."""
        case, specs = self.case, self.case.specs()
        own, everyone = self.values(specs, "row_major")
        got = self.group.reduce(self.brought(own), case.op, root=case.root)
        if self.rank != case.root:
            assert got is None
        else:
            assert folded_bits_of(got) == folded_bits_of(self.expected(everyone(), accumulate="exact"))

    def reduce_scatter(self):
        """A part for each rank, along any axis."""
        case, size = self.case, self.case.size
        count = self.random.choice((1, 2, 5))
        axis = self.random.choice((0, 1))
        specs = []
        for _ in range(count):
            dtype = case.dtype()
            columns = size * self.random.choice((0, 1, case.length(dtype) // size))
            specs.append((dtype, (3, columns) if axis else (columns, 2)))
        case.replicas = [1] * size
        own, everyone = self.values(specs, "row_major")
        got = self.group.reduce_scatter(own[0], case.op, axis)
        whole = flatten(self.expected(everyone(), accumulate="exact"))[0]
        parts = structured([np.split(leaf, size, axis)[self.rank] for leaf in whole])
        assert folded_bits_of(got) == folded_bits_of(parts)

    def broadcast(self):
        case = self.case
        case.replicas = [1] * case.size
        specs = [(case.dtype(is_summed=False), shape) for _, shape in case.specs()]
        own, everyone = self.values(specs, "row_major")
        assert bits_of(self.group.broadcast(own[0], case.root)) == bits_of(everyone()[case.root])

    def gather(self):
        """To all ranks or one, along any axis, with as many rows of each replica as it has."""
        case, axis = self.case, self.random.choice((0, 1))
        dtype = case.dtype(is_summed=False)
        rows = [self.random.choice((0, 1, 7, 300)) for _ in range(sum(case.replicas))]
        shapes = [(rows_, 5) if axis == 0 else (5, rows_) for rows_ in rows]
        everyone = [contribution(case.seed, r, 0, dtype, shape) for r, shape in enumerate(shapes)]
        value = self.brought(everyone[self.first() : self.first() + case.replicas[self.rank]])
        expected = np.concatenate(everyone, axis)
        assert bits_of(self.group.all_gather(value, axis)) == bits_of(expected)
        got = self.group.gather(value, case.root, axis)
        assert (got is None) if self.rank != case.root else (bits_of(got) == bits_of(expected))

    def batch(self):
        """Batches on several destinations of each process."""
        case, ops = self.case, self.random.choice(self.ops)
        pairs, everyones = [], []
        for index in range(self.random.choice((1, 3))):
            own, everyone = self.values(case.specs(), "row_major", salt=index)
            pairs.append((treefold.PerReplica(own), ["cpu:0", "cpu:1"]))
            everyones.append(everyone)
        for got, everyone in zip(ops.batch_reduce(case.op, pairs), everyones, strict=True):
            for one in got.values:
                self.assert_alike(one, lambda everyone=everyone: self.expected(everyone()))

    def sparse(self):
        """Rows of IndexedSlices beside dense arrays; some ranks bring none."""
        case = self.case
        case.op = self.random.choice(("sum", "mean"))
        dtype, dense = case.dtype(), (case.dtype(), (self.random.choice((3, 6000)),))
        everyone = []
        for replica in range(sum(case.replicas)):
            rows = self.random.choice((0, 0, 1, 3, 900))
            values = contribution(case.seed, replica, 0, dtype, (rows, 3))
            indices = (np.arange(rows, dtype=np.int64) * 7 + replica) % 50
            sparse = treefold.IndexedSlices(values, indices, (50, 3))
            everyone.append([sparse, contribution(case.seed, replica, 1, *dense)])
        own = everyone[self.first() : self.first() + case.replicas[self.rank]]
        got = self.group.all_reduce(self.brought(own), case.op)

        def plain(value):
            return [value[0].values, value[0].indices, value[1]]

        self.assert_alike(plain(got), lambda: plain(self.expected(everyone, accumulate="exact")))

    def values(self, specs, layout, salt=0):
        """Return this rank's values, and a function that returns those of all replicas."""
        case = self.case
        replicas = range(sum(case.replicas))
        if layout == "one array as all replicas":
            replicas = [sum(case.replicas[:rank]) for rank, count in enumerate(case.replicas) for _ in range(count)]

        def brings(replica):
            made = [contribution(case.seed + salt, replica, leaf, *spec) for leaf, spec in enumerate(specs)]
            if layout == "broadcast":
                made = [np.full(one.shape, one.reshape(-1)[0]) if one.size else one for one in made]
            return structured(made)

        def everyone():
            return [brings(replica) for replica in replicas]

        own = [brings(replica) for replica in replicas[self.first() : self.first() + case.replicas[self.rank]]]
        if layout == "one array as all replicas":
            return own[:1] * len(own), everyone
        return [structured([self.laid_out(leaf, layout) for leaf in flatten(value)[0]]) for value in own], everyone

    def laid_out(self, leaf, layout):
        """Return an array of these values that lies in memory as the layout says."""
        if layout != "in the group's memory":
            return Hostile(leaf, layout).array
        array = self.group.empty(leaf.shape, leaf.dtype)
        array[...] = leaf
        return array

    def result(self, dtype):
        return Fold(ReduceOp.parse(self.case.op), self.case.accumulate).result_dtype(dtype)

    def first(self):
        return sum(self.case.replicas[: self.rank])

    def brought(self, own, out=None):
        """Return a rank's replicas as it brings them: one by itself, as ``out`` may be."""
        if out is not None and len(own) == 1 and out is own[0]:
            return out
        return treefold.PerReplica(list(own)) if len(own) > 1 else own[0]

    def drawn_weights(self):
        """Return a weight for each replica of all ranks, some of them 0, or None."""
        case = self.case
        if case.op != "mean" or self.random.choice((0, 0, 1)):
            return None
        weights = [self.random.choice((0.0, 1.0, 0.5, 3.0, 1e-3, 7.25)) for _ in range(sum(case.replicas))]
        weights[self.random.randrange(len(weights))] = 2.0
        return weights

    def expected(self, everyone, weights=None, accumulate=None):
        alone = self.alone if accumulate is None else _ALONE[accumulate]
        value = treefold.PerReplica(list(everyone))
        return alone.reduce(self.case.op, value, "cpu:0", weights=weights).values[0]


_ALONE = {mode: HierarchicalCopyAllReduce(accumulate=mode) for mode in ("exact", "native")}
