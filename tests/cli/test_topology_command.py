import json
import sys
import xml.etree.ElementTree as ET

import pytest

from treefold.cli.gpus import Gpus
from treefold.cli.planning import options
from treefold.execution.host import describe_machine
from treefold.topology import known_names, known_topology
from treefold.topology.discover import discover_topology


class NoGpus:
    """NVML where there is no GPU."""

    class NVMLError(Exception):
        """Never raised."""

    @staticmethod
    def nvmlDeviceGetCount():  # noqa: N802 - NVML's name
        return 0


class TestMachine:
    @pytest.mark.parametrize("command", [("topology",), ("plan", "-s", "1M"), ("simulate", "-s", "1M")])
    def test_is_an_argument_or_an_option_of_every_planning_command(self, treefold, command):
        outcome = treefold(*command, "ring:3")
        assert outcome.code == 0
        assert outcome.out.startswith("ring:3")
        assert outcome == treefold(*command, "-t", "ring:3")

    @pytest.mark.parametrize("command", ["topology", "plan", "simulate"])
    def test_is_refused_if_it_is_named_twice(self, treefold, command):
        outcome = treefold(command, "dgx2", "-t", "mi250")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == "treefold: 'dgx2' and 'mi250' are each a machine; give one of them.\n"


class TestTopology:
    def test_shows_a_known_machine(self, treefold):
        lines = treefold("topology", "a100_pcie_8gpu").out.splitlines()
        assert lines[0] == "a100_pcie_8gpu: 8 devices, 2 hosts"
        assert len(lines[4:]) == 8 + 1 + 4
        assert lines[4].split() == ["gpu:0", "-", "cpu0", "pcie", "24", "6"]

    def test_draws_a_page_of_one_card(self, treefold, tmp_path):
        treefold("topology", "a100_pcie_8gpu", "--draw", tmp_path / "m.html")
        page = (tmp_path / "m.html").read_text()
        assert page.count("<section>") == page.count("<table>") == 1
        assert "8 devices, 2 hosts; by direction: 16 × 24 GB/s pcie, " in page
        assert page.count('<th scope="row">') == 8 + 1 + 4

    def test_shows_this_machine(self, treefold):
        outcome = treefold("topology")
        assert outcome.code == 0
        assert "device" in outcome.out.splitlines()[0]

    @pytest.mark.parametrize("command", ["topology", "plan", "simulate"])
    def test_without_gpus_says_what_is_here_and_offers_a_known_machine(self, treefold, monkeypatch, command):
        monkeypatch.setattr(options, "read_machine", lambda *_: discover_topology(nvml=NoGpus))
        monkeypatch.setattr(options, "find_gpus", lambda: None)
        lines = treefold(command).out.splitlines()
        cores = describe_machine()["cores"]
        assert lines[-2].startswith("here: ")
        assert lines[-2].endswith(f", {cores} cores, no GPU")
        assert lines[-1] == f"try:  treefold {command} dgx1_v100, or another machine of: treefold topology --list"

    def test_without_nvidias_library_says_what_shows_the_gpus(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", None)
        monkeypatch.setattr(options, "find_gpus", lambda: Gpus("NVIDIA", ("H100",), "570.1"))
        assert options.offer_known("plan", None, discover_topology(nvml=NoGpus))[1].endswith(
            ' NVIDIA GPUs that treefold does not see without nvidia-ml-py: pip install "treefold[nvml]"'
        )

    def test_offers_nothing_for_a_machine_that_was_named(self, treefold):
        assert "try:" not in treefold("topology", "dgx2").out
        assert json.loads(treefold("topology", "--json").out)["devices"]

    def test_proves_the_links_of_this_machine(self, treefold):
        outcome = treefold("topology", "--verify")
        assert outcome.code == 0
        assert outcome.out.startswith(("from ", "No pairs of devices to verify: this takes at least one GPU"))

    def test_lists_the_known_machines(self, treefold):
        header, _, *lines = treefold("topology", "--list").out.splitlines()
        assert header.split() == ["machine", "devices", "what", "it", "is"]
        assert [line.split()[0] for line in lines] == list(known_names())
        assert "dgx2                 16  NVIDIA DGX-2: V100 on an NVSwitch" in lines

    def test_prints_json_that_can_be_read_again(self, treefold, tmp_path):
        plain = treefold("topology", "2x8_a100", "--json").out
        (tmp_path / "m.json").write_text(plain)
        again = treefold("topology", tmp_path / "m.json", "--json").out
        assert json.loads(again) == json.loads(plain) == known_topology("2x8_a100").to_json()

    @pytest.mark.parametrize("kind", ["html", "svg"])
    def test_draws_it(self, treefold, tmp_path, kind):
        path = tmp_path / f"m.{kind}"
        assert treefold("topology", "dgx_a100", "--draw", path).out.endswith(f"Written: {path}\n")
        if kind == "svg":
            names = [node.get("data-name") for node in ET.parse(path).getroot().iter() if node.get("data-name")]  # noqa: S314
            assert names == list(known_topology("dgx_a100").kinds)
        assert path.stat().st_size > 1000

    def test_says_that_a_file_is_right(self, treefold, tmp_path):
        path = tmp_path / "m.json"
        path.write_text(
            '{"name": "pair", "devices": ["gpu:0", "gpu:1"], '
            '"links": [{"between": ["gpu:0", "gpu:1"], "gb_per_s": [10, 5]}]}'
        )
        out = treefold("topology", "--verify-file", path).out
        assert out == "ok: pair: 2 devices, 2 directed links, not all equal in both directions\n"

    def test_says_what_is_wrong_with_a_file(self, treefold, tmp_path):
        path = tmp_path / "m.xml"
        path.write_text("<system version='1'><cpu")
        outcome = treefold("topology", "--verify-file", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("treefold: The XML is broken or cut off: ")

    def test_writes_graphviz(self, treefold, tmp_path):
        treefold("topology", "ring:3", "--dot", tmp_path / "m.dot")
        assert (tmp_path / "m.dot").read_text().startswith('graph "ring:3" {')
