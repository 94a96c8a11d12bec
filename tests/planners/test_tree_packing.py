import functools
import itertools
import random
import re
import subprocess
import sys
from fractions import Fraction

import pytest
import scipy.optimize
from packing_oracles import check_certificate, check_trees

from treefold import errors, known_topology, optimal_packing
from treefold.errors import TopologyError
from treefold.topology import TopologyBuilder
from treefold.topology.planning.tree_packing import columns

GB = 10**9

#: The values of the theory, in GB/s: links times what one carries over parts less one, or n·B / (2·(n − 1)).
OPTIMA = {
    "dgx1_v100": Fraction(24 * 25, 7),
    "dgx1_p100": Fraction(16 * 20, 7),
    "p3_8xlarge": Fraction(9 * 25, 3),
    "ring:8": Fraction(8 * 25, 7),
    "dgx2": Fraction(16 * 150, 30),
    "dgx_a100": Fraction(8 * 300, 14),
    "dgx_h100": Fraction(8 * 450, 14),
    "mi250": Fraction(24 * 50, 7),
    "mi300x": Fraction(28 * 48, 7),
    "mi300x_raw": Fraction(28 * 64, 7),
    "2x8_a100": Fraction(16 * (300 + 25), 30),
    "2x8_h100": Fraction(16 * (450 + 50), 30),
    "pcie3_8gpu": Fraction(8 * 12, 14),
    "a100_pcie_8gpu": Fraction(16),
    "line:8": Fraction(25),
    "mesh:6": Fraction(15 * 25, 5),
}
LARGE_OPTIMA = {
    "4x8_h100": Fraction(32 * (450 + 50), 62),
    "8x8_h100": Fraction(8 * 400, 14),
    "16x8_h100": Fraction(16 * 400, 30),
}
#: Equal packs on a DGX-1V: number of packs → GB/s.
PACKS = {1: 50, 2: 50, 3: 75, 4: Fraction(200, 3), 6: 75, 8: 80, 24: Fraction(600, 7)}


def measured(count, *, is_symmetric):
    """Return a mesh with links of 10 to 50 GB/s, each another number."""
    rng = random.Random(count)  # noqa: S311 - cases, no secrets
    builder = TopologyBuilder("measured")
    for number in range(count):
        builder.device(f"gpu:{number}")
    for a, b in itertools.combinations(range(count), 2):
        there, back = (round(rng.uniform(10, 50), 2) for _ in range(2))
        builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=there, back_gb_per_s=there if is_symmetric else back)
    return builder.build()


def connected_subsets(topology, sizes):
    """Return the packings of every subset of devices that is connected."""
    found = []
    for devices in itertools.chain.from_iterable(itertools.combinations(topology.devices, size) for size in sizes):
        try:
            part = topology.restricted(devices)
        except TopologyError:
            continue
        found.append((part, optimal_packing(topology, devices)))
    return found


class TestKnownMachines:
    @pytest.mark.parametrize("name", OPTIMA)
    def test_reach_their_optimum(self, name):
        """Exactly: what the trees carry is the bound, which is the fraction that theory gives."""
        topology = known_topology(name)
        packing = optimal_packing(topology)
        assert packing.algbw == packing.certificate.bound == OPTIMA[name] * GB
        assert packing.algbw_bytes_per_s == packing.bound_bytes_per_s == float(OPTIMA[name] * GB)
        assert packing.gap == 0
        assert packing.notes == ()
        check_trees(packing, topology)
        check_certificate(packing, topology)

    @pytest.mark.parametrize("name", LARGE_OPTIMA)
    def test_reach_their_optimum_up_to_rounding_where_they_are_large(self, name):
        topology = known_topology(name)
        packing = optimal_packing(topology)
        assert packing.certificate.bound == LARGE_OPTIMA[name] * GB
        assert packing.gap < 1e-6
        check_trees(packing, topology)
        check_certificate(packing, topology)

    def test_are_planned_by_symmetry_where_they_are_very_large(self):
        packing = optimal_packing(known_topology("64x8_h100"))
        assert packing.algbw == packing.certificate.bound == Fraction(64 * 400, 126) * GB
        assert len({tree.root for tree in packing.trees}) == 512
        check_certificate(packing, known_topology("64x8_h100"))

    def test_say_what_limits_them(self):
        assert len(optimal_packing(known_topology("dgx1_v100")).certificate.parts) == 8
        certificate = optimal_packing(known_topology("a100_pcie_8gpu")).certificate
        assert certificate.parts == (("gpu:0", "gpu:1", "gpu:2", "gpu:3"), ("gpu:4", "gpu:5", "gpu:6", "gpu:7"))
        assert {(source, target) for source, target, _ in certificate.prices} == {("cpu0", "cpu1"), ("cpu1", "cpu0")}
        packages = optimal_packing(known_topology("mi250")).certificate
        assert packages.is_partition
        assert [len(part) for part in packages.parts] == [2] * 8


class TestMeasuredMachines:
    """Matrices in which every link has a width of its own."""

    def test_of_sixteen_devices_are_planned_to_the_end(self):
        assert optimal_packing(measured(16, is_symmetric=False)).gap < 1e-6

    @pytest.mark.parametrize(("count", "is_symmetric"), [(20, False), (28, True), (64, True)])
    def test_of_more_take_few_linear_programs(self, monkeypatch, count, is_symmetric):
        """The last percents took a minute: planning ends before them, and says what that costs."""
        solved = []
        solve = columns._solve
        monkeypatch.setattr(columns, "_solve", lambda loads, width: solved.append(len(width)) or solve(loads, width))
        packing = optimal_packing(measured(count, is_symmetric=is_symmetric))
        assert 0 < len(solved) <= max(4, 10_000 // solved[0])
        assert 0.01 < packing.gap < 0.1
        assert packing.notes[-1] == f"{packing.gap:.2%} of the bound is not reached."


class TestSubsets:
    def test_of_a_dgx1v_are_planned_exactly(self):
        """All 180 connected ones of 3 to 7 GPUs, between 25 and 75 GB/s; with pairs and the whole there are 197."""
        topology = known_topology("dgx1_v100")
        found = connected_subsets(topology, range(3, 8))
        assert len(found) == 180
        assert len(found) + len(connected_subsets(topology, (2, 8))) == 197
        for part, packing in found:
            assert packing.certificate.is_partition
            assert packing.algbw == packing.certificate.bound
            check_trees(packing, part)
            check_certificate(packing, part)
        values = [packing.algbw for _, packing in found]
        assert (min(values), max(values)) == (25 * GB, 75 * GB)

    def test_keep_the_order_of_the_devices(self):
        packing = optimal_packing(known_topology("dgx1_v100"), ["cuda:3", "gpu:0", "GPU:4"])
        assert packing.devices == ("gpu:3", "gpu:0", "gpu:4")
        assert packing.algbw == 50 * GB

    def test_of_one_device_need_no_tree(self):
        packing = optimal_packing(known_topology("dgx2"), ["gpu:5"])
        assert packing.algbw_bytes_per_s == packing.bound_bytes_per_s == float("inf")
        assert [(tree.share, tree.root, tree.pairs, tree.depth) for tree in packing.trees] == [(1, "gpu:5", (), 0)]
        assert packing.gap == 0
        assert len(optimal_packing(known_topology("dgx2"), ["gpu:5"], packs=3).trees) == 3


class TestPacks:
    @pytest.mark.parametrize("packs", PACKS)
    def test_of_equal_size_reach_the_table(self, packs):
        topology = known_topology("dgx1_v100")
        packing = optimal_packing(topology, packs=packs)
        assert [tree.share for tree in packing.trees] == [Fraction(1, packs)] * packs
        assert packing.algbw >= PACKS[packs] * GB
        assert packing.certificate.bound == Fraction(600, 7) * GB
        check_trees(packing, topology)

    @pytest.mark.parametrize(("name", "packs"), [("dgx1_v100", 8), ("2x8_h100", 5)])
    def test_do_not_depend_on_how_busy_the_processor_is(self, monkeypatch, name, packs):
        """Solvers are bounded by what they do: with a bound in seconds, a busy machine would get worse trees."""
        options = set()

        def noting(solve, *given, **named):
            options.update(named.get("options", ()))
            return solve(*given, **named)

        for solver in (scipy.optimize.linprog, scipy.optimize.milp):
            monkeypatch.setattr(scipy.optimize, solver.__name__, functools.partial(noting, solver))
        optimal_packing(known_topology(name), packs=packs)
        assert options == {"node_limit", "mip_rel_gap"}

    def test_say_what_they_lose(self):
        assert optimal_packing(known_topology("dgx1_v100"), packs=3).notes == ("12.50% of the bound is not reached.",)

    def test_of_one_need_no_integer_program(self, monkeypatch):
        monkeypatch.delattr("scipy.optimize.milp")
        assert optimal_packing(known_topology("mesh:4"), packs=1).algbw == 25 * GB

    def test_are_chosen_on_switches_too(self):
        """One tree through a switch loads a port twice at best; sixteen use it whole."""
        topology = known_topology("dgx2")
        assert optimal_packing(topology, packs=1).algbw == 75 * GB
        assert optimal_packing(topology, packs=16).algbw == 80 * GB

    def test_are_chosen_where_symmetry_plans(self):
        topology = known_topology("16x8_h100")
        packing = optimal_packing(topology, packs=4)
        assert [tree.share for tree in packing.trees] == [Fraction(1, 4)] * 4
        check_trees(packing, topology)


class TestDepth:
    @pytest.mark.parametrize("name", ["dgx1_v100", "dgx1_p100", "mi250", "2x8_h100", "pcie3_8gpu", "dgx2"])
    def test_is_bounded(self, name):
        topology = known_topology(name)
        for max_depth in range(3, 7):
            packing = optimal_packing(topology, max_depth=max_depth)
            assert max(tree.depth for tree in packing.trees) <= max_depth
            assert packing.certificate.bound == OPTIMA[name] * GB
            check_trees(packing, topology)

    def test_of_two_is_enough_on_a_dgx1v(self):
        assert optimal_packing(known_topology("dgx1_v100"), max_depth=2).algbw == Fraction(600, 7) * GB

    def test_costs_nothing_where_the_best_trees_are_shallow(self):
        packing = optimal_packing(known_topology("2x8_a100"), max_depth=2)
        assert packing.trees == optimal_packing(known_topology("2x8_a100")).trees
        assert packing.gap == 0

    def test_leaves_one_tree_as_good_as_any(self):
        """A star through a switch loads a port 15 times; on a ring of eight, no link needs to be crossed twice."""
        assert optimal_packing(known_topology("dgx2"), packs=1, max_depth=1).algbw == 10 * GB
        assert optimal_packing(known_topology("ring:8"), packs=1, max_depth=4).algbw == 25 * GB

    def test_finds_the_shallowest_tree_there_is(self):
        builder = TopologyBuilder()
        for number in range(5):
            builder.device(f"gpu:{number}")
        for number in range(4):
            builder.link(f"gpu:{number}", f"gpu:{number + 1}", gb_per_s=100)
        builder.link("gpu:2", "gpu:0", gb_per_s=1).link("gpu:2", "gpu:4", gb_per_s=1)
        packing = optimal_packing(builder.build(), max_depth=1)
        assert [(tree.root, tree.depth) for tree in packing.trees] == [("gpu:2", 1)]
        assert packing.algbw == GB

    def test_that_no_tree_has_is_refused(self):
        sentence = "No tree that is 3 edges deep joins gpu:0, gpu:1, gpu:2, gpu:3, gpu:4 … (8 devices). Allow a larger "
        with pytest.raises(TopologyError, match=f"^{re.escape(sentence)}max_depth, or None for any\\.$"):
            optimal_packing(known_topology("ring:8"), max_depth=3)


class TestRoots:
    def test_are_where_latency_is_least(self):
        assert [tree.root for tree in optimal_packing(known_topology("line:7")).trees] == ["gpu:3"]
        builder = TopologyBuilder()
        for number in range(5):
            builder.device(f"gpu:{number}")
        for number in range(4):
            builder.link(f"gpu:{number}", f"gpu:{number + 1}", gb_per_s=1, alpha_us=10 if number == 0 else 1)
        assert [tree.root for tree in optimal_packing(builder.build()).trees] == ["gpu:1"]

    def test_spread_over_the_devices(self):
        packing = optimal_packing(known_topology("dgx_h100"))
        assert sorted(tree.root for tree in packing.trees) == [f"gpu:{number}" for number in range(8)]
        assert [tree.depth for tree in packing.trees] == [1] * 8


class TestBadInput:
    @pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
    @pytest.mark.parametrize("name", ["packs", "max_depth"])
    def test_numbers_of_nothing(self, name, number):
        sentence = f"optimal_packing got {name}={number!r}. It takes a whole number above 0, or None for any."
        with pytest.raises(TopologyError, match=f"^{re.escape(sentence)}$"):
            optimal_packing(known_topology("dgx2"), **{name: number})

    def test_a_missing_scipy(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        sentence = 'Planning for a topology needs SciPy, which is not installed. Run pip install "treefold[planner]".'
        with pytest.raises(errors.MissingExtraError, match=f"^{re.escape(sentence)}$"):
            optimal_packing(known_topology("dgx1_v100"))

    def test_planning_loads_scipy_and_importing_does_not(self):
        code = (
            "import sys, treefold; t = treefold.known_topology('ring:4'); a = 'scipy' in sys.modules; "
            "treefold.optimal_packing(t); print(a, 'scipy' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert done.stdout.split() == ["False", "True"]
