import importlib
import itertools
import math
import subprocess
import sys

import closed_forms
import pytest

import treefold
from treefold.errors import SimulationError
from treefold.planners.method import one_array
from treefold.planners.star import one_shot, star, two_shot
from treefold.planners.two_level import two_level
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.cost import MovementTimes
from treefold.topology.cost import simulate as simulate_call
from treefold.topology.cost.routes import LAUNCH_S
from treefold.topology.planning.ring import pack_rings, ring_trees
from treefold.topology.planning.tree_packing import SpanningTree, along, along_packing, optimal_packing

GB, US = 1e9, 1e-6
SIZES = [2**12, 2**20, 2**28, 2**32]
MACHINES = [
    "dgx1_p100",
    "dgx1_v100",
    "p3_8xlarge",
    "dgx2",
    "dgx_a100",
    "mi250",
    "mi300x",
    "pcie3_8gpu",
    "a100_pcie_8gpu",
]


def simulate(movement, machine, nbytes, **options):
    """Simulate links alone, as closed forms do: launching is left out."""
    return simulate_call(movement, machine, nbytes, launch_s=0, **options)


def gpus(count):
    return tuple(f"gpu:{number}" for number in range(count))


def switched(count, gb_per_s=100.0, alpha_us=2.0):
    """Return devices on one switch, the latency of a copy being twice that of a port."""
    builder = TopologyBuilder("switched").switch("sw")
    for device in gpus(count):
        builder.device(device).link(device, "sw", gb_per_s=gb_per_s, alpha_us=alpha_us)
    return builder.build()


def chain(count):
    order = gpus(count)[::-1]
    up = tuple(itertools.pairwise(order))
    return (SpanningTree(1, order[-1], up, tuple((b, a) for a, b in up[::-1])),)


class TestClosedForms:
    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize("count", [2, 3, 8])
    def test_of_rings(self, count, nbytes):
        machine = known_topology(f"ring:{count}:50")
        movement = along(ring_trees(gpus(count)), "ring").movement(one_array(gpus(count)))
        expected = closed_forms.ring_s(nbytes, count=count, bytes_per_s=50 * GB, alpha_s=0.7 * US)
        assert simulate(movement, machine, nbytes, chunk_bytes=None).duration_s == pytest.approx(expected, rel=0.01)

    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize(("depth", "num_chunks"), [(1, 1), (1, 7), (2, 1), (3, 16), (7, 100), (7, 3000)])
    def test_of_chains(self, depth, num_chunks, nbytes):
        machine = known_topology(f"line:{depth + 1}")
        movement = along(chain(depth + 1), "chain").movement(one_array(gpus(depth + 1)))
        expected = closed_forms.pipelined_tree_s(
            nbytes, depth=depth, bytes_per_s=25 * GB, alpha_s=0.7 * US, num_chunks=num_chunks
        )
        line = simulate(movement, machine, nbytes, chunk_bytes=nbytes / num_chunks)
        assert line.num_chunks == num_chunks
        assert line.duration_s == pytest.approx(expected, rel=0.01)

    @pytest.mark.parametrize("nbytes", SIZES[1:])
    @pytest.mark.parametrize("depth", [1, 2, 5])
    def test_of_the_best_chunk(self, depth, nbytes):
        machine = known_topology(f"line:{depth + 1}")
        movement = along(chain(depth + 1), "chain").movement(one_array(gpus(depth + 1)))
        line = simulate(movement, machine, nbytes)
        given = {"depth": depth, "bytes_per_s": 25 * GB, "alpha_s": 0.7 * US}
        assert line.duration_s == pytest.approx(closed_forms.best_tree_s(nbytes, **given), rel=0.01)
        assert nbytes / line.num_chunks == pytest.approx(closed_forms.best_chunk_bytes(nbytes, **given), rel=0.05)

    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize("count", [2, 5, 16])
    def test_of_stars(self, count, nbytes):
        expected = closed_forms.star_s(nbytes, count=count, port_bytes_per_s=100 * GB, alpha_s=4 * US)
        found = simulate(star("gpu:0").movement(one_array(gpus(count))), switched(count), nbytes, chunk_bytes=None)
        assert found.duration_s == pytest.approx(expected, rel=0.01)

    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize(
        ("method", "form"),
        [(one_shot(), closed_forms.one_shot_s), (two_shot(gpus(6)), closed_forms.two_shot_s)],
    )
    def test_of_meshes(self, method, form, nbytes):
        expected = form(nbytes, count=6, port_bytes_per_s=5 * 25 * GB, alpha_s=0.7 * US)
        found = simulate(method.movement(one_array(gpus(6))), known_topology("mesh:6"), nbytes, chunk_bytes=None)
        assert found.duration_s == pytest.approx(expected, rel=0.01)

    @pytest.mark.parametrize("count", [2, 4, 7, 8])
    def test_of_two_levels(self, count):
        expected = closed_forms.two_level_s(2**28, count=count, link_bytes_per_s=25 * GB, alpha_s=0.7 * US)
        movement = two_level().movement(one_array(gpus(count)))
        found = simulate(movement, known_topology(f"mesh:{count}"), 2**28, chunk_bytes=None)
        assert found.duration_s == pytest.approx(expected, rel=0.01)

    @pytest.mark.parametrize("name", MACHINES)
    @pytest.mark.parametrize("nbytes", [2**20, 2**28])
    def test_of_any_plan_are_near(self, name, nbytes):
        """The closed form for large machines is within a third of the simulation on small ones."""
        machine = known_topology(name)
        movement = along_packing(optimal_packing(machine)).movement(one_array(machine.devices))
        exact = simulate(movement, machine, nbytes).duration_s
        assert exact * 2 / 3 < MovementTimes(movement, machine).predicted_s(nbytes) - LAUNCH_S < exact * 4 / 3


class TestOptimalPackings:
    @pytest.mark.parametrize("name", [*MACHINES, "2x8_a100"])
    def test_reach_their_rate(self, name):
        """At 4 GiB, 95 % of S/X and never more than X."""
        machine = known_topology(name)
        packing = optimal_packing(machine)
        line = simulate(along_packing(packing).movement(one_array(machine.devices)), machine, 2**32)
        assert 0.95 < line.algbw_bytes_per_s / packing.algbw_bytes_per_s < 1 + 1e-5

    @pytest.mark.parametrize("name", MACHINES)
    def test_are_never_slower_than_two_levels(self, name):
        """TensorFlow's tree in one pack; on a DGX-1V it takes more than twice as long."""
        machine = known_topology(name)
        work = one_array(machine.devices)
        mine = simulate(along_packing(optimal_packing(machine)).movement(work), machine, 2**28).duration_s
        theirs = simulate(two_level().movement(work), machine, 2**28).duration_s
        assert mine * (2 if name == "dgx1_v100" else 1) < theirs


class TestTimeline:
    def test_counts_the_bytes_of_every_link(self):
        line = simulate(star("gpu:0").movement(one_array(gpus(3))), switched(3), 3e6)
        up, down = (
            (("gpu:1", "sw"), ("gpu:2", "sw"), ("sw", "gpu:0")),
            (("gpu:0", "sw"), ("sw", "gpu:1"), ("sw", "gpu:2")),
        )
        assert {link: use.nbytes for link, use in line.links.items()} == pytest.approx(
            dict(zip(up + down, (3e6, 3e6, 6e6, 6e6, 3e6, 3e6), strict=True))
        )

    def test_loads_no_link_beyond_its_capacity(self):
        machine = known_topology("a100_pcie_8gpu")
        line = simulate(two_shot(machine.devices).movement(one_array(machine.devices)), machine, 2**26)
        for link, use in line.links.items():
            assert use.nbytes <= float(machine.capacities[link]) * use.busy_s * (1 + 1e-9)
            assert use.busy_s <= line.duration_s * (1 + 1e-9)

    def test_has_a_critical_path_without_gaps(self):
        machine = known_topology("dgx1_v100")
        line = simulate(along_packing(optimal_packing(machine)).movement(one_array(machine.devices)), machine, 2**24)
        path = line.critical_path
        assert path[0].start_s == 0
        assert path[-1].stop_s == line.duration_s
        assert all(a.stop_s == pytest.approx(b.start_s) for a, b in itertools.pairwise(path))
        assert all(line.activities[w.activity].spans[w.span] == (w.start_s, w.stop_s) for w in path)

    def test_starts_nothing_before_what_it_reads(self):
        """The copies down of every pack and chunk start after some copy up has stopped."""
        machine = known_topology("line:3")
        line = simulate(along(chain(3), "chain").movement(one_array(gpus(3))), machine, 1e6, chunk_bytes=1e5)
        up, down = ([a for a in line.activities if a.route == way] for way in (("gpu:1", "gpu:0"), ("gpu:0", "gpu:1")))
        assert all(d[0] >= u[1] for u, d in zip(up[0].spans, down[0].spans, strict=True))
        assert down[0].spans[0][0] < up[0].spans[-1][0], "chunks go down while others go up"

    def test_folds_at_the_rate_given(self):
        """Two contributions of 1 GB are read at 4 GB/s in half a second; folding may cost more than sending."""
        movement = star("gpu:0").movement(one_array(gpus(2)))
        free = simulate(movement, known_topology("ring:2"), 1e9, chunk_bytes=None)
        paid = simulate(movement, known_topology("ring:2"), 1e9, chunk_bytes=None, reduce_bytes_per_s=4e9)
        assert paid.duration_s - free.duration_s == pytest.approx(0.5 + 0.25, rel=0.5)
        assert paid.devices["gpu:0"].busy_s >= 0.5

    def test_of_nothing_is_latency(self):
        line = simulate(star("gpu:0").movement(one_array(gpus(2))), known_topology("ring:2"), 0)
        assert line.duration_s == pytest.approx(1.4 * US)


class TestLaunch:
    @pytest.mark.parametrize("nbytes", [0, 2**12, 2**28])
    def test_is_paid_once_before_anything_moves(self, nbytes):
        """Whatever the size; 7 µs unless told otherwise, the least that others have measured of a few bytes."""
        machine = known_topology("dgx_a100")
        movement = two_shot(machine.devices).movement(one_array(machine.devices))
        links = simulate(movement, machine, nbytes).duration_s
        line = simulate_call(movement, machine, nbytes)
        assert line.duration_s == pytest.approx(links + 7 * US)
        assert line.critical_path[0].start_s == pytest.approx(7 * US)
        assert simulate_call(movement, machine, nbytes, launch_s=1).duration_s == pytest.approx(links + 1)
        assert MovementTimes(movement, machine).simulated_s(nbytes) == line.duration_s

    @pytest.mark.parametrize("name", ["dgx1_v100", "dgx_a100", "dgx_h100", "mi300x"])
    def test_puts_few_bytes_where_they_were_measured(self, name):
        """4 KiB between eight GPUs of a host: no method below 7 µs, and rings within the 12 to 20 of NCCL and RCCL."""
        machine = known_topology(name)
        assert (
            7 * US < simulate_call(one_shot().movement(one_array(machine.devices)), machine, 2**12).duration_s < 20 * US
        )
        assert 12 * US < pack_rings(machine).predict_s(2**12) < 20 * US

    def test_costs_nothing_on_one_device(self):
        movement, machine = star("gpu:0").movement(one_array(gpus(1))), known_topology("ring:1")
        assert (
            simulate_call(movement, machine, 1e9).duration_s == MovementTimes(movement, machine).predicted_s(1e9) == 0
        )


class TestLongPipelines:
    @pytest.mark.parametrize("name", ["dgx1_v100", "a100_pcie_8gpu"])
    def test_are_drawn_out(self, name, monkeypatch):
        """Fewer chunks of the same size foretell all of them to two percent."""
        machine = known_topology(name)
        movement = along_packing(optimal_packing(machine)).movement(one_array(machine.devices))
        monkeypatch.setattr(importlib.import_module("treefold.topology.cost.simulation"), "_MOST_SPANS", 10**9)
        whole = simulate(movement, machine, 2**30)
        monkeypatch.setattr(importlib.import_module("treefold.topology.cost.simulation"), "_MOST_SPANS", 1)
        drawn = simulate(movement, machine, 2**30)
        assert drawn.chunks_per_span > 2
        assert drawn.duration_s == pytest.approx(whole.duration_s, rel=0.02)
        assert {link: use.nbytes for link, use in drawn.links.items()} == pytest.approx(
            {link: use.nbytes for link, use in whole.links.items()}
        )


WITHOUT_NATIVE = """
import sys
sys.modules["treefold._native"] = None
import warnings
warnings.simplefilter("ignore")
import treefold
from treefold.planners.method import one_array
from treefold.planners.star import star
machine = treefold.known_topology("ring:2")
try:
    treefold.simulate(star("gpu:0").movement(one_array(machine.devices)), machine, 1)
except ImportError as error:
    print(type(error).__name__, error)
"""


class TestRefusals:
    def test_of_an_installation_without_the_clock(self):
        """A clock in Python would take minutes for one prediction."""
        done = subprocess.run([sys.executable, "-c", WITHOUT_NATIVE], capture_output=True, text=True, check=True)  # noqa: S603
        assert done.stdout.strip() == (
            "InstallationError Simulating a plan needs treefold._native, which is not installed. "
            "Install treefold with a C++17 compiler at hand, or from a wheel."
        )

    def test_of_devices_that_the_machine_does_not_have(self):
        sentence = (
            r"^The plan uses gpu:2, and the topology has gpu:0, gpu:1\. Plan for devices of the topology, or simulate "
            r"on one that has them\.$"
        )
        with pytest.raises(SimulationError, match=sentence):
            treefold.simulate(star("gpu:0").movement(one_array(gpus(3))), known_topology("ring:2"), 1)

    @pytest.mark.parametrize(
        ("name", "values", "words"),
        [
            ("nbytes", [-1, math.inf, math.nan, "1M", True], "a finite number of bytes, 0 or more"),
            ("launch_s", [-1, math.inf, math.nan, "7 µs", True], "a finite number of seconds, 0 or more"),
            (
                "chunk_bytes",
                [0, -1, math.inf, "best", True],
                'a finite number of bytes above 0, None for whole packs, or "auto"',
            ),
            (
                "reduce_bytes_per_s",
                [0, -1, math.nan, "fast"],
                "a number above 0; infinity means that folding costs nothing",
            ),
        ],
    )
    def test_of_numbers_that_nothing_has(self, name, values, words):
        movement, machine = star("gpu:0").movement(one_array(gpus(2))), known_topology("ring:2")
        for value in values:
            with pytest.raises(SimulationError, match=rf"^{name} is .*\. It takes {words}\.$"):
                simulate_call(movement, machine, **{"nbytes": 1, name: value})


class TestLasting:
    def test_stretches_all_times_alike(self):
        machine = known_topology("ring:3")
        timeline = simulate(star("gpu:0").movement(one_array(machine.devices)), machine, 2**20)
        longer = timeline.lasting(2 * timeline.duration_s)
        assert longer.duration_s == 2 * timeline.duration_s
        for before, after in zip(timeline.activities, longer.activities, strict=True):
            assert after.spans == tuple((2 * start, 2 * stop) for start, stop in before.spans)
            assert after.nbytes == before.nbytes
        assert [wait.stop_s for wait in longer.critical_path] == [2 * wait.stop_s for wait in timeline.critical_path]
        assert max(use.spans[-1][1] for use in longer.links.values()) == pytest.approx(longer.duration_s)
