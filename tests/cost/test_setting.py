"""A plan on a machine at a size, in closed form, and as chunks that wait for each other."""

import importlib
import itertools
from fractions import Fraction

import closed_forms
import pytest

from treefold.plan.ir import Concat, Goal, Leaf
from treefold.planners import LeafWork, PlanBuilder, add_concat
from treefold.planners.method import one_array
from treefold.planners.star import star
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.cost import simulate
from treefold.topology.cost.pipeline import make_tasks
from treefold.topology.cost.simulation import MovementTimes
from treefold.topology.planning.ring import ring_trees
from treefold.topology.planning.tree_packing import SpanningTree, along

LINE = {"bytes_per_s": 25e9, "alpha_s": 0.7e-6}


def gpus(count):
    return tuple(f"gpu:{number}" for number in range(count))


def chain_plan(count):
    """Return the plan that folds along a line of devices, from the last to the first, and back."""
    up = tuple(itertools.pairwise(gpus(count)[::-1]))
    tree = SpanningTree(Fraction(1), "gpu:0", up, tuple((b, a) for a, b in up[::-1]))
    return along([tree], "").movement(one_array(gpus(count)))


class TestEstimate:
    @pytest.mark.parametrize("num_chunks", [1, 2, 7, 1000])
    @pytest.mark.parametrize("depth", [1, 3])
    @pytest.mark.parametrize("nbytes", [1e3, 1e9])
    def test_of_a_chain_is_the_formula(self, depth, num_chunks, nbytes):
        """(2D + k − 1)·(alpha + m/(k·c)), whatever the size."""
        setting = MovementTimes(chain_plan(depth + 1), known_topology(f"line:{depth + 1}")).at(nbytes)
        expected = closed_forms.pipelined_tree_s(nbytes, depth=depth, num_chunks=num_chunks, **LINE)
        assert setting.estimate_s(num_chunks) == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("nbytes", [1e3, 1e9])
    def test_of_a_ring_is_the_formula(self, nbytes):
        """2·(n − 1) steps of a n-th part each."""
        movement = along(ring_trees(gpus(4)), "ring").movement(one_array(gpus(4)))
        setting = MovementTimes(movement, known_topology("ring:4:50")).at(nbytes)
        expected = closed_forms.ring_s(nbytes, count=4, bytes_per_s=50e9, alpha_s=0.7e-6)
        assert setting.estimate_s(1) == pytest.approx(expected, rel=1e-5)

    def test_scales_with_the_bytes_of_the_movement(self):
        machine = known_topology("dgx1_v100")
        tree = along(ring_trees(gpus(4)), "ring")
        few, many = (tree.movement(one_array(gpus(4), length)) for length in (4, 2**22))
        for nbytes in (1e5, 1e9):
            prices = [MovementTimes(movement, machine).at(nbytes).estimate_s(1) for movement in (few, many)]
            assert prices[0] == pytest.approx(prices[1], rel=1e-9)

    def test_chooses_the_number_of_chunks(self):
        """The number of chunk*; one if nothing is sent, and no more than 4,096 if latency costs nothing."""
        machine = known_topology("line:3")
        best = closed_forms.best_chunk_bytes(1e9, depth=2, **LINE)
        assert MovementTimes(chain_plan(3), machine).at(1e9).best_num_chunks() == pytest.approx(1e9 / best, abs=1)
        assert MovementTimes(chain_plan(3), machine).at(0).best_num_chunks() == 1
        assert MovementTimes(chain_plan(3), machine).at(1e15).best_num_chunks() == 4096
        builder = TopologyBuilder("no latency").device("gpu:0").device("gpu:1")
        still = builder.link("gpu:0", "gpu:1", gb_per_s=25, alpha_us=0).build()
        assert MovementTimes(chain_plan(2), still).at(1e3).best_num_chunks() == 4096


class TestSimulation:
    def test_sends_each_share_along_its_own_route(self):
        """NVLink of 25 GB/s and a switch of 12 between two devices: 37 GB up and down take a second each."""
        builder = TopologyBuilder("two routes").device("gpu:0").device("gpu:1").switch("sw")
        builder.link("gpu:0", "gpu:1", gb_per_s=25, alpha_us=1, kind="nvlink")
        for device in gpus(2):
            builder.link(device, "sw", gb_per_s=12, alpha_us=5, kind="pcie")
        line = simulate(star("gpu:0").movement(one_array(gpus(2))), builder.build(), 37e9, chunk_bytes=None)
        assert line.duration_s == pytest.approx(2, rel=0.01)
        assert line.links["gpu:1", "gpu:0"].nbytes == pytest.approx(25e9, rel=0.01)
        assert line.links["gpu:1", "sw"].nbytes == pytest.approx(12e9, rel=0.01)

    @pytest.mark.parametrize(("num_chunks", "shown"), [(35, 35), (36, 36), (37, 24), (72, 24)])
    def test_draws_out_what_is_half_as_long_again(self, monkeypatch, num_chunks, shown):
        """With room for 24 chunks, 36 are followed one by one; of 37, 24 stand for them all."""
        monkeypatch.setattr(importlib.import_module("treefold.topology.cost.simulation"), "_MOST_SPANS", 1)
        line = simulate(chain_plan(2), known_topology("line:2"), 1e9, chunk_bytes=1e9 / num_chunks)
        assert line.num_chunks == num_chunks
        assert {len(activity.spans) for activity in line.activities} == {shown}
        assert line.chunks_per_span == pytest.approx(num_chunks / shown)


class TestTasks:
    def test_wait_for_their_chunk_alone(self):
        """Down the chain chunk i needs i + 1 chunks of what came up, so that both are in flight together."""
        tasks = make_tasks(chain_plan(2))
        assert len([task for task in tasks if task.travels]) == 2
        needs = {tuple(need.counts(4).tolist()) for task in tasks for need in task.needs}
        assert needs == {(1, 2, 3, 4)}

    def test_wait_for_nothing_that_they_do_not_touch(self):
        """Of two arrays laid behind each other, the first half needs nothing of the copy that brings the second."""
        work = (LeafWork(Leaf("float32", Goal.GATHER), (10, 10), gpus(2), gpus(2)),)
        builder = PlanBuilder(work)
        add_concat(builder, 0, "gpu:0")
        tasks = make_tasks(builder.movement())
        [laid] = [task for task in tasks if isinstance(task.action, Concat) and len(task.action.sources) == 2]
        assert [need.counts(2).tolist() for need in laid.needs] == [[0, 2]]
