from collections import Counter

import numpy as np
import pytest

from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce, PerReplica, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.planners import two_level_roots
from treefold.testing import FakeBackend, owned, owned_sum

ROOTS = {
    1: [(0, None)],
    3: [(0, 2), (1, 2), (2, 0)],
    5: [(0, 3), (1, 4), (2, 3), (3, 0), (4, 1)],
    7: [(0, 4), (1, 5), (2, 6), (3, 4), (4, 0), (5, 1), (6, 2)],
    9: [(0, 5), (1, 6), (2, 7), (3, 8), (4, 5), (5, 0), (6, 1), (7, 2), (8, 3)],
}


def tensorflow_roots(num_devices, index):
    """Return the pair of TensorFlow's ``hierarchical_copy``, which is right for even counts."""
    root = index % num_devices
    return root, (root + num_devices // 2) % num_devices


def hops_of(ops, sources, destinations, length=6):
    """Return the hops of a plan for one float32 array per replica, having run it and looked at what was copied."""
    with additional_backend(FakeBackend(12)) as fake:
        arrays = [fake.array(owned(r, (length,)), device) for r, device in enumerate(sources)]
        result = ops.reduce("sum", PerReplica(arrays), list(destinations))
    assert result.devices == tuple(destinations)
    assert [array.device for array in result] == list(destinations)
    for array in result:
        np.testing.assert_array_equal(array.data, owned_sum(len(sources), (length,)))
    done = Counter((hop.source, hop.target, hop.nbytes) for hop in fake.hops)
    assert done == Counter((hop.source, hop.target, hop.nbytes) for hop in result.plan.hops)
    return result.plan.hops


def gpus(*numbers):
    return tuple(f"gpu:{number}" for number in numbers)


def links(hops, pack=0):
    return [f"{hop.source[4:]} {hop.target[4:]}" for hop in hops if hop.pack == pack]


class TestTwoLevelRoots:
    @pytest.mark.parametrize("num_replicas", ROOTS)
    def test_rotate_from_pack_to_pack(self, num_replicas):
        assert [two_level_roots(num_replicas, index) for index in range(num_replicas)] == ROOTS[num_replicas]
        half = (num_replicas + 1) // 2
        assert all(head is None or (root < half) != (head < half) for root, head in ROOTS[num_replicas])

    @pytest.mark.parametrize("num_replicas", [2, 4, 6, 8, 10, 16])
    def test_are_those_of_tensorflow_for_even_counts(self, num_replicas):
        """So that on the machines it was made for, the pair shares a link."""
        indices = range(3 * num_replicas)
        found = [two_level_roots(num_replicas, index) for index in indices]
        assert found == [tensorflow_roots(num_replicas, index) for index in indices]

    @pytest.mark.parametrize("num_replicas", range(1, 18))
    def test_make_every_replica_a_root_once_a_round(self, num_replicas):
        found = [two_level_roots(num_replicas, index) for index in range(2 * num_replicas)]
        assert [root for root, _ in found] == [*range(num_replicas)] * 2
        assert found[:num_replicas] == found[num_replicas:]


class TestTwoLevel:
    @pytest.mark.parametrize("num_packs", [0, 1, 3, "auto"])
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    def test_costs_two_copies_per_device_but_one(self, num_replicas, num_packs):
        devices = gpus(*range(num_replicas))
        hops = hops_of(HierarchicalCopyAllReduce(num_packs), devices, devices, length=18)
        counts = Counter(hop.pack for hop in hops)
        assert set(counts.values()) <= {2 * (num_replicas - 1)}
        expected = {0: 1, "auto": num_replicas}.get(num_packs, num_packs)
        assert len(counts) == (expected if num_replicas > 1 else 0)

    def test_uses_these_links_between_five_devices(self):
        """Groups of three and two; pack 4 is rooted in the smaller one."""
        devices = gpus(*range(5))
        hops = hops_of(HierarchicalCopyAllReduce(5), devices, devices, length=10)
        assert links(hops, 0) == ["1 0", "2 0", "4 3", "3 0", "0 3", "0 1", "0 2", "3 4"]
        assert links(hops, 4) == ["0 1", "2 1", "3 4", "1 4", "4 1", "1 0", "1 2", "4 3"]

    @pytest.mark.parametrize("num_replicas", range(2, 10))
    def test_goes_down_the_links_that_it_came_up(self, num_replicas):
        devices = gpus(*range(num_replicas))
        for pack in range(num_replicas):
            hops = hops_of(HierarchicalCopyAllReduce("auto"), devices, devices, length=num_replicas)
            there = Counter((hop.source, hop.target) for hop in hops if hop.pack == pack)
            assert there == Counter((target, source) for source, target in there.elements())
            assert set(there.values()) == {1}

    @pytest.mark.parametrize("sources", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 1, 1, 1)])
    def test_folds_replicas_on_one_device_there(self, sources):
        hops = hops_of(HierarchicalCopyAllReduce(), gpus(*sources), gpus(0, 1))
        first, second = dict.fromkeys(sources)
        assert links(hops) == [f"{second} {first}", f"{first} {second}"]

    @pytest.mark.parametrize("seed", range(20))
    def test_goes_the_way_of_the_devices(self, seed):
        draw = np.random.default_rng(seed)
        count = int(draw.integers(2, 8))
        sources = [*range(count), *draw.integers(0, count, int(draw.integers(1, 9))).tolist()]
        draw.shuffle(sources)
        order = gpus(*dict.fromkeys(sources))
        shared = hops_of(HierarchicalCopyAllReduce("auto"), gpus(*sources), order, length=3 * count)
        alone = hops_of(HierarchicalCopyAllReduce("auto"), order, order, length=3 * count)
        assert [links(shared, pack) for pack in range(count)] == [links(alone, pack) for pack in range(count)]

    def test_folds_once_where_there_is_one_device(self):
        with additional_backend(FakeBackend(1)) as fake:
            value = PerReplica([fake.array(owned(r, (6,)), "gpu:0") for r in range(4)])
            result = HierarchicalCopyAllReduce().reduce("sum", value, "gpu:0")
        assert result.plan.proof.is_flat
        np.testing.assert_array_equal(result[0].data, owned_sum(4, (6,)))

    @pytest.mark.parametrize("destinations", [gpus(2, 1, 0), gpus(1, 2, 0), gpus(0, 0, 1, 2), gpus(2, 1, 1, 0, 2)])
    def test_delivers_in_the_order_of_the_destinations(self, destinations):
        assert len(hops_of(HierarchicalCopyAllReduce(), gpus(0, 1, 2), destinations)) == 4


class TestStar:
    @pytest.mark.parametrize("ops", [ReductionToOneDevice(), NcclAllReduce(num_packs=3)], ids=repr)
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    @pytest.mark.filterwarnings("ignore:NCCL is not used")
    def test_costs_two_copies_per_device_but_one(self, num_replicas, ops):
        devices = gpus(*range(num_replicas))
        hops = hops_of(ops, devices, devices)
        assert set(Counter(hop.pack for hop in hops).values()) <= {2 * (num_replicas - 1)}
        assert all("gpu:0" in {hop.source, hop.target} for hop in hops)

    def test_meets_on_the_first_destination(self):
        assert links(hops_of(ReductionToOneDevice(), gpus(0, 1, 2), gpus(2, 1))) == ["0 2", "1 2", "2 1"]

    def test_meets_on_the_device_that_is_named(self):
        ops = ReductionToOneDevice(reduce_to_device="gpu:7")
        assert links(hops_of(ops, gpus(0, 1), gpus(1, 0))) == ["0 7", "1 7", "7 1", "7 0"]

    def test_goes_to_other_devices(self):
        hops = hops_of(ReductionToOneDevice(), gpus(0, 1), gpus(5, 6, 5))
        assert links(hops) == ["0 5", "1 5", "5 6"]

    def test_carries_values_whose_destinations_are_not_their_devices(self):
        hops = hops_of(HierarchicalCopyAllReduce(3), gpus(0, 1, 2, 3), gpus(3, 0))
        assert links(hops) == ["0 3", "1 3", "2 3", "3 0"]

    def test_sends_nothing_on_one_device(self):
        assert hops_of(ReductionToOneDevice(), gpus(4, 4, 4), gpus(4)) == ()


class TestBatch:
    def test_rotates_roots_over_all_packs_of_all_dtypes(self):
        with additional_backend(FakeBackend(3)) as fake:
            kinds = ("float32", "int32", "float32", "float16")
            value = PerReplica([[fake.array(owned(r, (2,), k), d) for k in kinds] for r, d in enumerate(fake.devices)])
            movement = AllReduceCrossDeviceOps("hierarchical_copy", num_packs=0).plan(value, value)
        roots = [next(h.target for h in reversed(movement.hops) if h.pack == p and h.step == 3) for p in range(4)]
        assert roots == ["gpu:0", "gpu:1", "gpu:2", "gpu:0"]

    def test_packs_values_of_the_same_devices_only(self):
        with additional_backend(FakeBackend(4)) as fake:
            values = [
                PerReplica([fake.array(owned(r, (2,)), d) for r, d in enumerate(devices)])
                for devices in (gpus(0, 1), gpus(0, 1), gpus(2, 3), gpus(0, 1))
            ]
            pairs = [(value, value) for value in values[:3]] + [(values[3], "gpu:3")]
            movement = HierarchicalCopyAllReduce().plan(pairs)
            results = HierarchicalCopyAllReduce().batch_reduce("sum", pairs)
        assert movement.num_packs == 3
        assert Counter(hop.nbytes for hop in movement.hops) == {16: 2, 8: 4}
        assert [[array.data.tolist() for array in result] for result in results] == [[[3, 6]] * 2] * 3 + [[[3, 6]]]

    def test_gathers_along_a_star(self):
        with additional_backend(FakeBackend(3)) as fake:
            parts = [fake.array(owned(r, (r, 2)), d) for r, d in enumerate(fake.devices)]
            movement = HierarchicalCopyAllReduce().gather(PerReplica(parts), fake.devices, 0).plan
        assert [(hop.source, hop.target, hop.nbytes) for hop in movement.hops] == [
            ("gpu:1", "gpu:0", 8),
            ("gpu:2", "gpu:0", 16),
            ("gpu:0", "gpu:1", 24),
            ("gpu:0", "gpu:2", 24),
        ]

    def test_broadcasts_along_a_star(self):
        with additional_backend(FakeBackend(4)) as fake:
            movement = HierarchicalCopyAllReduce().broadcast(fake.array(owned(0, (2,)), "gpu:2"), fake.devices).plan
        assert links(movement.hops) == ["2 0", "2 1", "2 3"]
