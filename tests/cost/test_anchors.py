"""All-reduces that others have measured, beside what is predicted for them: the error of each is stated.

Like is compared with like: NCCL's rings with rings, at the effective bandwidths of ``treefold.topology.rates``, which
NCCL plans with, on every link. busbw is algbw·2·(n − 1)/n.
"""

import pathlib
import re
from dataclasses import replace

import pytest
from closed_forms import in_switch_s

from treefold.cli.planning.words import CHECKED_ERRORS, CHECKED_FROM, PUBLISHED, published_for, published_s
from treefold.planners.method import one_array
from treefold.topology import Topology, TopologyBuilder, known_topology
from treefold.topology.cost import simulate
from treefold.topology.planning.ring import pack_rings
from treefold.topology.planning.tree_packing import along_packing, optimal_packing

LARGE = 2**33  # bytes: so many that latency is nothing beside them
NVSWITCH_H100, NIC_400 = 18 * 20.6, 48
PCIE5_INTEL, BETWEEN_INTEL = 48 * 5 / 6, 22


def gpus(count):
    return tuple(f"gpu:{number}" for number in range(count))


def switched(gb_per_s):
    builder = TopologyBuilder("switched").switch("nvswitch")
    for device in gpus(8):
        builder.device(device).link(device, "nvswitch", gb_per_s=gb_per_s, alpha_us=0.35)
    return builder.build()


def pcie(count):
    """Return GPUs on PCIe 5, four per socket of Sapphire Rapids."""
    builder = TopologyBuilder("pcie").host("cpu0").host("cpu1")
    builder.link("cpu0", "cpu1", gb_per_s=BETWEEN_INTEL, alpha_us=1)
    for number, device in enumerate(gpus(count)):
        builder.device(device).link(device, f"cpu{number // 4}", gb_per_s=PCIE5_INTEL, alpha_us=6)
    return builder.build()


def two_hosts():
    """Return two hosts of eight H100 or H200, at effective rates."""
    machine, effective = known_topology("2x8_h100"), {450e9: NVSWITCH_H100 * 1e9, 50e9: NIC_400 * 1e9}
    links = tuple(replace(link, bytes_per_s=effective[link.bytes_per_s]) for link in machine.links)
    return Topology("", machine.nodes, links)


def busbw(machine, algbw):
    return algbw * 2 * (len(machine.devices) - 1) / len(machine.devices)


def algbw_of_rings(machine, nbytes=LARGE):
    """Return GB/s of rings as NCCL packs them."""
    return nbytes / pack_rings(machine).predict_s(nbytes) / 1e9


def busbw_of_rings(machine):
    return busbw(machine, algbw_of_rings(machine))


def algbw_of_trees(machine):
    movement = along_packing(optimal_packing(machine)).movement(one_array(machine.devices))
    return simulate(movement, machine, LARGE).algbw_bytes_per_s / 1e9


def busbw_of_switch(gb_per_s):
    return LARGE / in_switch_s(LARGE, count=8, port_bytes_per_s=gb_per_s * 1e9, alpha_s=1e-6) / 1e9 * 2 * 7 / 8


# What, GB/s measured, GB/s predicted, and the error of that.
ANCHORS = {
    "8 H100, ring, busbw": (367.5, lambda: busbw_of_rings(switched(NVSWITCH_H100)), +0.009),
    "8 A100, ring, busbw": (220, lambda: busbw_of_rings(switched(12 * 20)), +0.091),
    "8 H100, NVLS, busbw": (480, lambda: busbw_of_switch(NVSWITCH_H100), +0.202),
    "8 MI300X, 256 MiB, algbw": (2**28 / 1.33e6, lambda: algbw_of_rings(known_topology("mi300x"), 2**28), -0.060),
    "2 hosts of 8 H100, 256 MiB, algbw": (2**28 / 1.47e6, lambda: algbw_of_rings(two_hosts(), 2**28), +0.092),
    "2 hosts of 8 H200, algbw": (260, lambda: algbw_of_trees(two_hosts()), -0.160),
    "8 RTX 5090, PCIe 5, two Intel sockets, busbw": (28, lambda: busbw_of_rings(pcie(8)), -0.214),
    "4 RTX 5090, PCIe 5, one Intel socket, busbw": (35, lambda: busbw_of_rings(pcie(4)), +0.143),
}


class TestAnchors:
    @pytest.mark.parametrize("name", ANCHORS)
    def test_are_missed_by_no_more_than_is_stated(self, name):
        """To a percent: the statement has to be changed with a model that gets better or worse."""
        measured, predict, error = ANCHORS[name]
        predicted = predict()
        print(f"{name}: measured {measured:.4g} GB/s, predicted {predicted:.1f} ({predicted / measured - 1:+.1%})")  # noqa: T201
        assert predicted / measured - 1 == pytest.approx(error, abs=0.01)

    def test_stand_in_the_paper(self):
        text = (pathlib.Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
        printed = re.findall(r"^\| \d .* \| ([+−]\d+) % \|$", text, re.MULTILINE)
        assert [int(error.replace("−", "-")) for error in printed] == [
            round(100 * error) for _, _, error in ANCHORS.values()
        ]

    def test_are_what_is_said_of_predictions(self):
        errors = [error for _, _, error in ANCHORS.values()]
        assert (round(min(errors), 2), round(max(errors), 2)) == CHECKED_ERRORS


class TestPublished:
    def test_is_of_machines_that_are_known(self):
        for one in PUBLISHED:
            assert one in published_for(known_topology(one.machine))
            assert one.nbytes >= CHECKED_FROM
            assert one.source

    def test_of_some_of_the_devices_is_nothing(self):
        """Four of eight MI300X are another machine, whatever its name."""
        assert published_for(known_topology("mi300x").restricted(gpus(4))) == ()
        assert published_s(known_topology("mi300x").restricted(gpus(4)), 2**28) is None

    def test_gives_seconds_between_the_sizes_published(self):
        """On the line through two figures, and at the bandwidth of the largest beyond it."""
        machine = known_topology("2x8_h100")
        small, large = (one.seconds for one in published_for(machine))
        assert [published_s(machine, size) for size in (2**28, 2**33, 2**34)] == [small, large, 2 * large]
        assert published_s(machine, (2**28 + 2**33) / 2) == pytest.approx((small + large) / 2)

    def test_says_nothing_of_sizes_that_were_not_checked(self):
        assert published_s(known_topology("2x8_h100"), CHECKED_FROM - 1) is None
