from fractions import Fraction

import numpy as np
import pytest

from treefold.errors import SimulationError
from treefold.plan.ir import Goal, Leaf
from treefold.planners import LeafWork, PlanBuilder, add_concat
from treefold.planners.method import Method, one_array
from treefold.planners.one_shot import one_shot
from treefold.planners.ring import pack_rings
from treefold.planners.star import star, two_shot
from treefold.planners.tree_packing import along, along_packing, optimal_packing
from treefold.planners.two_level import add_two_level
from treefold.testing import RealClock, VirtualClock, emulate, owned, owned_sum
from treefold.topology import known_topology


def plans(machine, length, dtype="float32"):
    """Return plans of one array by name."""
    work = one_array(machine.devices, length, dtype)
    return {
        "one shot": one_shot().movement(work),
        "two shots": two_shot(machine.devices).movement(work),
        "star": star("gpu:0").movement(work),
        "two levels": Method((Fraction(1),) * len(machine.devices), add_two_level, "").movement(work),
        "rings": along(pack_rings(machine).trees, "rings").movement(work),
        "three trees": along_packing(optimal_packing(machine, packs=3)).movement(work),
        "packing": along_packing(optimal_packing(machine)).movement(work),
    }


def inputs(count, length, dtype="float32"):
    """Return one leaf: each replica's own values."""
    return [[owned(replica, (length,), dtype) for replica in range(count)]]


class TestEmulate:
    @pytest.mark.parametrize("name", ["dgx1_v100", "a100_pcie_8gpu", "line:5"])
    def test_gives_every_device_the_true_sum(self, name):
        """Whatever the plan, in chunks that do not divide the packs evenly."""
        machine = known_topology(name)
        count = len(machine.devices)
        for plan in plans(machine, 10_007).values():
            done = emulate(machine, clock=VirtualClock()).run(plan, inputs(count, 10_007), chunk_bytes=999)
            assert len(done.results[0]) == count
            for result in done.results[0]:
                np.testing.assert_array_equal(result, owned_sum(count, (10_007,)))

    @pytest.mark.parametrize("dtype", ["float16", "int32", "complex64"])
    def test_folds_as_the_executors_do(self, dtype):
        """Partial folds travel wide, MEAN divides once, at the root."""
        machine = known_topology("p3_8xlarge")
        plan = along_packing(optimal_packing(machine)).movement(one_array(machine.devices, 50, dtype))
        done = emulate(machine, clock=VirtualClock()).run(plan, inputs(4, 50, dtype), "mean")
        expected = (owned_sum(4, (50,), "complex128" if dtype == "complex64" else "float64") / 4).astype(
            "float64" if dtype == "int32" else dtype
        )
        for result in done.results[0]:
            np.testing.assert_array_equal(result, expected)

    @pytest.mark.parametrize("name", ["dgx1_v100", "pcie3_8gpu"])
    def test_takes_as_long_as_predicted(self, name):
        """A machine at a thousandth of its speed: every plan within 10 %, and in the same order."""
        machine = known_topology(name)
        measured, predicted = {}, {}
        for plan_name, plan in plans(machine, 2**22).items():
            done = emulate(machine, slower=1000, clock=VirtualClock()).run(plan, inputs(8, 2**22))
            measured[plan_name], predicted[plan_name] = done.measured_s, done.predicted.duration_s
            assert abs(done.error) < 0.1, (plan_name, str(done))
        ranks = sorted(predicted, key=predicted.get)
        apart = [
            (quick, slow) for quick in ranks for slow in ranks if predicted[quick] * 1.15 < predicted[slow]
        ]  # what is predicted to be nearly the same may come in any order
        assert len(apart) > 10
        assert all(measured[quick] < measured[slow] for quick, slow in apart)

    def test_takes_its_time_by_a_real_clock(self):
        """Nothing flows faster than the links let it; slower is what a busy computer is, so no more is asserted."""
        machine = known_topology("dgx1_v100")
        star, packing = (plans(machine, 2**18)[name] for name in ("star", "three trees"))
        slow = emulate(machine, slower=4000, clock=RealClock()).run(star, inputs(8, 2**18))
        quick = emulate(machine, slower=4000, clock=RealClock()).run(packing, inputs(8, 2**18))
        for done in (slow, quick):
            busiest = max(
                use.nbytes * 4000 / float(machine.capacities[link]) for link, use in done.predicted.links.items()
            )
            assert done.measured_s > busiest * 0.99
            np.testing.assert_array_equal(done.results[0][7], owned_sum(8, (2**18,)))

    def test_says_measured_beside_predicted(self):
        """In one line."""
        machine = known_topology("ring:2")
        done = emulate(machine, clock=VirtualClock()).run(
            star("gpu:0").movement(one_array(machine.devices, 250)), inputs(2, 250)
        )
        assert str(done) == "0.001 MB in 1 chunk: measured 0.00148 s, predicted 0.00148 s (+0.0%)"


class TestRefusals:
    @pytest.mark.parametrize("slower", [0, -1, float("inf"), float("nan")])
    def test_of_factors_by_which_nothing_is_slower(self, slower):
        """A thousand is what is meant."""
        sentence = r"^slower is .*\. It takes a finite number above 0: 1000 makes GB/s into MB/s\.$"
        with pytest.raises(SimulationError, match=sentence):
            emulate(known_topology("ring:2"), slower=slower)

    @pytest.mark.parametrize(
        "given",
        [[], [[]], inputs(1, 6), inputs(2, 7), inputs(2, 6, "float64")],
        ids=["no", "empty", "few", "long", "wide"],
    )
    def test_of_arrays_that_are_not_the_plans(self, given):
        """One for every replica, of the length and dtype planned."""
        sentence = (
            r"^The plan's input in0\.[01] has 6 elements of float32\. Give one array like this per replica of every "
            r"leaf: inputs\[leaf\]\[replica\]\.$"
        )
        machine = known_topology("ring:2")
        with pytest.raises(SimulationError, match=sentence):
            emulate(machine).run(star("gpu:0").movement(one_array(machine.devices, 6)), given)

    def test_of_plans_that_do_not_fold(self):
        """Gathering is nothing to emulate yet."""
        devices = ("gpu:0", "gpu:1")
        builder = PlanBuilder([LeafWork(Leaf("int8", Goal.GATHER), (2, 2), devices, devices)])
        add_concat(builder, 0, "gpu:0")
        plan = builder.movement()
        sentence = r"^Only plans that fold every leaf are emulated\. Plan an all-reduce or a reduce of dense values\.$"
        with pytest.raises(SimulationError, match=sentence):
            emulate(known_topology("ring:2")).run(plan, inputs(2, 2, "int8"))
