import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError


class TestGpus:
    def test_nvlinks_and_slots(self):
        """NVML's numbers, raw MB/s cut to NCCL's share, chips as one switch, no graphics chip of the server."""
        topology = treefold.load_topology(pasted.HWLOC_NVLINKS)
        assert shown.matrix(topology) == [[0, 40], [40, 0]]
        assert shown.ports(topology) == {"gpu:1": ("nvswitch", 80), "gpu:0": ("nvswitch", 20)}
        assert shown.tree(topology) == {
            "pci 0000:30:00.0": ("socket 0", 6),
            "gpu:1": ("pci 0000:30:00.0", 12),
            "gpu:0": ("socket 1", 12),
            "nic mlx5_0": ("socket 1", 12),
        }
        assert shown.between(topology) == {("socket 0", "socket 1"): 10}

    @pytest.mark.parametrize(("device", "count"), [("66a1", 3), ("740f", 3), ("515e", 2), ("1638", 2)])
    def test_of_amd_may_be_display_controllers(self, device, count):
        """Cards are GPUs, with OpenCL's objects or without; an APU or the display of a server's board is none."""
        text = pasted.HWLOC_NVLINKS.replace("0300 [1a03:2000]", f"0300 [1002:{device}]")
        assert len(treefold.load_topology(text).devices) == count

    def test_says_what_was_assumed(self):
        assert treefold.load_topology(pasted.HWLOC_NVLINKS).notes == (
            "Some PCIe slots show no speed; they are taken as gen 3 x16.",
            "All NVSwitch chips are taken as one switch: hwloc does not show the links between them.",
            "hwloc's bandwidths are raw; they are cut to what NCCL and RCCL take of them. "
            "Idle GPUs may show slow slots.",
            "A PCIe port above gpu:1 is narrower than the slot below it.",
        )

    def test_are_counted_by_bus_id_where_nothing_numbers_them(self):
        text = pasted.HWLOC_NVLINKS.replace('name="nvml', 'name="card').replace("NVLinkBandwidth", "Other")
        assert shown.tree(treefold.load_topology(text))["gpu:0"] == ("pci 0000:30:00.0", 12)

    def test_nvlinks_to_a_cpu_lead_to_its_socket(self):
        """POWER8 and POWER9 join GPUs to CPU packages by NVLink: no switch joins the GPUs of two packages."""
        topology = treefold.load_topology(pasted.HWLOC_POWER8)
        assert shown.matrix(topology, "nvlink") == [[0, 32, 0, 0], [32, 0, 0, 0], [0, 0, 0, 32], [0, 0, 32, 0]]
        to_hosts = {ends: width / 1e9 for ends, width in topology.capacities.items() if ends[1].startswith("socket")}
        assert {ends: width for ends, width in to_hosts.items() if ends[0].startswith("gpu")} == {
            (f"gpu:{number}", f"socket {number // 2}"): 32 + 12 for number in range(4)
        }
        assert "nvswitch" not in topology.kinds
        assert shown.between(topology) == {("socket 0", "socket 1"): 32}

    def test_nvlinks_to_a_cpu_count_for_the_bound(self):
        """The link between the sockets holds all back, which a switch would hide."""
        packing = treefold.optimal_packing(treefold.load_topology(pasted.HWLOC_POWER8))
        assert packing.bound_bytes_per_s == 32e9

    @pytest.mark.parametrize("index", ["NUMANode:9", "PCIDev:8"])
    def test_nvlinks_to_other_parts_of_a_cpu_lead_to_its_socket(self, index):
        port = pasted.hwloc_device(8, "0009:00:00.0", "0680 [1014:04ea] [0000:0000] 00 00", "0.000000")
        package = '<object type="Package" gp_index="3">'
        text = pasted.HWLOC_POWER8.replace("Package:3", index)
        text = text.replace(package, f'{package}<object type="NUMANode" gp_index="9"/>{port}')
        topology = treefold.load_topology(text)
        assert topology.capacity("gpu:0", "socket 0") == 44e9
        assert "nvswitch" not in topology.kinds

    def test_nvlinks_to_nothing_in_the_file_are_left_out(self):
        topology = treefold.load_topology(pasted.HWLOC_POWER8.replace("Package:3", "PCIDev:77"))
        assert topology.capacity("gpu:0", "socket 0") == 12e9
        assert "nvswitch" not in topology.kinds
        assert "Some links of gpu:0 lead to neither a GPU, a switch nor a CPU; they are left out." in topology.notes

    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            (
                '<u64values length="9">25000 0 </u64values>',
                "",
                "The table of hwloc XML is cut off: NVLinkBandwidth has 7 values for 3 objects. "
                "Paste the whole output.",
            ),
            (
                "7.876923",
                "fast",
                "A pci_link_speed is 'fast'. It must be GB/s, such as 15.753846; correct it.",
            ),
            (
                "0000:30:00.0",
                "?",
                "A pci_busid is '?'. It must be a bus id such as 0000:3b:00.0; correct it.",
            ),
            (
                "0000:b7:00.0",
                "0000:34:00.0",
                "The bus id '0000:34:00.0' stands there twice. Each has one of its own; correct the file.",
            ),
            (
                "25000 0 ",
                "25000 x ",
                "A number of the hwloc XML is 'x'. It must be a whole number; correct it.",
            ),
        ],
    )
    def test_defects_are_named(self, old, new, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(pasted.HWLOC_NVLINKS.replace(old, new))


class TestNumaNodes:
    def test_are_the_devices_of_a_machine_without_gpus(self):
        """A second node of the same CPUs (its fast memory) is no device of its own."""
        topology = treefold.load_topology(pasted.HWLOC_NUMA)
        assert topology.devices == ("cpu:0", "cpu:1")
        assert shown.between(topology) == {("cpu:0", "cpu:1"): 16}
        assert topology.notes == (
            "The file shows no GPU: the devices are its NUMA nodes.",
            "Between NUMA nodes 16 GB/s are taken, as NCCL does between sockets of this CPU.",
        )

    def test_are_told_apart_by_their_cpus(self):
        """Sets that differ in nothing but their place are different CPUs; no CPUs at all is memory."""
        sets = ["0x0000000f", "0x000000f0", "0x0000000f,0x00000000", "0x0", "0x0000000f"]
        nodes = "".join(f'<object type="NUMANode" cpuset="{cpuset}"/>' for cpuset in sets)
        topology = treefold.load_topology(f'<topology><object type="Machine">{nodes}</object></topology>')
        assert topology.devices == ("cpu:0", "cpu:1", "cpu:2")
        assert shown.between(topology) == {(f"cpu:{number}", "between sockets"): 6 for number in range(3)}

    def test_one_is_enough(self):
        topology = treefold.load_topology('<topology><object type="Machine"/></topology>')
        assert (topology.devices, topology.links) == (("cpu:0",), ())
