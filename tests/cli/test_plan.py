import gc
import importlib
import io
import json
import re
import sys

import pytest

from treefold.cli.planning.words import Prediction, best_of
from treefold.plan import from_json
from treefold.topology import known_topology
from treefold.topology.cost.routes import LAUNCH_S, is_as_good

PLAN = ("plan", "--topology", "dgx1_v100", "--size", "1M")


@pytest.fixture
def piped(monkeypatch):
    """Return a function that puts a text on the standard input."""

    def put(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    return put


class TestPlan:
    def test_says_what_it_takes_and_why_no_plan_takes_less(self, treefold):
        outcome = treefold(*PLAN)
        assert outcome.code == 0
        packs = outcome.out.count(" gpu:")
        title, predicted, checked, plan, listed = (part.splitlines() for part in outcome.out.split("\n\n"))
        assert title == ["dgx1_v100, 8 GPUs, 1 MiB per GPU: 26.9 µs; NCCL-like rings: 29 µs"]
        assert predicted[0] == "predicted"
        assert predicted[-1].startswith("1 MiB   26.9 µs  shallow trees")
        assert [line.partition(":")[0] for line in checked] == ["checked", "rings"]
        assert plan == [
            f"this plan:   shallow trees over 8 devices in {packs} packs: 38.92 GB/s all-reduce (S/t), busbw 68.1",
            "optimum:     X* = 85.71 GB/s for large values, busbw 150.0; 16 trees: gap 0, proved optimal",
            "model:       plain values over links that carry both ways at once; devices combine, switches do not",
            "bottleneck:  each of 8 GPUs against the others: 600 GB/s over NVLink in all",
            "certificate: 600 GB/s between 8 groups, which every tree crosses 7 times: 600 GB/s / 7; checked again: "
            "holds",
        ]
        assert listed[:2] == ["packs of this plan", "pack   share  root   depth  edges, up to the root"]
        assert len(listed) == 3 + packs

    @pytest.mark.parametrize(
        ("machine", "size", "line"),
        [
            ("ring:4", "16M", "ring:4, 4 GPUs, 16 MiB per GPU: 515 µs, by rings as NCCL's"),
            ("dgx_a100", "256M", "dgx_a100, 8 GPUs, 256 MiB per GPU: 1.57 ms; NCCL-like rings: 1.58 ms"),
            ("mi300x", "256M", "mi300x, 8 GPUs, 256 MiB per GPU: 1.41 ms; RCCL, as published: 1.33 ms"),
        ],
    )
    def test_begins_with_what_it_takes(self, treefold, machine, size, line):
        assert treefold("plan", "-t", machine, "-s", size).out.partition("\n")[0] == line

    @pytest.mark.parametrize("was_enabled", [True, False])
    def test_leaves_the_collector_as_it_was(self, treefold, was_enabled):
        try:
            (gc.enable if was_enabled else gc.disable)()
            assert treefold("plan", "-t", "ring:2").code == 0
            assert gc.isenabled() == was_enabled
        finally:
            gc.enable()

    def test_is_the_plan_of_the_largest_size(self, treefold):
        out = treefold("plan", "-t", "mi300x", "-s", "4K,1M").out
        assert out.startswith("mi300x, 8 GPUs, 1 MiB per GPU: ")
        assert "this plan:   two shots over 8 devices in 8 packs" in out

    @pytest.mark.parametrize(
        ("machine", "size"), [("ring:4", "4K"), ("ring:4", "16M"), ("dgx1_v100", "1M"), ("dgx1_v100", "1G")]
    )
    def test_saves_draws_and_prices_the_same_plan(self, treefold, tmp_path, machine, size):
        files = {"--save": "p.json", "--draw": "p.html", "--trace": "t.json"}
        options = [word for option, name in files.items() for word in (option, tmp_path / name)]
        plain = json.loads(treefold("plan", "-t", machine, "-s", size, "--json", *options).out)
        best = min(row["seconds"] for row in plain["predicted"])
        assert is_as_good(plain["plan"]["seconds"], best)
        saved = treefold("simulate", "-t", machine, "-s", size, "--plan", tmp_path / "p.json", "--json").out
        assert json.loads(saved)["predicted"][0]["seconds"] == pytest.approx(plain["plan"]["seconds"], rel=0.02)
        page = (tmp_path / "p.html").read_text()
        drawn = float(re.search(r'"duration":([\d.]+)', page)[1])
        assert drawn == pytest.approx(plain["plan"]["seconds"] * 1e6, rel=1e-6)
        assert f"by {plain['plan']['method']} in " in page
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(drawn, abs=1e-3)
        assert len(plain["packs"]) == from_json((tmp_path / "p.json").read_text()).num_packs

    def test_takes_the_packs_that_are_asked_for(self, treefold):
        out = treefold("plan", "-t", "dgx1_v100", "-s", "256M", "--packs", "8").out
        assert "this plan:   trees over 8 devices in 8 packs" in out
        time = re.match(r"dgx1_v100, 8 GPUs, 256 MiB per GPU: ([\d.]+ ms); NCCL-like rings: 3.15 ms\n", out)[1]
        assert re.search(rf"^256 MiB +{time} +trees ", out, re.MULTILINE)

    def test_takes_one_pack_if_it_is_asked_for(self, treefold):
        assert "trees over 8 devices in 1 pack:" in treefold("plan", "-t", "dgx1_v100", "--packs", "1").out

    @pytest.mark.parametrize(
        ("machine", "rings", "most"),
        [
            ("dgx1_v100", "6 of 25 GB/s", 1.11),  # measured links, 21.7 of 25 GB/s, leave no more
            ("2x8_h100", "8 of 50 GB/s", 1.28),  # NCCL was measured at 1.47 ms
            ("mi300x", "7 of 48 GB/s", 0.96),  # RCCL was measured at 1.33 ms
        ],
    )
    def test_claims_no_more_over_nccl_than_was_measured(self, treefold, machine, rings, most):
        """The factor beside rings is bounded by published times; those, and the rings, are printed."""
        out = treefold("plan", "-t", machine, "-s", "256M").out
        row = next(line for line in out.splitlines() if line.startswith("256 MiB"))
        assert float(re.search(r"\((\d+\.\d+)×\)", row)[1]) <= most
        assert (
            f"rings:       {rings}, as NCCL and RCCL pack them: the most that a search finds; no switch reduces\n"
            in out
        )
        assert ("\npublished:   " in out) == (machine != "dgx1_v100")

    def test_gives_factors_only_where_predictions_were_checked(self, treefold):
        out = treefold("plan", "-t", "dgx_a100", "-s", "4K,64M,256M").out
        rows = {line[:7].strip(): line.count("×") for line in out.splitlines() if re.match(r"\d+ .iB", line)}
        assert rows == {"4 KiB": 0, "64 MiB": 0, "256 MiB": 3}
        assert (
            "checked:     from 256 MiB on, against published bandwidths (−21 % to +20 %); below, nothing but the "
            "launch of 7 µs, so no factors are given\n"
        ) in out

    def test_prints_json_that_says_all_of_it(self, treefold):
        plain = json.loads(treefold(*PLAN, "--packs", 8, "--json").out)
        assert plain["algbw_gb_per_s"] == pytest.approx(80.0)
        assert plain["bound_gb_per_s"] == pytest.approx(600 / 7)
        assert plain["gap"] == pytest.approx(1 / 15)
        assert len(plain["packs"]) == 8
        assert {pack["share"] for pack in plain["packs"]} == {0.125}
        assert plain["bottleneck"] == "each of 8 GPUs against the others: 600 GB/s over NVLink in all"
        assert {"size", "seconds", "method"} <= set(plain["predicted"][0])
        assert len(plain["rings"]) == 6
        assert plain["checked_from_bytes"] == 2**28

    def test_plans_for_some_devices(self, treefold):
        plain = json.loads(treefold(*PLAN, "--devices", "0-2,gpu:3", "--json").out)
        assert plain["devices"] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
        assert plain["algbw_gb_per_s"] == pytest.approx(75.0)

    def test_says_which_method_serves_which_size(self, treefold):
        words = treefold("plan", "-t", "ring:3", "-s", "1M", "--table").out
        plain = json.loads(treefold("plan", "-t", "ring:3", "-s", "1M", "--table", "--json").out)
        assert f"size table: {plain['size_table']}\n" in words
        methods, sizes = (plain["size_table"].split(":")[first::2] for first in (0, 1))
        assert len(plain["reasons"]) == len(methods) == len(sizes)
        assert (methods[0], sizes[-1]) == ("oneshot", "inf")

    def test_plans_for_one_device(self, treefold):
        assert treefold("plan", "-t", "ring:1").out == "ring:1: one device, nothing to reduce\n"

    def test_reads_a_machine_from_a_pipe(self, treefold, piped):
        piped(json.dumps(known_topology("ring:4").to_json()))
        plain = json.loads(treefold("plan", "-t", "-", "-s", "1M", "--json").out)
        assert plain["algbw_gb_per_s"] == pytest.approx(100 / 3)


class TestBestOf:
    @pytest.mark.parametrize("trees_us", [99.999999, 100.0, 100.000001])
    def test_of_methods_as_good_is_the_first_of_the_registry(self, trees_us):
        times = {"rings": 100.0, "trees": trees_us, "two shots": 99.9, "one shot": 102.0}
        predictions = [Prediction(2**20, LAUNCH_S + us * 1e-6, method) for method, us in times.items()]
        assert best_of(predictions, 2**20).method == "two shots"
        assert best_of(predictions, 2**20, ["rings", "trees"]).method == "trees"

    def test_is_the_quickest_where_methods_differ(self):
        predictions = [Prediction(1, LAUNCH_S + us * 1e-6, name) for name, us in (("star", 102), ("rings", 100))]
        assert best_of(predictions, 1, ["star", "rings"]).method == "rings"


def noting(function, notes, describe):
    """Return a function that does the same and notes what it was asked for."""

    def noted(*given, **named):
        notes.append(describe(*given))
        return function(*given, **named)

    return noted


@pytest.fixture
def work(monkeypatch):
    """Note what is worked out: searches for trees and for rings, linear programs, (plan, bytes) that are simulated."""
    done = {"searches": [], "programs": [], "simulations": [], "rings": []}
    notes = (
        (
            "treefold.topology.planning.tree_packing.optimal",
            "pack_trees",
            "searches",
            lambda network, *_: network.devices,
        ),
        (
            "treefold.topology.planning.tree_packing.columns",
            "_solve",
            "programs",
            lambda loads, _: (loads.shape, loads.tobytes()),
        ),
        (
            "treefold.topology.cost.simulation",
            "_fastest",
            "simulations",
            lambda at, _: (at.load.tasks, at.nbytes),
        ),
        ("treefold.topology.planning.registry", "pack_rings", "rings", lambda machine: machine.devices),
    )
    for module_name, function, kind, describe in notes:
        module = importlib.import_module(module_name)
        monkeypatch.setattr(module, function, noting(getattr(module, function), done[kind], describe))
    return done


class TestPlanWorksOutOnce:
    @pytest.mark.parametrize("option", [(), ("--json",), ("--table",), ("--packs", "3", "--table", "--json")])
    def test_each_linear_program(self, treefold, work, option):
        assert treefold("plan", "-t", "dgx1_v100", *option).code == 0
        assert len(work["searches"]) == 2
        assert len(work["programs"]) == len(set(work["programs"])) >= 2
        assert len(work["rings"]) == 1

    @pytest.mark.parametrize(
        ("machine", "options", "count"),
        [
            ("dgx1_v100", (), 29),  # of six sizes and seven plans, those that may win
            ("dgx1_v100", ("--json",), 42),
            ("dgx1_v100", ("--table",), 80),
            ("dgx2", (), 26),  # one plan fewer: its best trees are of least depth
            ("ring:1", (), 0),
        ],
    )
    def test_each_simulation(self, treefold, work, machine, options, count):
        """No plan at a size twice, under whatever name."""
        assert treefold("plan", "-t", machine, *options).code == 0
        assert len(work["simulations"]) == len(set(work["simulations"])) == count

    def test_what_is_also_written(self, treefold, work, tmp_path):
        """A trace follows the chunks of the plan that was chosen: the one simulation that is made again."""
        assert treefold("plan", "-t", "dgx1_v100", "--json", "--trace", tmp_path / "t.json").code == 0
        assert (len(work["simulations"]), len(set(work["simulations"]))) == (43, 42)


class TestPlanRefuses:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["-t", "dgx1_v10"], "No machine is known as 'dgx1_v10'. The nearest is 'dgx1_v100'. "),
            (["-t", "none/such.xml"], "There is no file 'none/such.xml', and it is no topology itself. "),
            (["-t", "such.xml"], "There is no file 'such.xml', and it is no topology itself. "),
            (["-t", "ring:4", "--devices", "0-9"], "There is no gpu:4, gpu:5, gpu:6, gpu:7, gpu:8, gpu:9 in this "),
            (["-t", "ring:4", "--devices", "0,0"], "The device 'gpu:0' is named twice. "),
            (["-t", "ring:8", "--devices", "0,4"], "The machine is not connected: nothing leads from gpu:0 to gpu:4. "),
            (
                ["-t", "ring:4", "--devices", "3-1"],
                "--devices got '3-1'. It takes numbers, ranges and names: 0-3,6 or ",
            ),
            (["-t", "ring:4", "--devices", "x"], "--devices got 'x'. It takes numbers, ranges and names: 0-3,6 or "),
            (["-t", "ring:4", "--size", "-3"], "--size got '-3'. "),
            (["-t", "ring:4", "--packs", "0"], "optimal_packing got packs=0. It takes a whole number above 0, "),
            (["-t", "ring:4", "--packs", "9", "-s", "8"], "--packs got 9 for 8 bytes. Every pack needs a byte at "),
            (["-t", "ring:4", "--draw", "p.png"], "--draw got 'p.png'. It draws .html, .svg; name the file so."),
            (["-t", "ring:4", "--trace", "no/t.json"], "--trace cannot write 'no/t.json': no such file or directory."),
        ],
    )
    def test_in_one_sentence(self, treefold, tmp_path, monkeypatch, arguments, sentence):
        monkeypatch.chdir(tmp_path)
        outcome = treefold("plan", *arguments)
        assert outcome.code == 2
        assert outcome.err.startswith(f"treefold: {sentence}")
        assert outcome.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("", "The topology is empty. "),
            ("<system version='1'><cpu numaid='0'>", "The XML is broken or cut off: "),
            ('{"devices": [], "links": []}', "This topology has no devices. "),
            ('{"devices": ["gpu:0", "gpu:1"], "links": []}', "The machine is not connected: "),
            (
                '{"devices": ["gpu:0", "gpu:1"], "links": [{"between": ["gpu:0", "gpu:1"], "gb_per_s": 0}]}',
                "The link from 'gpu:0' to 'gpu:1' has 0 GB/s. ",
            ),
            (
                '{"devices": ["gpu:0", "gpu:1"], "links": [{"between": ["gpu:0", "gpu:7"], "gb_per_s": 5}]}',
                "The link from 'gpu:0' to 'gpu:7' leads nowhere: ",
            ),
        ],
    )
    def test_a_broken_machine_from_a_pipe(self, treefold, piped, text, sentence):
        piped(text)
        outcome = treefold("plan", "-t", "-")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"treefold: {sentence}")


class TestPlanOfCluster:
    LINKS = tuple(
        {"between": [f"cpu:{host}", "switch"], "gb_per_s": rate, "alpha_us": 10, "kind": "net"}
        for host, rate in enumerate((1.25, 1.25, 1.25, 0.3125))
    )
    CLUSTER = json.dumps({"devices": [f"cpu:{host}" for host in range(4)], "switches": ["switch"], "links": LINKS})

    def test_goes_straight_to_the_owners(self, treefold, tmp_path):
        (tmp_path / "cluster.json").write_text(self.CLUSTER)
        given = ("plan", "-t", tmp_path / "cluster.json", "-s", "256M")
        out = treefold(*given).out
        assert out.startswith("cluster, 4 devices, 256 MiB per device: 867 ms; NCCL-like rings: 1.29 s\n")
        assert "\nthis plan:   direct over 4 devices in 3 packs: " in out
        assert "\n2     33.33%  cpu:2      1  cpu:0→cpu:2, cpu:1→cpu:2, cpu:3→cpu:2\n" in out
        assert treefold(*given, "--draw", tmp_path / "p.html", "--save", tmp_path / "p.json", "--json").code == 0
        assert "by direct in " in (tmp_path / "p.html").read_text()
        plan = from_json((tmp_path / "p.json").read_text())
        assert (plan.algorithm, plan.guarantee) == ("direct", "replica_order")
