import os

import pytest

from treefold import (
    AllReduceCrossDeviceOps,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
)
from treefold.backends import additional_backend
from treefold.testing import FakeBackend, owned

#: What proves sums exact; `make test-long` runs all tests with each.
PROOFS = {
    "flag": "native kernel, proved exact by the processor's flag",
    "integers": "native kernel, proved exact by exponents",
    "none": "native kernel, without its first tier",
}
HOST = f"""\
executor:  host ({PROOFS[os.environ.get("TREEFOLD_CERTIFICATE", "flag")]}), one pass
guarantee: exact - every element is the exact value, rounded once: the same bits in any order, packing and plan
"""
ORDERED = """\
executor:  local, step by step
guarantee: replica_order - every element is folded once, in replica order: the same bits whatever the packing or plan
"""
PER_PLAN = """\
executor:  local, step by step
guarantee: per_plan - the same bits on every destination and on every run of this plan
"""
STAR_STEPS = {
    1: "step 1: combine 1 part on {0} (16 B)",
    2: """\
step 1: copy {1}→{0} (16 B)
step 2: combine 2 parts on {0} (16 B)
step 3: copy {0}→{1} (16 B)""",
    3: """\
step 1: copy {1}→{0}, {2}→{0} (32 B)
step 2: combine 3 parts on {0} (16 B)
step 3: copy {0}→{1}, {0}→{2} (32 B)""",
}
TWO_LEVEL_STEPS = {
    1: STAR_STEPS[1],
    2: STAR_STEPS[2],
    3: """\
step 1: copy {1}→{0} (16 B)
step 2: combine 2 parts on {0} (16 B)
step 3: copy {2}→{0} (16 B)
step 4: combine 2 parts on {0} (16 B)
step 5: copy {0}→{2} (16 B)
step 6: copy {0}→{1} (16 B)""",
    5: """\
step 1: copy {1}→{0}, {2}→{0}, {4}→{3} (48 B)
step 2: combine 3 parts on {0}, 2 parts on {3} (32 B)
step 3: copy {3}→{0} (16 B)
step 4: combine 2 parts on {0} (16 B)
step 5: copy {0}→{3} (16 B)
step 6: copy {0}→{1}, {0}→{2}, {3}→{4} (48 B)""",
}


def headline(ops, count, devices, packs=" 1 pack,"):
    replicas = "1 replica" if count == 1 else f"{count} replicas"
    return f"all_reduce by {ops}: 1 array per replica, {replicas},{packs} on {', '.join(devices)}\n"


def on_hosts(ops, count, length=4, *, walked=False):
    value = PerReplica([owned(r, (length,)) for r in range(count)])
    return str(ops.plan(value, value, walked=walked))


def on_gpus(ops, count, length=4):
    with additional_backend(FakeBackend(count)) as fake:
        value = PerReplica([fake.array(owned(r, (length,)), device) for r, device in enumerate(fake.devices)])
        return str(ops.plan(value, value))


class TestStr:
    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    @pytest.mark.parametrize("ops", [ReductionToOneDevice(), HierarchicalCopyAllReduce()], ids=repr)
    def test_of_one_pass_on_the_host_has_no_steps(self, ops, count):
        devices = [f"cpu:{r}" for r in range(count)]
        s = "" if count == 1 else "s"
        one_pass = f"one pass:  fold {count} replica{s} into {count} result{s}, 1 array (16 B) each"
        assert on_hosts(ops, count) == headline(ops, count, devices, packs="") + HOST + one_pass

    @pytest.mark.parametrize("count", [3, 5])
    def test_of_the_tree_is_had_on_request(self, count):
        devices = [f"cpu:{r}" for r in range(count)]
        head = headline("HierarchicalCopyAllReduce(num_packs=1)", count, devices)
        steps = TWO_LEVEL_STEPS[count].format(*devices)
        assert on_hosts(HierarchicalCopyAllReduce(), count, walked=True) == head + PER_PLAN + steps

    def test_of_one_pass_over_a_batch(self):
        values = [PerReplica([owned(r, (4,), dtype) for r in range(3)]) for dtype in ("float32", "float64", "int8")]
        plan = HierarchicalCopyAllReduce().plan([(values[0], values[0]), (values[1], values[1]), (values[2], "cpu:0")])
        assert str(plan).splitlines()[3:] == [
            "one pass:  fold 3 replicas into 3 results, 2 arrays (48 B) each",
            "one pass:  fold 3 replicas into 1 result, 1 array (4 B) each",
        ]

    @pytest.mark.parametrize("count", STAR_STEPS)
    def test_of_a_star_on_devices(self, count):
        """A star meets every contribution at once, so it promises replica order on devices too."""
        devices = [f"gpu:{r}" for r in range(count)]
        expected = headline("ReductionToOneDevice()", count, devices) + ORDERED + STAR_STEPS[count].format(*devices)
        assert on_gpus(ReductionToOneDevice(), count) == expected

    @pytest.mark.parametrize(("count", "promise"), [(1, ORDERED), (2, ORDERED), (3, PER_PLAN), (5, PER_PLAN)])
    def test_of_two_levels_on_devices(self, count, promise):
        devices = [f"gpu:{r}" for r in range(count)]
        head = headline("HierarchicalCopyAllReduce(num_packs=1)", count, devices)
        steps = TWO_LEVEL_STEPS[count].format(*devices)
        assert on_gpus(HierarchicalCopyAllReduce(), count) == head + promise + steps

    def test_notes_that_nccl_is_not_used(self):
        expected = (
            headline("NcclAllReduce(num_packs=1)", 2, ["cpu:0", "cpu:1"], packs="")
            + HOST
            + "note:      NCCL is not used, because NCCL reduces between GPUs only: "
            + "each pack is reduced on one device, the documented fallback\n"
            + "one pass:  fold 2 replicas into 2 results, 1 array (16 B) each"
        )
        assert on_hosts(NcclAllReduce(), 2) == expected

    def test_counts_what_several_packs_do(self):
        text = on_hosts(AllReduceCrossDeviceOps("nccl", num_packs=3), 2, 3072, walked=True)
        assert text.splitlines()[-3:] == [
            "step 1: copy cpu:1→cpu:0 ×3 (12 KiB)",
            "step 2: combine 2 parts on cpu:0 ×3 (12 KiB)",
            "step 3: copy cpu:0→cpu:1 ×3 (12 KiB)",
        ]

    def test_shortens_long_lists(self):
        text = on_hosts(ReductionToOneDevice(), 12, walked=True)
        assert text.splitlines()[0].endswith("on cpu:0, cpu:1, cpu:2, cpu:3, cpu:4, cpu:5 … and 6 more")
        assert text.splitlines()[3] == (
            "step 1: copy cpu:1→cpu:0, cpu:2→cpu:0, cpu:3→cpu:0, cpu:4→cpu:0, cpu:5→cpu:0, cpu:6→cpu:0 … and 5 more"
            " (176 B)"
        )

    def test_shows_packing_of_several_arrays(self):
        with additional_backend(FakeBackend(2)) as fake:
            value = PerReplica([[fake.array(owned(r, (4,)), d)] * 2 for r, d in enumerate(fake.devices)])
            text = str(HierarchicalCopyAllReduce().plan(value, value))
        assert text.splitlines()[0].startswith(
            "all_reduce by HierarchicalCopyAllReduce(num_packs=1): 2 arrays per replica, 2 replicas, 1 pack, on gpu:0"
        )
        assert text.splitlines()[3:] == [
            "step 1: concat 2 parts on gpu:0, 2 parts on gpu:1 (64 B)",
            "step 2: copy gpu:1→gpu:0 (32 B)",
            "step 3: combine 2 parts on gpu:0 (32 B)",
            "step 4: copy gpu:0→gpu:1 (32 B)",
            "step 5: copy within gpu:0 ×2, within gpu:1 ×2 (64 B)",
        ]

    def test_of_a_broadcast(self):
        plan = ReductionToOneDevice().broadcast(owned(0, (4,)), ["cpu:0", "cpu:1"]).plan
        assert str(plan) == (
            "broadcast by ReductionToOneDevice: 1 array per replica, 1 replica, on cpu:0, cpu:1\n"
            "executor:  host, one pass\n"
            "guarantee: replica_order - every element is folded once, in replica order: the same bits whatever the"
            " packing or plan\n"
            "one pass:  copy 1 replica into 2 results, 1 array (16 B) each"
        )

    def test_of_sparse_rows(self):
        rows = [IndexedSlices(owned(r, (1, 2)), owned(r, (1,), "int64"), (4, 2)) for r in range(2)]
        plan = ReductionToOneDevice().reduce("sum", PerReplica(rows), "cpu:0").plan
        assert str(plan).splitlines()[0] == (
            "reduce by ReductionToOneDevice(): 2 arrays per replica, 2 replicas, on cpu:0, cpu:1"
        )
        assert str(plan).splitlines()[3:] == [
            "one pass:  lay 2 replicas behind each other into 1 result, 2 arrays (32 B) each"
        ]

    def test_of_an_accumulation_fn(self):
        assert on_hosts(ReductionToOneDevice(accumulation_fn=sum), 2).splitlines()[2] == (
            "guarantee: replica_order - what accumulation_fn returns, copied to every destination"
        )
