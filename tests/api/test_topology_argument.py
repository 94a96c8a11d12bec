"""``topology=``: packs travel along the trees of the machine that is named, and nothing else changes."""

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

import treefold
from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
)
from treefold.backends import additional_backend
from treefold.errors import ArgumentError, TopologyError
from treefold.ops import planning
from treefold.plan.ir import Role
from treefold.testing import FakeBackend, RecordingBackend, assert_same_bits, owned, owned_sum
from treefold.topology import with_nvlinks

MACHINE = treefold.known_topology("dgx1_v100")


@pytest.fixture
def fake():
    with additional_backend(FakeBackend(8)) as backend:
        yield backend


def values(fake, shape=(1000,), dtype="float32", devices=range(8)):
    return PerReplica([fake.array(owned(r, shape, dtype), f"gpu:{device}") for r, device in enumerate(devices)])


def pack_sizes(plan):
    """Return the elements of each pack, from what arrives in the outputs of the first leaf's first component."""
    sizes = {}
    first = [i for i, b in enumerate(plan.buffers) if b.role is Role.OUTPUT and (b.leaf, b.position) == (0, 0)]
    for step in plan.steps:
        for action in step.actions:
            if action.target.buffer in first:
                sizes[action.pack] = sizes.get(action.pack, 0) + action.target.length
    return [sizes[pack] for pack in sorted(sizes)]


@pytest.mark.parametrize("num_packs", [0, 1, 4, "auto"])
@pytest.mark.parametrize("devices", [range(8), range(3), (5, 0, 3, 6, 2), (1, 1, 5)])
def test_every_contribution_arrives(fake, devices, num_packs):
    ops = HierarchicalCopyAllReduce(num_packs, topology=MACHINE)
    shapes, dtypes = [(1000,), (7, 3), (), (0,)], ["float32", "float16", "int32", "float32"]
    batch = [values(fake, shape, dtype, devices) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for result, shape, dtype in zip(
        ops.batch_reduce("sum", [(value, value) for value in batch]), shapes, dtypes, strict=True
    ):
        for array in result.values:
            assert_same_bits(array.data, owned_sum(len(devices), shape, dtype))


def test_copies_go_along_links_only(fake):
    plan = HierarchicalCopyAllReduce(6, topology=MACHINE).plan(values(fake), values(fake))
    assert plan.hops
    for hop in plan.hops:
        assert MACHINE.capacity(hop.source, hop.target) > 0
    star = ReductionToOneDevice().plan(values(fake), values(fake))
    assert any(not MACHINE.capacity(hop.source, hop.target) for hop in star.hops)


def test_a_number_of_packs_is_that_many_of_equal_size(fake):
    equal = HierarchicalCopyAllReduce(3, topology=MACHINE).plan(values(fake, (999,)), values(fake))
    assert pack_sizes(equal) == [333, 333, 333]


def test_auto_goes_by_size():
    """Small values go at once to everybody, large ones along trees that fill the links, by their shares."""
    with additional_backend(RecordingBackend(8)) as backend:
        plans = []
        for length in (256, 1 << 26):
            value = PerReplica([backend.empty((length,), "float32", f"gpu:{r}") for r in range(8)])
            plans.append(HierarchicalCopyAllReduce("auto", topology=MACHINE).plan(value, value))
    small, large = plans
    assert len(small.hops) == 8 * 7
    assert small.guarantee == "replica_order"
    assert all(MACHINE.capacity(hop.source, hop.target) > 0 for hop in large.hops)
    sizes = pack_sizes(large)
    assert len(sizes) > 1
    assert sum(sizes) == 1 << 26
    sent = Counter()
    for hop in large.hops:
        sent[hop.source, hop.target] += hop.nbytes
    slowest = max(nbytes / MACHINE.capacity(*link) for link, nbytes in sent.items())
    optimum = Fraction(4 << 26) / treefold.optimal_packing(MACHINE).algbw
    assert slowest <= optimum * Fraction(1001, 1000)


def test_no_packing_sends_each_value_whole_along_one_tree(fake):
    batch = [(value, value) for value in (values(fake, (length,)) for length in (700, 1000, 3))]
    plan = HierarchicalCopyAllReduce(0, topology=MACHINE).plan(batch)
    assert plan.num_packs == 3
    assert HierarchicalCopyAllReduce(1, topology=MACHINE).plan(batch).num_packs == 1


def test_packs_of_bytes_are_spread_over_the_trees(fake):
    ops = HierarchicalCopyAllReduce("auto", topology=MACHINE)
    value = PerReplica([{f"w{i}": fake.array(owned(r, (50,)), f"gpu:{r}") for i in range(12)} for r in range(8)])
    plan = ops.plan(value, value, CommunicationOptions(bytes_per_pack=200))
    assert plan.num_packs == 12
    roots = {action.target.buffer for step in plan.steps for action in step.actions if getattr(action, "final", False)}
    assert len({plan.buffers[index].device for index in roots}) > 1


def test_packs_of_bytes_go_by_the_bytes_of_all_of_them(fake):
    ops = HierarchicalCopyAllReduce("auto", topology=MACHINE)
    options = CommunicationOptions(bytes_per_pack=2**20)
    for lengths, is_direct in (((512, 512), True), ((512, 513), False)):
        batch = [(value, value) for value in (values(fake, (length,)) for length in lengths)]
        plan = ops.plan(batch, None, options)
        assert (len({(hop.source, hop.target) for hop in plan.hops}) == 8 * 7) == is_direct


def test_may_be_named_or_read_from_a_file(fake, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINE.to_json()))
    plans = [
        HierarchicalCopyAllReduce("auto", topology=machine).plan(values(fake), values(fake))
        for machine in (MACHINE, "dgx1_v100", path, str(path))
    ]
    assert all(plan.hops == plans[0].hops for plan in plans)
    ops = AllReduceCrossDeviceOps("hierarchical_copy", "auto", topology="dgx1_v100")
    assert ops.plan(values(fake), values(fake)).hops == plans[0].hops
    assert repr(ops) == (
        "AllReduceCrossDeviceOps(all_reduce_alg='hierarchical_copy', num_packs='auto', topology='dgx1_v100')"
    )


def test_a_file_without_its_nvlinks_is_a_note_of_the_plan(fake):
    """Trees over the links in a file may not be the machine's best, and the plan has a note about it."""
    slots = "".join(
        f'<pci busid="0000:{r}0:00.0" class="0x030200" vendor="0x10de" device="0x2330"/>' for r in range(1, 9)
    )
    bare = treefold.load_topology(f'<system version="1"><cpu numaid="0">{slots}</cpu></system>')
    plan = HierarchicalCopyAllReduce("auto", topology=bare).plan(values(fake), values(fake))
    assert plan.notes == (
        "NVLinks are missing from this file: its GPUs are H100 SXM; the trees use the links that are there.",
    )
    whole = HierarchicalCopyAllReduce("auto", topology=with_nvlinks(bare, "dgx_h100"))
    assert whole.plan(values(fake), values(fake)).notes == ()


def test_host_memory_is_folded_as_ever():
    arrays = [np.random.default_rng(r).standard_normal(500).astype("float32") for r in range(4)]
    machine = treefold.load_topology(
        '{"devices": ["cpu:0", "cpu:1", "cpu:2", "cpu:3"], "links": [{"between": ["cpu:0", "cpu:1"], "gb_per_s": 10},'
        '{"between": ["cpu:1", "cpu:2"], "gb_per_s": 10}, {"between": ["cpu:2", "cpu:3"], "gb_per_s": 10}]}'
    )
    value = PerReplica(arrays)
    result = HierarchicalCopyAllReduce("auto", topology=machine).reduce("mean", value, value)
    assert_same_bits(result.values[0], HierarchicalCopyAllReduce().reduce("mean", value, value).values[0])
    assert result.plan.executor == "host"


class TestErrors:
    @pytest.mark.parametrize("make", [ReductionToOneDevice, NcclAllReduce, AllReduceCrossDeviceOps])
    def test_ops_that_follow_none(self, make):
        with pytest.raises(ArgumentError) as caught:
            make(topology="dgx1_v100")
        assert str(caught.value) == (
            f"{make.__name__} does not follow a topology: it reduces each pack on one device. Leave topology out, or "
            "use HierarchicalCopyAllReduce(topology=...)."
        )

    def test_devices_that_the_machine_does_not_have(self):
        ops = HierarchicalCopyAllReduce("auto", topology=MACHINE)
        arrays = PerReplica([np.ones(3), np.ones(3)])
        with pytest.raises(TopologyError, match=r"^There is no cpu:0, cpu:1 in this topology\. It has gpu:0"):
            ops.reduce("sum", arrays, arrays)

    def test_devices_that_the_machine_does_not_have_may_bring_values_to_one_of_their_own(self):
        arrays = PerReplica([owned(replica, (3,)) for replica in range(3)])
        [total] = HierarchicalCopyAllReduce("auto", topology=MACHINE).reduce("sum", arrays, "cpu:1")
        assert_same_bits(total, owned_sum(3, (3,)))


def test_packs_that_no_tree_was_cut_for_take_turns():
    shares = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8))
    for start in (0, 7, 1000):
        taken = Counter(planning._in_turn(shares, number) for number in range(start, start + 64))
        assert all(abs(taken[index] - 64 * share) <= 2 for index, share in enumerate(shares))
