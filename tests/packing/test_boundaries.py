"""Packing at the boundaries of limits, and without options."""

import dataclasses

import pytest

from treefold.planners.packing import Item, PackingPolicy


def packed(policy, *lengths):
    """Return the leaves of each pack of float32 values of these lengths, on two devices."""
    items = [Item(leaf, "float32", length) for leaf, length in enumerate(lengths)]
    return [[f.leaf for f in pack.fragments] for pack in policy.packs(items, 2)]


class TestLimits:
    @pytest.mark.parametrize(("max_bytes", "expected"), [(11, [[0], [1]]), (12, [[0, 1]]), (13, [[0, 1]])])
    def test_of_bytes_may_be_met(self, max_bytes, expected):
        assert packed(PackingPolicy(bytes_per_pack=max_bytes), 1, 2) == expected

    def test_of_one_byte_is_a_limit(self):
        """Every value alone, whatever else is asked for: 1 is not 0, which is none."""
        assert packed(PackingPolicy(num_packs=1, bytes_per_pack=1), 1, 1) == [[0], [1]]
        assert packed(PackingPolicy(num_packs=1, bytes_per_pack=0), 1, 1) == [[0, 1]]

    def test_of_one_pack_is_one_pack(self):
        assert packed(PackingPolicy(num_packs=1, agg_small_grads_max_bytes=4, agg_small_grads_max_group=1), 1, 1) == [
            [0, 1]
        ]

    @pytest.mark.parametrize(("max_bytes", "expected"), [(3, [[0], [1]]), (4, [[0, 1]])])
    def test_of_small_gradients_may_be_met(self, max_bytes, expected):
        policy = PackingPolicy(agg_small_grads_max_bytes=max_bytes, agg_small_grads_max_group=2)
        assert packed(policy, 1, 1) == expected

    def test_of_one_are_limits(self):
        ones = [Item(leaf, "int8", 1) for leaf in range(2)]
        assert len(PackingPolicy(agg_small_grads_max_bytes=1, agg_small_grads_max_group=2).packs(ones, 2)) == 1
        assert len(PackingPolicy(agg_small_grads_max_bytes=1, agg_small_grads_max_group=1).packs(ones, 2)) == 2


class TestDefaults:
    def test_of_a_policy_are_none(self):
        assert dataclasses.astuple(PackingPolicy()) == (0, 0, 0, 0)
        assert packed(PackingPolicy(), 1, 1) == [[0], [1]]

    def test_of_a_constructor_are_tensorflows(self):
        assert dataclasses.astuple(PackingPolicy.checked("ops", 3)) == (3, 0, 10, 0)
