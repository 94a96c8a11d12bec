"""The display of packings, machines and timelines in an interpreter and a notebook."""

import re
import xml.etree.ElementTree as ET

import pytest

import treefold
from treefold.topology import TopologyBuilder

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def machine():
    return treefold.known_topology("dgx1_v100")


def title_of(svg):
    return ET.fromstring(svg).find(f"{SVG}title").text  # noqa: S314 - our own text


class TestPacking:
    def test_is_one_line(self, machine):
        packing = treefold.optimal_packing(machine, packs=6)
        assert repr(packing) == str(packing)
        assert repr(packing) == "<TreePacking: 6 trees on 8 devices, 75 of at most 85.71 GB/s>"

    def test_is_drawn_in_a_notebook(self, machine):
        packing = treefold.optimal_packing(machine, packs=6)
        assert title_of(packing._repr_html_()) == "6 trees on 8 devices"

    @pytest.mark.parametrize("name", ["dgx_a100", "ring:3"])
    def test_is_drawn_over_switches_and_of_one_device(self, name):
        whole = treefold.known_topology(name)
        for some, count in ((whole, f"{len(whole.devices)} devices"), (whole.restricted(["gpu:0"]), "1 device")):
            assert title_of(treefold.optimal_packing(some)._repr_html_()).endswith(f" on {count}")


class TestTimeline:
    def test_is_one_line(self):
        value = treefold.PerReplica([1.0, 2.0])
        plan = treefold.ReductionToOneDevice().plan(value, value, walked=True)
        machine = TopologyBuilder().device("cpu:0").device("cpu:1").link("cpu:0", "cpu:1", gb_per_s=1).build()
        timeline = treefold.simulate(plan, machine, nbytes=1 << 20, reduce_bytes_per_s=1e9, launch_s=0.0)
        assert re.fullmatch(r"<Timeline: 1 MiB in \d\.\d+ ms, 3 activities>", repr(timeline))
