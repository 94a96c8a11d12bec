"""Plans written as MSCCL XML, and read again by a reader that knows nothing of plans."""

import itertools
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from treefold.errors import ExportError
from treefold.export.msccl import to_msccl
from treefold.export.msccl_algorithm import MAX_BLOCKS, MAX_CHANNELS, MAX_COUNT, MAX_STEPS
from treefold.export.msccl_run import prove_msccl
from treefold.export.msccl_xml import read_msccl, write_msccl_xml
from treefold.plan import finish
from treefold.plan.ir import Goal, Leaf
from treefold.planners.builder import LeafWork, PlanBuilder
from treefold.planners.methods import one_array, plan_along, plan_one_shot, plan_star, plan_two_level, plan_two_shot
from treefold.planners.ring import ring_trees, two_rings
from treefold.planners.star import add_broadcast
from treefold.topology import known_topology

MACHINES = [
    ("p3_8xlarge", None), ("dgx1_v100", 1), ("dgx1_v100", 8), ("dgx1_p100", 6), ("ring:8", None), ("line:5", 3),
    ("dgx_a100", None), ("dgx2", 16), ("mi250", 8), ("mi300x", None), ("pcie3_8gpu", 4), ("a100_pcie_8gpu", None),
    ("2x8_a100", 8),
]  # fmt: skip
GPUS = [f"gpu:{n}" for n in range(8)]


def steps(algorithm):
    """Return every step with its GPU and block."""
    return [
        (rank, number, step)
        for rank, gpu in enumerate(algorithm.gpus)
        for number, block in enumerate(gpu.blocks)
        for step in block.steps
    ]


class TestToMsccl:
    @pytest.mark.parametrize(("name", "packs"), MACHINES)
    def test_is_an_all_reduce_of_every_packing(self, packed, name, packs):
        """Every GPU ends with every contribution once, in place and out of place, whatever order the blocks run in."""
        text = to_msccl(packed(name, packs))
        algorithm = read_msccl(text)
        prove_msccl(algorithm)
        assert len(algorithm.gpus) == len(known_topology(name).devices)
        assert algorithm.in_place
        assert algorithm.out_of_place

    @pytest.mark.parametrize("count", [2, 3, 5, 8])
    @pytest.mark.parametrize(
        "plan",
        [
            plan_one_shot,
            plan_two_shot,
            plan_star,
            plan_two_level,
            lambda work: plan_two_level(work, 3),
            lambda work: plan_along(work, ring_trees(work[0].sources), "ring"),
            lambda work: plan_along(work, two_rings(work[0].sources), "two rings"),
        ],
        ids=["one shot", "two shots", "star", "two levels", "two levels, 3 packs", "ring", "two rings"],
    )
    def test_is_an_all_reduce_of_every_method(self, plan, count):
        """Not only trees: whatever the plan, its copies and folds come out right."""
        work = one_array(GPUS[:count], length=2 * 3 * count)
        prove_msccl(read_msccl(to_msccl(plan(work))))

    @pytest.mark.parametrize(("name", "packs"), MACHINES)
    def test_stays_within_the_interpreters_limits(self, packed, name, packs):
        """Blocks, steps, channels and counts are what RCCL takes, and each end of a connection has one block."""
        algorithm = read_msccl(to_msccl(packed(name, packs)))
        assert algorithm.channels <= MAX_CHANNELS == 32
        assert max(len(gpu.blocks) for gpu in algorithm.gpus) <= MAX_BLOCKS == 64
        assert max(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks) <= MAX_STEPS == 64
        assert max(step.count for *_, step in steps(algorithm)) <= MAX_COUNT == 71
        for gpu, end in itertools.product(algorithm.gpus, ("send", "recv")):
            used = [(getattr(block, end), block.channel) for block in gpu.blocks if getattr(block, end) >= 0]
            assert len(set(used)) == len(used)

    def test_has_channels_of_its_own_for_the_two_ways_of_each_pack(self, packed):
        """Eight packs take sixteen channels; then a block never waits for another pack."""
        algorithm = read_msccl(to_msccl(packed("dgx1_v100", 8)))
        assert algorithm.channels == 16
        assert {len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks} == {1}

    def test_sends_on_what_arrives_without_storing_it(self, packed):
        """A chain folds in passing: in the middle of it one step receives, reduces and sends."""
        algorithm = read_msccl(to_msccl(packed("line:4", 1)))
        kinds = sorted(step.type for *_, step in steps(algorithm))
        assert "rrs" in kinds or "rrc" in kinds
        assert "re" not in kinds
        assert sum(step.type in {"s", "rrs", "rcs", "rrcs"} for *_, step in steps(algorithm)) == 2 * 3

    def test_waits_for_more_than_one_with_nops(self):
        """A step names one other to wait for; a nop names each further one, and the last is the step's own."""
        algorithm = read_msccl(to_msccl(plan_two_level(one_array(GPUS, length=2))))
        for gpu in algorithm.gpus:
            for block in gpu.blocks:
                for step, after in zip(block.steps, [*block.steps[1:], None], strict=True):
                    assert step.type != "nop" or (after is not None and after.after is not None)

    def test_is_written_as_the_parsers_read_it(self, packed):
        """One space between attributes, no declaration, no comment; the attributes of RCCL's own files."""
        lines = to_msccl(packed("ring:4"), name='a"b', min_bytes=1024, max_bytes=2048).splitlines()
        assert lines[0] == (
            '<algo name="a&quot;b" proto="Simple" nchannels="8" nchunksperloop="4" ngpus="4" coll="allreduce" '
            'inplace="1" outofplace="1" minBytes="1024" maxBytes="2048">'
        )
        step = re.compile(
            r'      <step s="\d+" type="\w+" srcbuf="[ios]" srcoff="-?\d+" dstbuf="[ios]" dstoff="-?\d+" cnt="\d+" '
            r'depid="-?\d+" deps="-?\d+" hasdep="[01]"/>'
        )
        assert all(step.fullmatch(line) for line in lines if "<step" in line)

    def test_splits_what_is_more_than_a_step_can_take(self):
        """A hundred chunks in one copy are two steps of at most 71."""
        shares = [Fraction(100, 201), Fraction(100, 201), Fraction(1, 201)]
        trees = [replace(tree, share=share) for tree, share in zip(ring_trees(GPUS[:3]), shares, strict=True)]
        plan = plan_along(one_array(GPUS[:3], length=201), trees, "ring")
        assert {step.count for *_, step in steps(read_msccl(to_msccl(plan)))} == {71, 29, 1}

    def test_reads_back_what_it_writes(self, packed):
        """Writing and reading are inverse."""
        text = to_msccl(packed("dgx1_v100", 4))
        assert write_msccl_xml(read_msccl(text)) == text


class TestRefusedPlans:
    def test_of_another_collective(self):
        """MSCCL's reduce and broadcast have a root that this export does not know."""
        work = LeafWork(Leaf("x", "float32", Goal.COPY), (4,), ("gpu:0",), ("gpu:1",))
        builder = PlanBuilder([work])
        add_broadcast(builder, 0)
        words = {"algorithm": "a", "executor": "local", "kernel": "", "accumulate": "wide", "notes": ()}
        plan = finish(builder.draft(collective="broadcast", **words))
        with pytest.raises(
            ExportError,
            match=r"^This plan is a broadcast of 1 array\. MSCCL is written for the all_reduce of one array: plan "
            r"that, for example with planners\.tree_packing\.plan_trees\.$",
        ):
            to_msccl(plan)

    def test_of_replicas_that_share_a_device(self):
        """In MSCCL a rank is a GPU."""
        plan = plan_star(one_array(["gpu:0", "gpu:0", "gpu:1"], length=2))
        with pytest.raises(
            ExportError,
            match=r"^gpu:0 has 2 inputs and 2 outputs\. In MSCCL every GPU brings one value and gets one result: place "
            r"one replica on each device\.$",
        ):
            to_msccl(plan)

    def test_that_need_too_many_chunks(self):
        """Packs of one element beside packs of thousands need chunks of one element."""
        plan = plan_two_shot(one_array(GPUS[:3], length=5000))
        with pytest.raises(
            ExportError,
            match=r"^The plan's packs need 5000 chunks of equal size and at most 4096 are written\. Plan fewer packs, "
            r"or a length that their shares divide\.$",
        ):
            to_msccl(plan)

    def test_that_need_too_many_blocks(self):
        """A root of 40 devices has a block for each on its way up, and one for each on its way down."""
        plan = plan_star(one_array([f"gpu:{n}" for n in range(40)], length=1))
        with pytest.raises(
            ExportError,
            match=r"^The algorithm needs 78 thread blocks on a GPU; RCCL and MSCCL take 64\. Plan fewer packs\.$",
        ):
            to_msccl(plan)
