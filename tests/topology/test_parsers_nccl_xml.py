import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError
from treefold.topology import known_topology

EFFECTIVE = "Bandwidths are the effective ones of NCCL's and RCCL's topo.h, not measured."


def system(*slots):
    return f'<system version="1"><cpu numaid="0" arch="x86_64">{"".join(slots)}</cpu></system>'


def gpu(bus, dev, links="", attributes=""):
    return f'<pci busid="0000:{bus}:00.0" class="0x030200"><gpu dev="{dev}" sm="80" {attributes}>{links}</gpu></pci>'


class TestNvlinks:
    def test_dgx1_v100(self):
        """The NVLinks of the file are those of the known machine, at NCCL's 20 GB/s for the data sheet's 25."""
        topology = treefold.load_topology(pasted.NCCL_DGX1_V100)
        known = shown.matrix(known_topology("dgx1_v100"))
        assert shown.matrix(topology, "nvlink") == [[width * 20 / 25 for width in row] for row in known]

    def test_switch_chips_are_one_switch(self):
        """H100: 18 links, however many chips they lead to, or one chip that the driver hides."""
        topology = treefold.load_topology(pasted.NCCL_H100_PAIR)
        assert shown.ports(topology) == {"gpu:0": ("nvswitch", 370.8), "gpu:1": ("nvswitch", 370.8)}
        assert shown.matrix(topology) == [[0, 0], [0, 0]]

    def test_xgmi(self):
        """RCCL's links: 48 GB/s on gfx942, 36 on gfx90a (910), the smaller where the two ends disagree."""
        topology = treefold.load_topology(pasted.RCCL_MI300X)
        assert shown.matrix(topology, "xgmi") == [[0, 48, 72], [48, 0, 36], [72, 36, 0]]
        assert topology.notes == (
            "Links to Intel CPUs are taken as 5/6 of their width, which is what peer copies get there.",
            EFFECTIVE,
            "Only one end names the links from gpu:2 to gpu:1; they are taken both ways.",
            "The ends disagree on the links between gpu:0 and gpu:2; the fewer are taken.",
        )

    @pytest.mark.parametrize(
        ("sm", "each"), [(60, 18), (70, 20), (80, 20), (86, 12), (89, 20), (90, 20.6), (100, 40.1)]
    )
    def test_generation_is_the_compute_capability(self, sm, each):
        text = system(
            gpu("01", 0, '<nvlink target="0000:02:00.0" count="3"/>'),
            gpu("02", 1, '<nvlink target="0000:01:00.0" count="3"/>'),
        ).replace('sm="80"', f'sm="{sm}"')
        width = round(3 * each, 6)
        assert shown.matrix(treefold.load_topology(text), "nvlink") == [[0, width], [width, 0]]

    def test_c2c_and_nvlinks_to_a_cpu_lead_to_the_socket(self):
        """Grace Hopper and POWER: the CPU is a neighbour of the GPU beside PCIe."""
        text = system(
            gpu("01", 0, '<c2c bw="44712" count="10"/><nvlink target="0000:09:00.0" count="3" tclass="0x068001"/>')
        )
        links = {(link.source, link.target, link.kind): link.bytes_per_s for link in treefold.load_topology(text).links}
        assert links["gpu:0", "numa:0", "c2c"] == 447_120_000_000
        assert links["gpu:0", "numa:0", "nvlink"] == 60_000_000_000


class TestPcie:
    def test_dgx1_v100(self):
        """Gen 3 x16 is 12 GB/s; an Intel CPU takes a sixth; two Broadwell sockets are 6 GB/s apart."""
        topology = treefold.load_topology(pasted.NCCL_DGX1_V100)
        slots = {f"gpu:{number}": (f"pci 0000:{8 + number // 2:02x}:00.0", 12) for number in range(8)}
        bridges = {f"pci 0000:{8 + number:02x}:00.0": (f"numa:{number // 2}", 10) for number in range(4)}
        assert shown.tree(topology) == slots | bridges | {"nic mlx5_0": ("pci 0000:08:00.0", 12)}
        assert shown.between(topology) == {("numa:0", "numa:1"): 6}

    def test_h100_pair(self):
        """Gen 5 behind a gen 4 port, "GT/s PCIe/s", no speed, no width, two ports on one NIC, a speed in kb/s."""
        topology = treefold.load_topology(pasted.NCCL_H100_PAIR)
        assert shown.tree(topology) == {
            "gpu:1": ("pci 0000:18:00.0", 48),
            "nic mlx5_0+mlx5_1": ("pci 0000:18:00.0", 37.5),
            "pci 0000:18:00.0": ("numa:0", 24),
            "gpu:0": ("numa:0", 12),
            "nic eth0": ("numa:0", 25),
        }
        assert topology.notes == (
            "The speed of 'eth0' is 1000 times too large; it is cut.",
            "The nvlink of gpu:0 leads to gpu:0 itself; it is left out.",
            "nvlinks lead to GPUs that the file does not have; they are left out.",
            "Some PCIe slots name no speed; they are taken as gen 3, as NCCL does.",
            "Some PCIe slots name no width; they are taken as x16, as NCCL does.",
            EFFECTIVE,
            "A PCIe port above gpu:1 is narrower than the slot below it.",
        )

    def test_gpus_may_be_slots_only(self):
        """A file for NCCL_TOPO_FILE names GPUs by their class: they are numbered by bus id, and NVLinks are missed."""
        topology = treefold.load_topology(pasted.NCCL_WITHOUT_GPU_ELEMENTS)
        assert shown.tree(topology) == {
            "gpu:0": ("pci 0000:40:00.0", 24),
            "gpu:1": ("pci 0000:40:00.0", 24),
            "nic 0000:48:00.0": ("pci 0000:40:00.0", 24),
            "pci 0000:40:00.0": ("numa:1", 24),
        }
        assert topology.notes == (
            "The file does not number its GPUs: gpu:0 is the one with the lowest bus id.",
            "The file shows GPUs as PCIe slots only, which have neither NVLinks nor xGMI links in such a file.",
            EFFECTIVE,
        )

    @pytest.mark.parametrize(
        ("arch", "vendor", "family", "model", "gb_per_s"),
        [
            ("x86_64", "GenuineIntel", 6, 79, 6),
            ("x86_64", "GenuineIntel", 6, 85, 10),
            ("x86_64", "GenuineIntel", 6, 143, 22),
            ("x86_64", "GenuineIntel", 6, 207, 40),
            ("x86_64", "AuthenticAMD", 143, 49, 16),
            ("ppc64", "", 0, 0, 32),
            ("arm64", "", 0, 0, 6),
            ("x86_64", "Somebody", 0, 0, 6),
        ],
    )
    def test_sockets_are_as_far_apart_as_nccl_has_them(self, arch, vendor, family, model, gb_per_s):
        cpu = f'arch="{arch}" vendor="{vendor}" familyid="{family}" modelid="{model}"'
        text = "".join(f'<cpu numaid="{number}" {cpu}>{gpu(f"0{number}", number)}</cpu>' for number in range(2))
        topology = treefold.load_topology(f"<system>{text}</system>")
        assert shown.between(topology) == {("numa:0", "numa:1"): gb_per_s}

    def test_hosts_are_told_apart_by_their_hash(self):
        """The same NUMA node of two hosts is two sockets, which only NVLink may join."""
        link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
        text = "".join(
            f'<cpu host_hash="0x{number}" numaid="0" arch="arm64">{gpu(f"0{number}", number, link)}</cpu>'
            for number in range(2)
        )
        topology = treefold.load_topology(f"<system>{text}</system>")
        assert [node.name for node in topology.nodes if node.kind == "host"] == ["host0.numa:0", "host1.numa:0"]
        assert shown.between(topology) == {}

    def test_of_hosts_that_are_built_alike_is_read_by_host(self):
        """Their bus ids, bridges and NICs have the same names; NVLinks lead to GPUs of the own host."""
        nic = '<pci busid="0000:3a:00.0" class="0x020700"><nic><net name="mlx5_0" speed="400000"/></nic></pci>'
        to_switch = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
        slots = "".join(
            gpu(f"0{number}", number, to_switch + f'<nvlink target="0000:0{1 - number}:00.0" count="2"/>')
            for number in range(2)
        )
        bridge = f'<pci busid="0000:18:00.0" class="0x060400">{slots}{nic}</pci>'
        text = "".join(f'<cpu host_hash="{name}" numaid="0" arch="arm64">{bridge}</cpu>' for name in ("0xb", "0xa"))
        topology = treefold.load_topology(f"<system>{text}</system>")
        assert topology.devices == ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
        assert shown.matrix(topology, "nvlink") == [[0, 40, 0, 0], [40, 0, 0, 0], [0, 0, 0, 40], [0, 0, 40, 0]]
        assert {end for end, _ in shown.ports(topology).values()} == {"nvswitch"}
        assert {name: parent for name, (parent, _) in shown.tree(topology).items()} == {
            **{f"gpu:{number}": f"host{number // 2}.pci 0000:18:00.0" for number in range(4)},
            **{f"host{number}.nic mlx5_0": f"host{number}.pci 0000:18:00.0" for number in range(2)},
            **{f"host{number}.pci 0000:18:00.0": f"host{number}.numa:0" for number in range(2)},
        }

    def test_of_two_files_is_two_machines(self):
        sentence = (
            "The text holds two machines, or one twice: the element <system> stands there twice. Give the text of one."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(pasted.NCCL_H100_PAIR + pasted.NCCL_DGX1_V100)
        with pytest.raises(ParseError, match=r"the element <topology> stands there twice\."):
            treefold.load_topology(pasted.HWLOC_NUMA + "\n" + pasted.HWLOC_NVLINKS)


class TestNumbering:
    def test_is_the_files(self):
        topology = treefold.load_topology(system(gpu("09", 3), gpu("01", 1)))
        assert shown.tree(topology) == {"gpu:3": ("numa:0", 12), "gpu:1": ("numa:0", 12)}
        assert topology.devices == ("gpu:1", "gpu:3")

    def test_is_the_rank_where_dev_repeats(self):
        text = system(gpu("01", 0, "", 'rank="1"'), gpu("02", 0, "", 'rank="0"'))
        assert treefold.load_topology(text).devices == ("gpu:0", "gpu:1")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                system('<pci busid="0000:00:16.0"/>'),
                "The NCCL topology file names no GPU. Its <pci> elements need a class (0x0302…) or a <gpu>; dump the "
                "file with NCCL_TOPO_DUMP_FILE.",
            ),
            (
                system(gpu("01", 0), gpu("01", 1)),
                "The bus id '0000:01:00.0' stands there twice. Each has one of its own; correct the file.",
            ),
            (
                "<system><cpu numaid='0'/><cpu numaid='0'/></system>",
                "The <cpu> with numaid '0' stands there twice. Each has one of its own; correct the file.",
            ),
            (
                system(gpu("01", 0, '<nvlink target="0000:02:00.0" count="0"/>')),
                "The count of nvlinks of gpu:0 is 0. It must be 1 to 1024; correct it.",
            ),
            (
                system(gpu("01", "many")),
                "dev of a <gpu> is 'many'. It must be a whole number; correct it.",
            ),
            (
                system('<pci class="0x030200"/>'),
                "The busid of a <pci> is ''. It must be a bus id such as 0000:3b:00.0; correct it.",
            ),
            (
                system('<pci busid="0000:01:00.0" class="0x030200" link_width="255"/>'),
                "A link_width is 255. It must be a number of lanes, 0 to 64; correct it.",
            ),
            (
                '<system version="1">\n<cpu numaid="0">\n<pci busid="0000:01',
                "The XML is broken or cut off: unclosed token: line 3, column 0. Save the whole file and give that.",
            ),
        ],
    )
    def test_name_the_defect(self, text, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                "<system>" + "".join(f'<cpu numaid="{number}"/>' for number in range(65)) + "</system>",
                "The topology has 65 <cpu> elements; at most 64 are read.",
            ),
            (
                system(*(gpu(f"{number:03x}", number) for number in range(1025))),
                "The topology has 1025 GPUs; at most 1024 are read.",
            ),
            ("<system>" + "<pci>" * 64, "The topology has 65 levels of XML; at most 64 are read."),
            ("<system>" + "<pci/>" * 50_000, "The topology has 50001 XML elements; at most 50000 are read."),
        ],
    )
    def test_bounds(self, text, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)} Cut it to one machine or cluster\\.$"):
            treefold.load_topology(text)

    def test_entities(self):
        text = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>\n<system>&b;</system>'
        sentence = "The XML defines entities, which no topology does and which can be bombs. Remove them."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)
