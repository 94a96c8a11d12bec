"""All-reduces that others have measured, beside what is predicted for them: the error of each is stated.

Bandwidths are the effective ones of ``treefold.topology.rates``, which NCCL plans with, but for the two hosts, whose
bound is that of the data sheets. busbw is algbw·2·(n − 1)/n.
"""

import pytest

from treefold.cost import simulate
from treefold.cost.model import in_switch_s
from treefold.planners.methods import one_array, plan_along
from treefold.planners.ring import two_rings
from treefold.planners.tree_packing import optimal_packing, plan_trees
from treefold.topology import TopologyBuilder, known_topology

NBYTES = 2**32  # large enough that latency is nothing beside it


def gpus(count):
    """Return names of devices."""
    return tuple(f"gpu:{number}" for number in range(count))


def switched(gb_per_s):
    """Return eight GPUs on an NVSwitch."""
    builder = TopologyBuilder("switched").switch("nvswitch")
    for device in gpus(8):
        builder.device(device).link(device, "nvswitch", gb_per_s=gb_per_s, alpha_us=0.35)
    return builder.build()


def pcie(count, *, between):
    """Return GPUs on PCIe 5, four per socket."""
    builder = TopologyBuilder("pcie").host("cpu0").host("cpu1")
    builder.link("cpu0", "cpu1", gb_per_s=between, alpha_us=1)
    for number, device in enumerate(gpus(count)):
        builder.device(device).link(device, f"cpu{number // 4}", gb_per_s=48, alpha_us=6)
    return builder.build()


def busbw_of_rings(machine):
    """Return GB/s of rings in both directions."""
    count = len(machine.devices)
    plan = plan_along(one_array(machine.devices), two_rings(machine.devices), "rings")
    return simulate(plan, machine, NBYTES).algbw_bytes_per_s / 1e9 * 2 * (count - 1) / count


def algbw_of_packing(machine):
    """Return GB/s of the optimal trees."""
    plan = plan_trees(one_array(machine.devices), optimal_packing(machine))
    return simulate(plan, machine, NBYTES).algbw_bytes_per_s / 1e9


def busbw_of_switch(gb_per_s):
    """Return GB/s where the switch folds."""
    return NBYTES / in_switch_s(NBYTES, count=8, port_bytes_per_s=gb_per_s * 1e9, alpha_s=1e-6) / 1e9 * 2 * 7 / 8


# What, GB/s measured, GB/s predicted, and the error of that.
ANCHORS = {
    "8 H100, ring, busbw": (367.5, lambda: busbw_of_rings(switched(18 * 20.6)), +0.009),
    "8 A100, ring, busbw": (220, lambda: busbw_of_rings(switched(12 * 20)), +0.091),
    "8 H100, NVLS, busbw": (480, lambda: busbw_of_switch(18 * 20.6), +0.202),
    "2 hosts of 8 H200, 8 x 400 Gb/s, algbw": (260, lambda: algbw_of_packing(known_topology("2x8_h100")), -0.016),
    "8 RTX 5090, PCIe 5, two AMD sockets, busbw": (28, lambda: algbw_of_packing(pcie(8, between=16)) * 7 / 4, -0.019),
    "4 RTX 5090, PCIe 5, busbw": (35, lambda: algbw_of_packing(pcie(4, between=16)) * 3 / 2, +0.37),
}


class TestAnchors:
    @pytest.mark.parametrize("name", ANCHORS)
    def test_are_missed_by_no_more_than_is_stated(self, name):
        """To a percent; a model that gets better or worse has to say so here."""
        measured, predict, error = ANCHORS[name]
        predicted = predict()
        print(f"{name}: measured {measured} GB/s, predicted {predicted:.1f} GB/s ({predicted / measured - 1:+.1%})")  # noqa: T201
        assert predicted / measured - 1 == pytest.approx(error, abs=0.01)
