import random

import numpy as np
import pytest
from reference_clock import max_min_rates
from reference_clock import run_pipeline as run_slowly

from treefold._native import run_pipeline
from treefold.planners.method import one_array
from treefold.planners.star import two_shot
from treefold.topology import known_topology
from treefold.topology.cost.pipeline import Lanes
from treefold.topology.cost.simulation import MovementTimes
from treefold.topology.planning.ring import ring_trees
from treefold.topology.planning.tree_packing import along, along_packing, optimal_packing


def starts_of(lengths):
    """Return where ranges of these lengths begin, one behind the other, and where the last one ends."""
    return np.cumsum([0, *lengths]).astype(np.int32)


def random_lanes(seed):
    """Return arguments of the clock: tasks that need earlier ones, lanes over few resources, some of them alike."""
    draw = random.Random(seed)  # noqa: S311 - nothing is secret here
    num_tasks, num_resources, num_chunks = draw.randint(1, 9), draw.randint(1, 5), draw.randint(1, 4)
    task = sorted(draw.choices(range(num_tasks), k=draw.randint(1, 14)))
    used = [tuple(draw.sample(range(num_resources), draw.randint(0, min(3, num_resources)))) for _ in range(5)]
    resources = [draw.choice(used) for _ in task]
    needs = [draw.sample(range(number), draw.randint(0, min(2, number))) for number in range(num_tasks)]
    counts = [sorted(draw.choices(range(num_chunks + 1), k=num_chunks)) for need in needs for _ in need]
    return {
        "task": np.array(task, np.int32),
        "nbytes": np.array([draw.choice([0.0, 1.0, 2.0, 0.1, 7.5, 3.3]) for _ in task]),
        "alpha_s": np.array([draw.choice([0.0, 0.0, 0.3, 1.7]) for _ in task]),
        "resource_start": starts_of(len(found) for found in resources),
        "resources": np.array([resource for found in resources for resource in found], np.int32),
        "need_start": starts_of(len(need) for need in needs),
        "need_task": np.array([other for need in needs for other in need], np.int32),
        "need_counts": np.array(counts, np.int32).reshape(len(counts), num_chunks),
        "capacities": np.array([draw.choice([1.0, 10.0, 25.0]) for _ in range(num_resources)]),
    }


def planned_lanes(name, method, num_chunks, *, nbytes=2**26):
    """Return arguments of the clock for a movement on a machine, folding at 1 TB/s."""
    machine = known_topology(name)
    movement = method(machine).movement(one_array(machine.devices))
    setting = MovementTimes(movement, machine).at(nbytes)
    lanes = Lanes(machine, setting.load.tasks, setting.load.routes, counts_folds=True)
    return {
        "task": lanes.task,
        "nbytes": lanes.nbytes * (setting.scale / num_chunks),
        "alpha_s": lanes.alpha_s,
        "resource_start": lanes.resource_start,
        "resources": lanes.resources,
        "need_start": lanes.need_start,
        "need_task": lanes.need_task,
        "need_counts": lanes.need_counts(num_chunks),
        "capacities": np.array(lanes.link_capacities + [1e12] * lanes.num_devices),
    }


def run_both(given):
    """Return the starts and stops of every chunk by the native clock and by the reference."""
    shape = (2, len(given["task"]), given["need_counts"].shape[1])
    mine, theirs = np.full(shape, np.nan), np.full(shape, np.nan)
    run_pipeline(**given, starts=mine[0], stops=mine[1])
    run_slowly(**given, starts=theirs[0], stops=theirs[1])
    return mine, theirs


class TestClock:
    @pytest.mark.parametrize("block", range(10))
    def test_gives_every_chunk_the_times_of_the_reference(self, block):
        for seed in range(block * 40, block * 40 + 40):
            mine, theirs = run_both(random_lanes(seed))
            assert mine == pytest.approx(theirs, rel=1e-7, abs=1e-7, nan_ok=True), seed

    @pytest.mark.parametrize(
        ("name", "method", "num_chunks"),
        [
            ("dgx1_v100", lambda machine: along_packing(optimal_packing(machine)), 3),
            ("pcie3_8gpu", lambda machine: along_packing(optimal_packing(machine)), 4),
            ("a100_pcie_8gpu", lambda machine: two_shot(machine.devices), 2),
            ("mi250", lambda machine: along_packing(optimal_packing(machine, packs=4)), 1),
            ("ring:5", lambda machine: along(ring_trees(machine.devices), "ring"), 6),
        ],
    )
    def test_predicts_what_the_reference_does(self, name, method, num_chunks):
        """The end, to a billionth; single chunks, which rounding may order otherwise, to a millionth of it."""
        mine, theirs = run_both(planned_lanes(name, method, num_chunks))
        assert mine.max() == pytest.approx(theirs.max(), rel=1e-9)
        assert mine == pytest.approx(theirs, rel=0, abs=1e-6 * theirs.max())


class TestMaxMinRates:
    def test_are_feasible_and_nobody_can_get_more(self):
        """Every lane has a full resource on which nobody gets more than it: the definition of max-min fairness."""
        draw = random.Random(300)  # noqa: S311 - nothing is secret here
        for _ in range(100):
            num_resources = draw.randint(1, 8)
            resources = [
                draw.sample(range(num_resources), draw.randint(1, min(3, num_resources)))
                for _ in range(draw.randint(1, 20))
            ]
            nbytes = [draw.choice([1.0, 2.0, 0.1, 7.5]) for _ in resources]
            capacities = [draw.choice([1.0, 10.0, 25.0]) for _ in range(num_resources)]
            rates = max_min_rates(range(len(resources)), resources, nbytes, capacities)
            loads, highest = [0.0] * num_resources, [0.0] * num_resources
            for lane, used in enumerate(resources):
                for resource in used:
                    loads[resource] += rates[lane] * nbytes[lane]
                    highest[resource] = max(highest[resource], rates[lane])
            assert all(load <= capacity * (1 + 1e-6) for load, capacity in zip(loads, capacities, strict=True))
            for lane, used in enumerate(resources):
                assert any(
                    loads[r] >= capacities[r] * (1 - 1e-6) and rates[lane] >= highest[r] * (1 - 1e-6) for r in used
                )

    def test_give_large_chunks_more(self):
        assert max_min_rates([0, 1], [(0,), (0,)], [3.0, 1.0], [8.0]) == {0: 2.0, 1: 2.0}
