# ruff: noqa: N802 - the names and errors are those of NVML
import re
from types import SimpleNamespace

import pytest
import shown

from treefold.errors import ParseError
from treefold.topology.discover import discover_topology

GPU, CPU, SWITCH = 0, 1, 2  # NVML's kinds of what an NVLink leads to


class NvmlError(Exception):
    """Stands for nvidia-ml-py's."""


class FakeNvml:
    """NVML of some GPUs: bus id, compute capability, and where each NVLink leads (None: it is down)."""

    NVMLError = NvmlError

    def __init__(self, *gpus):
        self.gpus = gpus

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=gpu[0])

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return gpu[1]

    def _link(self, gpu, link):
        if link >= len(gpu[2]):
            raise NvmlError("Invalid Argument")
        return gpu[2][link]

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        return 0 if self._link(gpu, link) is None else 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):
        remote, _ = self._link(gpu, link)
        if remote is None:
            raise NvmlError("Not Supported")
        return SimpleNamespace(busId=remote.encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):
        return self._link(gpu, link)[1]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture
def sysfs(tmp_path):
    """Two GPUs below one switch of NUMA node 0, and one on a port of its own of NUMA node 1."""
    root = tmp_path / "sys"
    port = root / "devices" / "pci0000:16" / "0000:16:02.0"
    write(port, max_link_speed="16.0 GT/s PCIe", max_link_width=16)
    write(port / "0000:17:00.0", max_link_speed="16.0 GT/s PCIe", max_link_width=16)
    other = root / "devices" / "pci0000:c9" / "0000:c9:02.0"
    write(other, max_link_speed="32.0 GT/s PCIe", max_link_width=16)
    slots = {
        "0000:1b:00.0": (port / "0000:17:00.0" / "0000:1b:00.0", "32.0 GT/s PCIe", 16, 0),
        "0000:1c:00.0": (port / "0000:17:00.0" / "0000:1c:00.0", "32.0 GT/s PCIe", 8, 0),
        "0000:ca:00.0": (other / "0000:ca:00.0", "Unknown", 255, 1),
    }
    (root / "bus" / "pci" / "devices").mkdir(parents=True)
    for bus_id, (folder, speed, width, numa) in slots.items():
        write(folder, max_link_speed=speed, max_link_width=width, numa_node=numa)
        (root / "bus" / "pci" / "devices" / bus_id).symlink_to(folder)
    write(root / "devices" / "system" / "node" / "node0", cpulist="0-31")
    write(root / "devices" / "system" / "node" / "node1", cpulist="32-63")
    write(root / "devices" / "system" / "node" / "node2", cpulist="")
    return root


@pytest.fixture
def cpuinfo(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n", encoding="utf-8")
    return file


FIRST, SECOND, THIRD = "00000000:1B:00.0", "00000000:1C:00.0", "00000000:CA:00.0"


class TestGpus:
    def test_slots_and_sockets(self, sysfs, cpuinfo, monkeypatch):
        """The PCIe tree is that of the system: every port with its own width, unknown ones as gen 3 x16."""
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        nvml = FakeNvml((FIRST, (8, 6), []), (SECOND, (8, 6), []), (THIRD, (8, 6), []))
        topology = discover_topology(nvml=nvml, sysfs=sysfs, cpuinfo=cpuinfo)
        assert shown.tree(topology) == {
            "pci 0000:16:02.0": ("numa:0", 24),
            "pci 0000:17:00.0": ("pci 0000:16:02.0", 24),
            "gpu:0": ("pci 0000:17:00.0", 48),
            "gpu:1": ("pci 0000:17:00.0", 24),
            "pci 0000:c9:02.0": ("numa:1", 48),
            "gpu:2": ("pci 0000:c9:02.0", 12),
        }
        assert shown.between(topology) == {("numa:0", "numa:1"): 16}
        assert shown.matrix(topology) == [[0] * 3] * 3

    def test_nvlinks_between_gpus(self, sysfs, cpuinfo):
        nvml = FakeNvml(
            (FIRST, (7, 0), [(SECOND, GPU), None, (SECOND, GPU), (THIRD, GPU)]),
            (SECOND, (7, 0), [(FIRST, GPU), (FIRST, GPU)]),
            (THIRD, (7, 0), [(FIRST, GPU), ("00000000:EE:00.0", GPU), (None, GPU)]),
        )
        topology = discover_topology(nvml=nvml, sysfs=sysfs, cpuinfo=cpuinfo)
        assert shown.matrix(topology) == [[0, 40, 20], [40, 0, 0], [20, 0, 0]]
        assert topology.notes[:2] == (
            "Some NVLinks lead to GPUs that this process does not see; they are left out.",
            "NVML does not say where some NVLinks lead; they are left out.",
        )

    def test_nvlinks_to_switches_and_cpus(self, sysfs, cpuinfo):
        """All switch chips are one switch; a link to a CPU leads to the GPU's own socket."""
        nvml = FakeNvml(
            (FIRST, (9, 0), [(f"00000000:0{chip}:00.0", SWITCH) for chip in (5, 6, 7, 8)]),
            (THIRD, (9, 0), [("00000000:05:00.0", SWITCH), ("00000000:01:00.0", CPU)]),
        )
        topology = discover_topology(nvml=nvml, sysfs=sysfs, cpuinfo=cpuinfo)
        assert shown.ports(topology) == {"gpu:0": ("nvswitch", 82.4), "gpu:1": ("nvswitch", 20.6)}
        assert [link.target for link in topology.links if link.source == "gpu:1"] == [
            "nvswitch",
            "numa:1",
            "pci 0000:c9:02.0",
        ]

    def test_that_are_lost_are_an_error(self, sysfs, cpuinfo):
        class Lost(FakeNvml):
            def nvmlDeviceGetPciInfo(self, gpu):  # noqa: ARG002 - as the others
                raise NvmlError("GPU is lost")

        sentence = "NVML does not describe this machine: GPU is lost. Give its topology as a file instead."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            discover_topology(nvml=Lost((FIRST, (8, 0), [])), sysfs=sysfs, cpuinfo=cpuinfo)


class TestNumaNodes:
    def test_are_the_devices_where_there_is_no_gpu(self, sysfs, cpuinfo, monkeypatch):
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        topology = discover_topology(nvml=FakeNvml(), sysfs=sysfs, cpuinfo=cpuinfo)
        assert topology.devices == ("cpu:0", "cpu:1")
        assert shown.between(topology) == {("cpu:0", "cpu:1"): 16}
        assert topology.notes == (
            "No GPU was found: the devices are the NUMA nodes of this machine.",
            "Between NUMA nodes 16 GB/s are taken, as NCCL does between sockets of this CPU.",
        )

    def test_one_where_the_system_says_nothing(self, tmp_path):
        topology = discover_topology(nvml=FakeNvml(), sysfs=tmp_path / "none", cpuinfo=tmp_path / "none")
        assert (topology.devices, topology.links) == (("cpu:0",), ())


class TestThisMachine:
    def test_is_described(self):
        topology = discover_topology()
        assert topology.devices
        assert {device.partition(":")[0] for device in topology.devices} <= {"cpu", "gpu"}
