import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from folding_cases import (
    FLOATS,
    NUMBERS,
    all_ops,
    batches,
    cases,
    counts,
    destinations,
    largest,
    options,
    replicas_of,
    seeds,
    shapes,
)
from hypothesis import given
from hypothesis import strategies as st

import treefold
from treefold import IndexedSlices, PerReplica
from treefold.testing import assert_same_bits, owned, owned_sum

Layer = namedtuple("Layer", ["kernel", "bias"])  # noqa: PYI024 - the plain kind is a case of its own


@dataclasses.dataclass
class Model:
    """A structure as users write them."""

    first: Any
    second: Any
    step: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """One that cannot be filled in afterwards."""

    inner: Any


#: How nodes are made of children.
NODES = st.sampled_from(
    [
        list,
        tuple,
        lambda children: {f"key {len(children) - i}": child for i, child in enumerate(children)},
        lambda children: OrderedDict((str(i), child) for i, child in enumerate(children)),
        lambda children: Layer(children[0], children[-1]),
        lambda children: Model(children[0], children[-1], None),
        lambda children: Frozen(children[0]),
    ]
)
leaf_specs = st.one_of(st.none(), st.tuples(shapes, st.sampled_from(["float32", "int16", "complex64", "float64"])))


@st.composite
def structures(draw, depth=3):
    """Draw a pytree with leaves that are (shape, dtype) or None."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return Leaf(draw(leaf_specs))
    make = draw(NODES)
    return make([draw(structures(depth - 1)) for _ in range(draw(st.integers(1, 3)))])


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Where a leaf stands, before it is filled."""

    spec: Any


def filled(node, make):
    """Return a structure with an array, or None, for every ``Leaf``; plain recursion, no pytree library."""
    if isinstance(node, Leaf):
        return None if node.spec is None else make(*node.spec)
    if isinstance(node, Layer):
        return Layer(*(filled(child, make) for child in node))
    if isinstance(node, dict):
        return type(node)((key, filled(child, make)) for key, child in node.items())
    if isinstance(node, list | tuple):
        return type(node)(filled(child, make) for child in node)
    if isinstance(node, Model | Frozen):
        fields = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
        return type(node)(**{name: None if child is None else filled(child, make) for name, child in fields.items()})
    raise AssertionError(node)


def assert_alike(got, expected):
    """Fail unless two structures agree in every type, key, order of keys, and leaf."""
    assert type(got) is type(expected)
    if expected is None:
        return
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        got, expected = list(got.values()), list(expected.values())
    elif isinstance(expected, Model | Frozen):
        names = [f.name for f in dataclasses.fields(expected)]
        got, expected = ([getattr(value, name) for name in names] for value in (got, expected))
    if isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_alike(one, other)
    else:
        assert_same_bits(got, expected)


class TestStructures:
    @cases(3.0)
    @given(st.data(), structures(), st.integers(1, 5))
    def test_come_back_as_they_were(self, data, structure, count):
        value = PerReplica([filled(structure, lambda s, d, r=r: owned(r, s, d)) for r in range(count)])
        where, _ = data.draw(destinations(count))
        expected = filled(structure, lambda shape, dtype: owned_sum(count, shape, dtype))
        for component in data.draw(all_ops()).reduce("sum", value, where, data.draw(options)):
            assert_alike(component, expected)

    @cases()
    @given(structures(), st.integers(1, 4))
    def test_are_broadcast_and_reduced_in_place(self, structure, count):
        one = filled(structure, lambda shape, dtype: owned(1, shape, dtype))
        copies = treefold.broadcast(one, [f"cpu:{index}" for index in range(count)])
        for copy in copies:
            assert_alike(copy, one)
        treefold.all_reduce(copies, out=copies)
        for copy in copies:
            assert_alike(copy, filled(structure, lambda s, d: np.asarray(owned(1, s, d) * np.array(count, d))))

    def test_keep_each_replicas_values_apart_when_keys_are_ordered_differently(self):
        one = {"b": np.array([1.0]), "a": np.array([10.0])}
        two = {"a": np.array([20.0]), "b": np.array([2.0])}
        result = treefold.all_reduce([one, two])[0]
        assert_alike(result, {"b": np.array([3.0]), "a": np.array([30.0])})


@st.composite
def sparse_rows(draw, count, dtype):
    """Draw rows for each replica, any number of them, with indices that repeat."""
    width, seed = draw(st.sampled_from([(), (3,), (2, 0), (2, 3)])), draw(seeds)
    dense_shape, kind = draw(st.sampled_from([None, (9, *width)])), draw(st.sampled_from(["int32", "int64"]))
    slices = []
    for replica in range(count):
        rows = draw(st.integers(0, 4))
        indices = np.random.default_rng(seed + replica).integers(0, 9, rows).astype(kind)
        slices.append(IndexedSlices(owned(replica, (rows, *width), dtype), indices, dense_shape))
    return slices


def concatenated(slices):
    """Return the sum of sparse rows: all of them, in replica order."""
    return np.concatenate([s.values for s in slices]), np.concatenate([s.indices for s in slices])


class TestSparse:
    @pytest.mark.parametrize("dtype", NUMBERS)
    @cases(0.3)
    @given(st.data(), counts)
    def test_rows_are_concatenated_in_replica_order(self, dtype, data, count):
        count = min(count, 8) if dtype == "float16" else count
        slices = data.draw(sparse_rows(count, dtype))
        where, devices = data.draw(destinations(count))
        result = data.draw(all_ops()).reduce("sum", PerReplica(slices), where)
        values, indices = concatenated(slices)
        assert len(result) == len(devices)
        for component in result:
            assert_same_bits(component.values, values)
            assert_same_bits(component.indices, indices)
            assert component.dense_shape == slices[0].dense_shape

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
    @cases(0.3)
    @given(st.data(), counts)
    def test_mixed_with_dense_gives_the_dense_sum(self, dtype, data, count):
        rng = np.random.default_rng(data.draw(seeds))
        dense, values = [], []
        for replica in range(count):
            indices = rng.integers(0, 6, 4)
            rows = IndexedSlices(owned(replica, (4, 2), dtype), indices, (6, 2))
            whole = np.zeros((6, 2), dtype)
            np.add.at(whole, indices, rows.values)
            dense.append(whole)
            values.append(rows if data.draw(st.booleans()) and replica else whole)
        assert_same_bits(treefold.all_reduce(values)[0], treefold.all_reduce(dense)[0])

    @pytest.mark.parametrize("dtype", FLOATS)
    @cases(0.3)
    @given(st.integers(2, 8), seeds)
    def test_made_dense_may_hold_any_value(self, dtype, count, seed):
        rows = replicas_of(seed, count, (5, 3), dtype)
        sparse = [IndexedSlices(values, np.arange(5), (5, 3)) for values in rows]
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value here
            dense = [rows[0], *(values + np.zeros((), dtype) for values in rows[1:])]
        assert_same_bits(treefold.all_reduce([rows[0], *sparse[1:]])[0], treefold.all_reduce(dense)[0])

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_made_dense_may_overflow(self, dtype):
        rows = IndexedSlices(np.repeat(largest(dtype), 2), np.array([1, 1]), (2,))
        got = treefold.all_reduce([np.zeros(2, dtype), rows])[0]
        assert_same_bits(got, np.array([0, np.inf], dtype))


class TestBatches:
    @cases(2.0)
    @given(st.data())
    def test_of_every_kind_come_back_right_and_in_order(self, data):
        count = min(data.draw(counts), 8)
        kinds = data.draw(st.lists(st.sampled_from(["float32", "float16", "int32", "sparse", "empty"]), max_size=12))
        batch, expected = [], []
        for kind in kinds:
            if kind == "sparse":
                slices = data.draw(sparse_rows(count, "float32"))
                batch.append(slices)
                expected.append(concatenated(slices))
            else:
                shape = data.draw(st.sampled_from([(0,), (2, 0)])) if kind == "empty" else data.draw(shapes)
                dtype = "float32" if kind == "empty" else kind
                batch.append([owned(replica, shape, dtype) for replica in range(count)])
                expected.append((owned_sum(count, shape, dtype),))
        pairs = [(PerReplica(value), PerReplica([np.zeros(1)] * count)) for value in batch]
        results = data.draw(all_ops()).batch_reduce("sum", pairs, data.draw(options))
        assert len(results) == len(kinds)
        for kind, result, arrays in zip(kinds, results, expected, strict=True):
            for component in result:
                got = (component.values, component.indices) if kind == "sparse" else (component,)
                for one, other in zip(got, arrays, strict=True):
                    assert_same_bits(one, other)

    @cases()
    @given(st.data())
    def test_equal_one_structure_of_the_same_values(self, data):
        batch = data.draw(batches(NUMBERS))
        count = len(batch[0])
        trees = [{str(i): arrays[replica] for i, arrays in enumerate(batch)} for replica in range(count)]
        ops = data.draw(all_ops())
        tree = ops.reduce("mean", PerReplica(trees), "cpu:0")[0]
        results = ops.batch_reduce("mean", [(PerReplica(arrays), "cpu:0") for arrays in batch])
        for index, result in enumerate(results):
            assert_same_bits(result[0], tree[str(index)])
