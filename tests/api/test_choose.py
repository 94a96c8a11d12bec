"""``choose_cross_device_ops`` where links are known: the predicted times of the plans that run decide."""

import json
import pathlib
import re

import numpy as np
import pytest

import treefold
from treefold import HierarchicalCopyAllReduce, NcclAllReduce, PerReplica, ReductionToOneDevice, simulate
from treefold.backends import additional_backend
from treefold.errors import ArgumentError, DeviceError, MissingExtraError, ParseError, TopologyError
from treefold.execution import links
from treefold.execution.links import LinkResult
from treefold.testing import FakeBackend, RecordingBackend, owned
from treefold.topology import TopologyBuilder, choosing
from treefold.topology.cost import MovementTimes, from_copies, refine
from treefold.topology.planning.ring import pack_rings

ROOT = pathlib.Path(__file__).parents[2]
DGX1 = treefold.known_topology("dgx1_v100")
STAR, ONE_PACK, PACKS = (
    "ReductionToOneDevice()",
    "HierarchicalCopyAllReduce(num_packs=1)",
    "HierarchicalCopyAllReduce(num_packs='auto')",
)
MIB = 2**20


def gpus(*numbers):
    return [f"gpu:{number}" for number in numbers]


def trees(name):
    """Return what the ops along a machine's trees are called."""
    return f"HierarchicalCopyAllReduce(num_packs='auto', topology={name!r})"


def copies(devices, bytes_per_s=25e9, alpha_s=1e-6, problem=""):
    """Return what verify_links says of all directed pairs, if all are alike."""
    return [LinkResult(a, b, problem, bytes_per_s, alpha_s) for a in devices for b in devices if a != b]


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """Find the same everywhere: no NCCL, and nothing set that lets the system be asked for its GPUs."""
    refusal = choosing.nccl_refusal
    monkeypatch.setattr(choosing, "nccl_refusal", lambda names: refusal(names) or "not in this test")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def nccl(monkeypatch):
    monkeypatch.setattr(choosing, "nccl_refusal", lambda _devices: "")


@pytest.fixture
def fake(monkeypatch):
    """Return a framework with eight devices, and know nothing of their links before and after the test."""
    monkeypatch.setattr(links, "_known", {})
    with additional_backend(FakeBackend(8)) as backend:
        yield backend


class TestPredictedTimes:
    @pytest.mark.parametrize(
        ("machine", "devices"),
        [
            ("dgx1_v100", range(8)),
            ("dgx1_v100", (5, 0, 3, 6, 2)),
            ("a100_pcie_8gpu", range(8)),
            ("ring:3", (0, 1, 2, 1)),  # two replicas on one device
        ],
    )
    @pytest.mark.parametrize("nbytes", [4096, 64 * MIB])
    def test_are_those_of_the_plans_that_run(self, machine, devices, nbytes):
        names = gpus(*devices)
        choice = treefold.choose_cross_device_ops(names, topology=machine, nbytes=nbytes)
        here = treefold.known_topology(machine).restricted(dict.fromkeys(names))
        made = [ReductionToOneDevice(), HierarchicalCopyAllReduce(1), HierarchicalCopyAllReduce("auto")]
        made.append(HierarchicalCopyAllReduce("auto", topology=machine))
        with additional_backend(RecordingBackend(8)) as backend:
            value = PerReplica([backend.empty((nbytes // 4,), "float32", name) for name in names])
            expected = {repr(ops): simulate(ops.plan(value, value), here, nbytes).duration_s for ops in made}
            assert dict(choice.predicted) == expected
            run = simulate(choice.ops.plan(value, value), here, nbytes).duration_s
        assert run == choice.predicted[repr(choice.ops)] <= 1.01 * min(expected.values())

    def test_of_large_machines_are_in_closed_form(self):
        names = gpus(*range(18))
        choice = treefold.choose_cross_device_ops(names, topology="ring:18", nbytes=MIB)
        with additional_backend(RecordingBackend(18)) as backend:
            value = PerReplica([backend.empty((MIB // 4,), "float32", name) for name in names])
            plan = HierarchicalCopyAllReduce("auto").plan(value, value)
        assert choice.predicted[PACKS] == MovementTimes(plan, treefold.known_topology("ring:18")).predicted_s(MIB)

    @pytest.mark.usefixtures("nccl")
    def test_are_the_rings_where_nccl_can_be_used(self):
        """NCCL's own way is not ours to plan: the rings that it would pack stand for it."""
        choice = treefold.choose_cross_device_ops(gpus(*range(8)), topology=DGX1)
        rings = pack_rings(DGX1)
        assert choice.predicted["NcclAllReduce(num_packs=1)"] == rings.predict_s(64 * MIB)
        assert "NcclAllReduce as rings 800 µs" in choice.why

    @pytest.mark.parametrize("nbytes", [1, 3, 4097])
    def test_are_of_all_bytes(self, nbytes):
        short, long = (
            treefold.choose_cross_device_ops(gpus(0, 1, 2), topology="ring:3", nbytes=n).predicted[STAR]
            for n in (nbytes, nbytes + 1)
        )
        assert short < long


class TestChoice:
    def test_on_a_dgx1_is_its_trees(self):
        choice = treefold.choose_cross_device_ops(gpus(*range(8)), topology="dgx1_v100")
        assert repr(choice.ops) == trees("dgx1_v100")
        times, about_nccl = choice.why.split("; ")
        assert times == (
            "8 GPUs on dgx1_v100, 64 MiB each: HierarchicalCopyAllReduce along the machine's trees 800 µs, "
            "HierarchicalCopyAllReduce in 8 packs 1.35 ms, HierarchicalCopyAllReduce in one pack 2.82 ms, "
            "ReductionToOneDevice 5.51 ms, predicted"
        )
        assert about_nccl.startswith("NcclAllReduce is not compared: ")
        paper = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
        assert f"{choice.ops!r}\n{times}; NcclAllReduce" in paper.replace(",\n", ", ")  # what is pasted there is so

    def test_unpacks_into_two(self):
        choice = treefold.choose_cross_device_ops(gpus(0, 1), topology="ring:2")
        ops, why = choice
        assert (ops, why) == (choice.ops, choice.why) == (choice[0], choice[1])
        assert len(choice.predicted) >= 4
        with pytest.raises(TypeError):
            choice.predicted[STAR] = 0.0

    def test_depends_on_the_size(self):
        """Through one port, packs in turn win where bytes cost, and one-shot where latency does."""
        names = gpus(*range(8))
        large = treefold.choose_cross_device_ops(names, topology="dgx_a100")
        small = treefold.choose_cross_device_ops(names, topology="dgx_a100", nbytes=4096)
        assert (repr(large.ops), repr(small.ops)) == (PACKS, trees("dgx_a100"))
        assert "in 8 packs 401 µs (the simplest within 1 %)" in large.why
        assert "4 KiB each" in small.why

    def test_of_ops_as_good_is_the_simplest(self):
        """Along a line of three from its middle, one pack of a star is already as quick as any tree."""
        builder = TopologyBuilder("line").device("gpu:1").device("gpu:0").device("gpu:2")
        line = builder.link("gpu:0", "gpu:1", gb_per_s=25).link("gpu:0", "gpu:2", gb_per_s=25).build()
        ops, why = treefold.choose_cross_device_ops(gpus(0, 1, 2), topology=line)
        assert type(ops) is ReductionToOneDevice
        assert why.startswith("3 GPUs on line, 64 MiB each: ReductionToOneDevice 2.69 ms")

    @pytest.mark.usefixtures("nccl")
    def test_is_nccl_where_nothing_is_quicker_than_its_rings(self):
        """On a ring and on a whole DGX-1 they fill the links; between seven of its GPUs they leave some idle."""
        for name in ("ring:8", "dgx1_v100"):
            whole = treefold.choose_cross_device_ops(gpus(*range(8)), topology=name)
            assert type(whole.ops) is NcclAllReduce
            assert whole.why.startswith(f"8 GPUs on {name}, 64 MiB each: NcclAllReduce as rings ")
            assert whole.predicted[repr(whole.ops)] <= 1.01 * min(whole.predicted.values())
        part = treefold.choose_cross_device_ops(gpus(*range(7)), topology=DGX1)
        assert repr(part.ops) == trees("dgx1_v100")
        assert part.predicted["NcclAllReduce(num_packs=1)"] > 1.15 * part.predicted[trees("dgx1_v100")]

    def test_takes_a_name_a_path_or_a_topology(self, tmp_path):
        path = tmp_path / "machine.json"
        path.write_text(json.dumps(DGX1.to_json()))
        choices = [
            treefold.choose_cross_device_ops(gpus(0, 1, 2), topology=machine, nbytes=MIB)
            for machine in (DGX1, "dgx1_v100", path, str(path))
        ]
        assert all(choice[1:] == choices[0][1:] for choice in choices)
        assert all(dict(choice.predicted) == dict(choices[0].predicted) for choice in choices)

    def test_reduces_what_it_was_made_for(self, fake):
        ops, _ = treefold.choose_cross_device_ops(gpus(0, 1, 2), topology=DGX1)
        for devices in ((0, 1, 2), (4, 5, 6, 7)):
            value = PerReplica([fake.array(owned(r, (9,)), f"gpu:{d}") for r, d in enumerate(devices)])
            for array in ops.reduce("sum", value, value).values:
                assert np.array_equal(array.data, sum(owned(r, (9,)) for r in range(len(devices))))

    def test_on_one_device_or_the_host_needs_no_times(self):
        same = treefold.choose_cross_device_ops(["gpu:1", "cuda:1"], topology=DGX1)
        assert same.why == "every replica is on gpu:1, where they meet without a copy"
        host = treefold.choose_cross_device_ops(["cpu:0", "cpu:1"])
        assert host.why == "all devices share host memory, where every plan is one pass in replica order"
        assert [type(choice.ops) for choice in (same, host)] == [ReductionToOneDevice] * 2
        assert not same.predicted
        assert not host.predicted

    def test_without_scipy_is_among_the_others(self, monkeypatch):
        def missing(*_args, **_options):
            raise MissingExtraError("SciPy is not installed.")

        monkeypatch.setattr("treefold.topology.for_ops.MethodsBySize.method", missing)
        choice = treefold.choose_cross_device_ops(gpus(*range(8)), topology=DGX1)
        assert repr(choice.ops) == PACKS
        assert 'trees are not compared: they need SciPy (pip install "treefold[planner]")' in choice.why


@pytest.mark.usefixtures("fake")
class TestMeasuredLinks:
    def test_take_the_place_of_counting(self):
        names = gpus(0, 1, 2)
        counted = treefold.choose_cross_device_ops(names)
        assert not counted.predicted
        assert re.search(r"whose links are not known: .*; treefold\.verify_links\(\) or topology= would", counted.why)
        links.use(copies(names))
        even = treefold.choose_cross_device_ops(names)
        assert repr(even.ops) == trees("measured links")
        assert even.why.startswith("3 GPUs on links as measured, 64 MiB each: ")
        links.use(copies(gpus(1, 2), bytes_per_s=1e9))  # what packs with rotating roots must cross, and a star need not
        uneven = treefold.choose_cross_device_ops(names)
        assert uneven.predicted[PACKS] > 4 * even.predicted[PACKS]
        assert uneven.predicted[STAR] == even.predicted[STAR]

    def test_decide_by_latency_as_well(self):
        """Between two GPUs one pack is as good as two until chunks of it have to wait."""
        chosen = []
        for alpha_s in (0.0, 1e-5):
            links.use(copies(gpus(0, 1), alpha_s=alpha_s))
            chosen.append(repr(treefold.choose_cross_device_ops(gpus(0, 1)).ops))
        assert chosen == [STAR, PACKS]

    def test_price_the_plans_that_run(self):
        names = gpus(0, 1, 2, 3)
        links.use(copies(names, 12e9, 9e-6))
        choice = treefold.choose_cross_device_ops(names, nbytes=MIB)
        machine = from_copies(names, {(link.source, link.target): (12e9, 9e-6) for link in links.known()})
        with additional_backend(RecordingBackend(8)) as backend:
            value = PerReplica([backend.empty((MIB // 4,), "float32", name) for name in names])
            assert (
                choice.predicted[repr(choice.ops)] == simulate(choice.ops.plan(value, value), machine, MIB).duration_s
            )

    def test_of_a_pair_are_missing(self):
        links.use(copies(gpus(0, 1)))
        assert treefold.choose_cross_device_ops(gpus(0, 1)).predicted
        assert not treefold.choose_cross_device_ops(gpus(0, 1, 2)).predicted

    def test_that_lie_cost_the_way_through_the_host(self):
        """Both halves of it have to be known."""
        links.use(copies(gpus(0, 1), 0.0, 0.0, problem="1 of 3 bytes are wrong"))
        assert not treefold.choose_cross_device_ops(gpus(0, 1)).predicted
        links.use(copies(["gpu:0", "cpu:0"], 12e9, 4e-6) + copies(["gpu:1", "cpu:0"], 10e9, 5e-6))
        assert choosing.measured_machine(tuple(gpus(0, 1))) == from_copies(
            gpus(0, 1), dict.fromkeys([("gpu:0", "gpu:1"), ("gpu:1", "gpu:0")], (10e9, 9e-6))
        )

    def test_to_the_host_price_a_mixture(self):
        mixed = ["cpu:0", "gpu:0", "gpu:1"]
        assert treefold.choose_cross_device_ops(mixed).why.startswith("cpu and gpu are mixed; one device meets every")
        links.use(copies(mixed, 12e9, 9e-6))
        choice = treefold.choose_cross_device_ops(mixed)
        assert choice.why.startswith("1 CPU and 2 GPUs on links as measured, 64 MiB each: ")
        assert choice.why.endswith("NcclAllReduce is not compared: NCCL reduces between GPUs only")

    def test_refine_what_the_system_shows(self, monkeypatch):
        """Where NVML counts as CUDA does; PCIe beside NVLinks that join all GPUs is idle."""
        builder = TopologyBuilder("here").host("numa:0")
        for name in gpus(0, 1, 2, 3):
            builder.device(name).link(name, "numa:0", gb_per_s=12, alpha_us=6, kind="pcie")
        slow = builder.build()
        monkeypatch.setattr(choosing, "discover_topology", lambda: slow)
        links.use(copies(gpus(0, 1, 2), 20e9, 8e-6))
        names = tuple(gpus(0, 1, 2))
        assert choosing.measured_machine(names).name == "measured links"
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        machine = choosing.measured_machine(names)
        figures = {(link.source, link.target): (20e9, 8e-6) for link in links.known()}
        assert machine == refine(slow.restricted(names), figures)
        assert machine.capacity("gpu:0", "numa:0") == 20e9
        for a, b in ((0, 1), (1, 2)):
            builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=18, alpha_us=1, kind="nvlink")
        fast = builder.build()
        monkeypatch.setattr(choosing, "discover_topology", lambda: fast)
        machine = choosing.measured_machine(names)
        assert {link.kind for link in machine.links} == {"nvlink"}
        assert machine.capacity("gpu:0", "gpu:1") == 20e9
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3")
        assert choosing.measured_machine(names).name == "measured links"

    @pytest.mark.parametrize("error", [ParseError("no driver"), OSError("no /sys")])
    def test_need_nothing_of_the_system(self, monkeypatch, error):
        def fails():
            raise error

        monkeypatch.setattr(choosing, "discover_topology", fails)
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        links.use(copies(gpus(0, 1)))
        assert treefold.choose_cross_device_ops(gpus(0, 1)).predicted

    def test_are_not_asked_where_there_is_a_topology(self):
        links.use(copies(gpus(0, 1), 1e9))
        assert "on ring:2" in treefold.choose_cross_device_ops(gpus(0, 1), topology="ring:2").why


class TestErrors:
    @pytest.mark.parametrize("nbytes", [0, -1, 1.5, True, "64M", None])
    def test_bytes_that_are_none(self, nbytes):
        with pytest.raises(ArgumentError) as caught:
            treefold.choose_cross_device_ops(["cpu:0"], nbytes=nbytes)
        assert str(caught.value) == (
            f"nbytes is {nbytes!r}. It takes the bytes that each replica brings: a whole number, 1 or more."
        )

    def test_devices_that_the_topology_does_not_have(self):
        with pytest.raises(TopologyError, match=r"^There is no cpu:0, gpu:8 in this topology\. It has gpu:0, "):
            treefold.choose_cross_device_ops(["gpu:1", "cpu:0", "gpu:8"], topology=DGX1)

    def test_a_topology_that_is_none(self):
        with pytest.raises(ArgumentError, match=r"^topology is 8\. It takes a treefold\.Topology, the name of"):
            treefold.choose_cross_device_ops(gpus(0), topology=8)

    def test_devices_that_nothing_reports(self):
        with pytest.raises(DeviceError, match=r"^No loaded framework reports a device gpu:0; loaded: NumPy"):
            treefold.choose_cross_device_ops(gpus(0, 1))
