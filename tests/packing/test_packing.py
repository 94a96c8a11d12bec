import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold import AllReduceCrossDeviceOps, CommunicationOptions, HierarchicalCopyAllReduce, PerReplica
from treefold.dtypes import itemsize
from treefold.plan.ir import Combine
from treefold.planners.packing import Fragment, Item, Pack, PackingPolicy


def items(*lengths, dtype="float32"):
    return [Item(leaf, dtype, length) for leaf, length in enumerate(lengths)]


def sizes(policy, lengths, num_devices=4):
    return [pack.length for pack in policy.packs(items(*lengths), num_devices)]


def contents(policy, values, num_devices=4):
    return [[f.leaf for f in pack.fragments] for pack in policy.packs(values, num_devices)]


def packs_by_dtype(policy, values):
    """Return the dtypes and the packs of each, those of a dtype standing together, on four devices."""
    groups = itertools.groupby(policy.packs(values, 4), key=lambda pack: pack.dtype)
    return [(dtype, list(packs)) for dtype, packs in groups]


class TestNumPacks:
    @pytest.mark.parametrize(
        ("total", "num_packs", "expected"),
        [
            (10, 1, [10]),
            (10, 3, [4, 3, 3]),
            (10, 4, [3, 3, 2, 2]),
            (3, 5, [1, 1, 1]),
            (1, 8, [1]),
            (0, 2, []),
            (7, 7, [1] * 7),
            (16, 8, [2] * 8),
            (17, 8, [3] + [2] * 7),
        ],
    )
    def test_gives_packs_of_nearly_one_size(self, total, num_packs, expected):
        """Sizes differ by at most one element, larger first; TensorFlow gives the last pack the whole remainder."""
        assert sizes(PackingPolicy(num_packs=num_packs), [total]) == expected

    def test_cuts_values_where_it_must(self):
        assert PackingPolicy(num_packs=3).packs(items(4, 0, 1, 5), 4) == (
            Pack("float32", (Fragment(0, 0, 4),)),
            Pack("float32", (Fragment(2, 0, 1), Fragment(3, 0, 2))),
            Pack("float32", (Fragment(3, 2, 5),)),
        )

    def test_zero_packs_nothing(self):
        assert sizes(PackingPolicy(num_packs=0), [4, 0, 1, 5]) == [4, 1, 5]

    @pytest.mark.parametrize("num_devices", [1, 2, 5, 8])
    def test_auto_is_the_number_of_devices(self, num_devices):
        assert len(sizes(PackingPolicy(num_packs="auto"), [100], num_devices)) == num_devices

    def test_auto_counts_devices_and_not_replicas(self):
        value = PerReplica([np.zeros(9, "float32")] * 4, ["cpu:0", "cpu:0", "cpu:1", "cpu:1"])
        assert HierarchicalCopyAllReduce("auto").plan(value, value, walked=True).num_packs == 2

    def test_is_counted_per_dtype(self):
        values = [Item(0, "float16", 3), Item(1, "int32", 4), Item(2, "float16", 3)]
        packs = PackingPolicy(num_packs=2).packs(values, 4)
        expected = [("float16", 3), ("float16", 3), ("int32", 2), ("int32", 2)]
        assert [(pack.dtype, pack.length) for pack in packs] == expected


class TestBytesPerPack:
    @pytest.mark.parametrize(
        ("max_bytes", "expected"),
        [
            (1, [[0], [1], [2], [3], [4], [5]]),
            (4, [[0], [1], [2], [3], [4], [5]]),
            (8, [[0], [1], [2], [3], [4], [5]]),
            (12, [[0, 1], [2], [3], [4], [5]]),
            (20, [[0, 1], [2], [3], [4], [5]]),
            (24, [[0, 1, 2], [3], [4], [5]]),
            (40, [[0, 1, 2, 3], [4], [5]]),
            (1000, [[0, 1, 2, 3, 4, 5]]),
        ],
    )
    def test_is_never_exceeded_but_by_one_value_alone(self, max_bytes, expected):
        """Values of 4, 8 … 24 bytes; TensorFlow closes a pack only after it has exceeded its limit."""
        assert contents(PackingPolicy(bytes_per_pack=max_bytes), items(1, 2, 3, 4, 5, 6)) == expected

    def test_counts_bytes_and_not_elements(self):
        policy = PackingPolicy(bytes_per_pack=16)
        assert contents(policy, items(4, 4, 4, dtype="float16")) == [[0, 1], [2]]
        assert contents(policy, items(4, 4, 4, dtype="float64")) == [[0], [1], [2]]

    def test_leaves_out_values_without_elements(self):
        assert contents(PackingPolicy(bytes_per_pack=8), items(0, 1, 0, 1, 0, 1, 0)) == [[1, 3], [5]]
        assert contents(PackingPolicy(bytes_per_pack=8), items(0, 0)) == []

    def test_does_not_fill_an_earlier_pack_later(self):
        assert contents(PackingPolicy(bytes_per_pack=8), items(1, 9, 1, 1)) == [[0], [1], [2, 3]]


class TestAggregation:
    @pytest.mark.parametrize(
        ("lengths", "max_bytes", "max_group", "expected"),
        [
            ([8, 9, 12, 125], 40, 10, [[0, 1], [2], [3]]),
            ([1] * 15, 40, 10, [list(range(10)), [10, 11, 12, 13, 14]]),
            ([1] * 30, 40, 10, [list(range(10)), list(range(10, 20)), list(range(20, 30))]),
            ([1] * 7, 40, 1, [[i] for i in range(7)]),
            ([10, 10, 11], 40, 10, [[0, 1], [2]]),
            ([2, 2, 100, 3, 3, 3, 100, 1], 40, 10, [[0, 1, 3, 4, 5, 7], [2], [6]]),
            ([100, 2, 100], 40, 10, [[0], [1], [2]]),
            ([0, 1, 0, 1], 40, 10, [[1, 3]]),
            ([], 40, 10, []),
        ],
    )
    def test_groups_small_values_wherever_they_stand(self, lengths, max_bytes, max_group, expected):
        """Small is at most ``max_bytes``; a group holds at most ``max_group``, where TensorFlow's holds two more."""
        policy = PackingPolicy(agg_small_grads_max_bytes=max_bytes, agg_small_grads_max_group=max_group)
        assert contents(policy, items(*lengths)) == expected

    def test_takes_every_dtype_by_itself(self):
        values = [Item(0, "float32", 2), Item(1, "float16", 2), Item(2, "float32", 2), Item(3, "float16", 30)]
        policy = PackingPolicy(agg_small_grads_max_bytes=40, agg_small_grads_max_group=10)
        assert contents(policy, values) == [[0, 2], [1], [3]]

    @pytest.mark.parametrize(("max_bytes", "max_group"), [(0, 10), (40, 0), (0, 0)])
    def test_is_off_where_a_limit_is_zero(self, max_bytes, max_group):
        policy = PackingPolicy(agg_small_grads_max_bytes=max_bytes, agg_small_grads_max_group=max_group)
        assert contents(policy, items(1, 1)) == [[0], [1]]


class TestPrecedence:
    @pytest.mark.parametrize(
        ("num_packs", "max_bytes", "bytes_per_pack", "expected"),
        [
            (3, 40, 8, [2, 2, 2, 2]),
            (3, 40, 0, [3, 3, 2]),
            (0, 40, 8, [2, 2, 2, 2]),
            (0, 40, 0, [8]),
            (0, 0, 0, [1] * 8),
        ],
    )
    def test_is_bytes_then_packs_then_groups_then_none(self, num_packs, max_bytes, bytes_per_pack, expected):
        ops = AllReduceCrossDeviceOps("hierarchical_copy", num_packs, max_bytes)
        value = PerReplica([[np.zeros(1, "float32")] * 8] * 2)
        plan = ops.plan(value, value, CommunicationOptions(bytes_per_pack=bytes_per_pack), walked=True)
        folds = [action for step in plan.steps for action in step.actions if isinstance(action, Combine)]
        assert [action.target.length for action in folds] == expected
        assert [action.pack for action in folds] == list(range(plan.num_packs))

    def test_of_a_call_leaves_the_ops_as_they_were(self):
        policy = PackingPolicy(num_packs=3)
        assert policy.with_bytes_per_pack(0) is policy
        assert policy.with_bytes_per_pack(8) == PackingPolicy(num_packs=3, bytes_per_pack=8)


POLICIES = st.builds(
    PackingPolicy,
    num_packs=st.one_of(st.integers(0, 20), st.just("auto")),
    agg_small_grads_max_bytes=st.integers(0, 60),
    agg_small_grads_max_group=st.integers(0, 5),
    bytes_per_pack=st.sampled_from([0, 0, 1, 7, 16, 100]),
)
VALUES = st.lists(
    st.tuples(st.sampled_from(["float16", "float32", "int64"]), st.integers(0, 40)), max_size=25
).map(lambda kinds: [Item(leaf, dtype, length) for leaf, (dtype, length) in enumerate(kinds)])  # fmt: skip


class TestPacks:
    @given(policy=POLICIES, values=VALUES, num_devices=st.integers(1, 17))
    def test_put_every_element_into_exactly_one_pack(self, policy, values, num_devices):
        packs = policy.packs(values, num_devices)
        found = sorted((f.leaf, e) for pack in packs for f in pack.fragments for e in range(f.start, f.stop))
        assert found == [(item.leaf, element) for item in values for element in range(item.length)]
        assert all(fragment.length > 0 for pack in packs for fragment in pack.fragments)
        assert all(pack.length > 0 for pack in packs)
        assert all(values[f.leaf].dtype == pack.dtype for pack in packs for f in pack.fragments)
        dtypes = [dtype for dtype, _ in itertools.groupby(packs, key=lambda pack: pack.dtype)]
        assert dtypes == list(
            dict.fromkeys(i.dtype for i in values if any(j.length for j in values if j.dtype == i.dtype))
        )

    @given(policy=POLICIES, values=VALUES)
    def test_keep_the_input_order(self, policy, values):
        aggregates = not policy.bytes_per_pack and policy.num_packs == 0
        for _dtype, packs in packs_by_dtype(policy, values):
            places = [[(f.leaf, f.start) for f in pack.fragments] for pack in packs]
            assert all(place == sorted(place) for place in places)
            assert [place[0] for place in places] == sorted(place[0] for place in places)
            if not aggregates:
                everything = list(itertools.chain.from_iterable(places))
                assert everything == sorted(everything)

    @given(values=VALUES, num_packs=st.integers(1, 20))
    def test_are_balanced(self, values, num_packs):
        for dtype, packs in packs_by_dtype(PackingPolicy(num_packs=num_packs), values):
            lengths = [pack.length for pack in packs]
            assert lengths == sorted(lengths, reverse=True)
            assert max(lengths, default=0) - min(lengths, default=0) <= 1
            total = sum(item.length for item in values if item.dtype == dtype)
            assert len(lengths) == min(num_packs, total)

    @given(values=VALUES, max_bytes=st.integers(1, 200))
    def test_keep_to_their_bytes(self, values, max_bytes):
        """A pack over the limit holds one value, and the first value of the next pack would not have fitted."""
        for _dtype, packs in packs_by_dtype(PackingPolicy(bytes_per_pack=max_bytes), values):
            nbytes = [pack.length * itemsize(pack.dtype) for pack in packs]
            assert all(n <= max_bytes or len(p.fragments) == 1 for n, p in zip(nbytes, packs, strict=True))
            following = [pack.fragments[0].length * itemsize(pack.dtype) for pack in packs[1:]]
            assert all(n + after > max_bytes for n, after in zip(nbytes, following, strict=False))

    @given(values=VALUES, max_bytes=st.integers(1, 60), max_group=st.integers(1, 5))
    def test_group_small_values_only(self, values, max_bytes, max_group):
        policy = PackingPolicy(agg_small_grads_max_bytes=max_bytes, agg_small_grads_max_group=max_group)
        for dtype, packs in packs_by_dtype(policy, values):
            is_small = [[f.length * itemsize(dtype) <= max_bytes for f in pack.fragments] for pack in packs]
            assert all(all(small) or len(small) == 1 for small in is_small)
            groups = [len(small) for small in is_small if all(small)]
            assert all(size == max_group for size in groups[:-1])
            assert max(groups, default=0) <= max_group
