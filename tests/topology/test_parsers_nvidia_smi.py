import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError
from treefold.topology.parsers import nvidia_smi


def nvlinks(counts, each):
    return [[count * each for count in row] for row in counts]


class TestNvlinks:
    def test_dgx1_v100(self):
        """The hybrid cube mesh, whole: counts of the table times what a V100's NVLink carries."""
        counts = [
            [0, 1, 1, 2, 2, 0, 0, 0],
            [1, 0, 2, 1, 0, 2, 0, 0],
            [1, 2, 0, 2, 0, 0, 1, 0],
            [2, 1, 2, 0, 0, 0, 0, 1],
            [2, 0, 0, 0, 0, 1, 1, 2],
            [0, 2, 0, 0, 1, 0, 2, 1],
            [0, 0, 1, 0, 1, 2, 0, 2],
            [0, 0, 0, 1, 2, 1, 2, 0],
        ]
        topology = treefold.load_topology(pasted.DGX1_V100)
        assert shown.matrix(topology, "nvlink") == nvlinks(counts, 20)
        assert shown.ports(topology) == {}

    def test_four_v100(self):
        counts = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0]]
        topology = treefold.load_topology(pasted.FOUR_V100)
        assert shown.matrix(topology, "nvlink") == nvlinks(counts, 20)

    def test_more_links_than_a_gpu_has_are_an_nvswitch(self):
        """NV18 to three peers is no mesh: every GPU has 18 links to the switch."""
        topology = treefold.load_topology(pasted.FOUR_H100_ON_NVSWITCH)
        assert shown.matrix(topology) == [[0] * 4] * 4
        assert shown.ports(topology) == {f"gpu:{number}": ("nvswitch", 18 * 20.6) for number in range(4)}

    def test_36_links_lead_to_an_nvswitch(self):
        """As GB300 and later show them: together as wide as the 18 of a B200, which is the least that fits."""
        topology = treefold.load_topology(pasted.FOUR_H100_ON_NVSWITCH.replace("NV18", "NV36"))
        assert shown.ports(topology) == {f"gpu:{number}": ("nvswitch", 721.8) for number in range(4)}

    def test_pairs_of_a100(self):
        topology = treefold.load_topology(pasted.FOUR_A100_IN_PAIRS)
        expected = [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 12], [0, 0, 12, 0]]
        assert shown.matrix(topology, "nvlink") == nvlinks(expected, 20)

    def test_two_rtx_3090(self):
        """Four links to one peer are the bridge of a GA10x, which has slower links."""
        topology = treefold.load_topology(pasted.TWO_RTX_3090)
        assert shown.matrix(topology, "nvlink") == [[0, 48], [48, 0]]

    @pytest.mark.parametrize(
        ("links", "counts", "expected"),
        [(4, {1}, 18.0), (4, {1, 2}, 20.0), (6, {1, 2}, 20.0), (12, {4}, 20.0), (18, {6}, 20.6), (4, {4}, 12.0)],
    )
    def test_generation_is_the_slowest_with_so_many_links(self, links, counts, expected):
        """P100, V100, A100, H100 and GA10x are told apart by the links that they show."""
        assert nvidia_smi.nvlink_guess(links, counts, switched=False) == expected

    def test_says_that_the_model_is_not_shown(self):
        [note, _] = treefold.load_topology(pasted.DGX1_V100).notes
        assert note == (
            "The table names no GPU model: an NVLink is taken as 20 GB/s, the least that fits the number of links."
        )


class TestPcie:
    def test_dgx1_v100(self):
        """NICs tell which GPUs share a switch where NVLink hides it: PIX to the same NIC."""
        topology = treefold.load_topology(pasted.DGX1_V100)
        assert shown.tree(topology) == {
            "gpu:0": ("pcie switch of gpu:0", 12),
            "gpu:1": ("pcie switch of gpu:0", 12),
            "nic mlx5_0": ("pcie switch of gpu:0", 12),
            "pcie switch of gpu:0": ("socket 0", 12),
            "gpu:2": ("pcie switches above gpu:2", 12),
            "gpu:3": ("pcie switches above gpu:2", 12),
            "pcie switches above gpu:2": ("socket 0", 12),
            "gpu:4": ("pcie switch of gpu:4", 12),
            "gpu:5": ("pcie switch of gpu:4", 12),
            "nic mlx5_1": ("pcie switch of gpu:4", 12),
            "pcie switch of gpu:4": ("socket 1", 12),
            "gpu:6": ("pcie switches above gpu:6", 12),
            "gpu:7": ("pcie switches above gpu:6", 12),
            "pcie switches above gpu:6": ("socket 1", 12),
        }
        assert shown.between(topology) == {("socket 0", "socket 1"): 6}

    def test_eight_on_pcie(self):
        """PHB: two switches on one socket; PXB: two switches below one; SOC: the other socket."""
        topology = treefold.load_topology(pasted.EIGHT_ON_PCIE)
        assert shown.tree(topology) == {
            "gpu:0": ("pcie switch of gpu:0", 12),
            "gpu:1": ("pcie switch of gpu:0", 12),
            "pcie switch of gpu:0": ("socket 0", 12),
            "gpu:2": ("pcie switch of gpu:2", 12),
            "gpu:3": ("pcie switch of gpu:2", 12),
            "pcie switch of gpu:2": ("socket 0", 12),
            "gpu:4": ("pcie switch of gpu:4", 12),
            "gpu:5": ("pcie switch of gpu:4", 12),
            "pcie switch of gpu:4": ("pcie switches above gpu:4", 12),
            "gpu:6": ("pcie switch of gpu:6", 12),
            "gpu:7": ("pcie switch of gpu:6", 12),
            "pcie switch of gpu:6": ("pcie switches above gpu:4", 12),
            "pcie switches above gpu:4": ("socket 1", 12),
        }
        assert shown.matrix(topology, "nvlink") == [[0] * 8] * 8

    def test_what_may_share_an_uplink_does(self):
        """GPUs of one socket with NVLinks that hide their PCIe share one uplink, unless a NIC speaks against it."""
        tree = shown.tree(treefold.load_topology(pasted.FOUR_H100_ON_NVSWITCH))
        assert tree == {
            "gpu:0": ("pcie switches above gpu:0", 12),
            "nic NIC0": ("pcie switches above gpu:0", 12),
            "pcie switches above gpu:0": ("socket 0", 12),
            "gpu:1": ("socket 0", 12),
            "gpu:2": ("pcie switches above gpu:2", 12),
            "gpu:3": ("pcie switches above gpu:2", 12),
            "pcie switches above gpu:2": ("socket 1", 12),
        }

    def test_more_than_two_sockets_share_a_switch(self):
        """The table does not say how sockets are joined: one port each is the narrowest."""
        topology = treefold.load_topology(pasted.THREE_SOCKETS)
        assert shown.tree(topology) == {
            "gpu:0": ("socket 0", 12),
            "gpu:1": ("socket 0", 12),
            "gpu:2": ("socket 1", 12),
            "gpu:3": ("socket 2", 12),
        }
        assert shown.between(topology) == {(f"socket {number}", "between sockets"): 6 for number in range(3)}

    def test_says_what_it_cannot_see(self):
        assert treefold.load_topology(pasted.EIGHT_ON_PCIE).notes == (
            "The table shows no NVLink: PCIe only. `topo -mp` hides NVLinks; `topo -m` shows them.",
            "nvidia-smi shows neither PCIe generations nor which GPUs share a PCIe switch or a link between sockets: "
            "PCIe is taken as gen 3 x16, every group that may share an uplink shares one, and sockets are 6 GB/s "
            "apart.",
        )


class TestTable:
    def test_is_read_whole(self):
        table = nvidia_smi.read_table(pasted.TWO_RTX_3090)
        assert table == nvidia_smi.SmiTable(("GPU0", "GPU1"), (("X", "NV4"), ("NV4", "X")), ("0-23", "0-23"))

    def test_splits_cells_that_touch(self):
        """A column that is full leaves no blank before the next: NODENODE is two cells, NV12NODE as well."""
        table = nvidia_smi.read_table("GPU0 X NODENODE\nGPU1 NODE XNV12\nGPU2 NODENV12 X\n")
        assert table.cells == (("X", "NODE", "NODE"), ("NODE", "X", "NV12"), ("NODE", "NV12", "X"))

    @pytest.mark.parametrize("end", ["mlx5_1\t", "mlx5_1\tSYS\tSYS\tSYS", "mlx5_0\t", "mlx5_0\tPIX\tPI"])
    def test_is_read_from_its_gpus_where_rows_of_nics_are_cut_off(self, end):
        """The relations of GPUs and a NIC stand in the GPUs' rows; the note names the NICs."""
        topology = treefold.load_topology(pasted.DGX1_V100[: pasted.DGX1_V100.index(f"\n{end}") + 1 + len(end)] + "\n")
        whole = treefold.load_topology(pasted.DGX1_V100)
        assert topology.capacities == whole.capacities
        assert topology.kinds == whole.kinds
        cut = "mlx5_1" if end.startswith("mlx5_1") else "mlx5_0, mlx5_1"
        assert topology.notes[-1] == f"Rows are cut off, and read from the columns of the others: {cut}."

    def test_numbers_the_columns_of_nics_that_the_header_does_not_tell_apart(self):
        table = nvidia_smi.read_table("GPU0GPU1mlx5_0mlx5_1CPU Affinity\nGPU0 X SYS PIX SYS\nGPU1 SYS X SYS PIX\n")
        assert table.names == ("GPU0", "GPU1", "column 2", "column 3")
        assert table.cells[2] == ("PIX", "SYS", "X", "?")

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                pasted.FOUR_V100.rsplit("GPU3 ", 1)[0],
                "The table of nvidia-smi topo -m is cut off: its header names GPU3, and there is no row of it. "
                "Paste the whole output.",
            ),
            (
                pasted.FOUR_V100.rsplit("NV2", 1)[0],
                "The table of nvidia-smi topo -m is cut off: the row of GPU3 has 2 of 4 relations. "
                "Paste the whole output.",
            ),
            (
                "GPU0 X PIX SYS 0-7\nGPU1 PIX X SYS 0-7\n",
                "The table of nvidia-smi topo -m is cut off: GPU0 has 3 relations, and there are 2 rows. "
                "Paste the whole output.",
            ),
            (
                "GPU0 X PIX\nGPU1 PHB X\n",
                "The table of nvidia-smi topo -m contradicts itself: GPU0 to GPU1 is PIX, and back it is PHB. "
                "Paste the output as the tool printed it.",
            ),
            (
                "GPU0 PIX X\nGPU1 X PIX\n",
                "The table of nvidia-smi topo -m contradicts itself: the row of GPU0 has its X in another column. "
                "Paste the output as the tool printed it.",
            ),
            (
                "GPU0 X PIX\nGPU0 PIX X\n",
                "The text holds two machines, or one twice: the row of GPU0 stands there twice. Give the text of one.",
            ),
            (
                "GPU0 X NV40\nGPU1 NV40 X\n",
                "The table of nvidia-smi topo -m contradicts itself: NV40 is more NVLinks than a GPU has (36). "
                "Paste the output as the tool printed it.",
            ),
            (
                "GPU0 X NV18 NV18\nGPU1 NV18 X SYS\nGPU2 NV18 SYS X\n",
                "The table of nvidia-smi topo -m contradicts itself: GPU1 has NVLinks to some GPUs of an NVSwitch and "
                "not to others. Paste the output as the tool printed it.",
            ),
        ],
    )
    def test_that_is_damaged_is_refused_by_name(self, text, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    @pytest.mark.parametrize(
        ("text", "row", "cell"),
        [
            ("\tGPU0\tGPU1\nGPU0\tX\tMX\nGPU1\tMX\tX\n", "GPU1", "MX"),
            ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tN/A\t0-7\nGPU1\tN/A\tX\t0-7\n", "GPU1", "N/A"),
            ("| | GPU0 | GPU1 |\n|-|-|-|\n| GPU0 | X | **-** |\n| GPU1 | - | X |\n", "GPU1", "-"),
            ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNVX4\t0-7\nGPU1\tNVX4\tX\t0-7\n", "GPU1", "NVX4"),
            (pasted.DGX1_V100.replace("PHB", "CXL"), "GPU2", "CXL"),
        ],
    )
    def test_of_cells_that_no_parser_knows_names_the_first(self, text, row, cell):
        sentence = (
            f"The table of nvidia-smi topo -m has {cell!r} in the row of {row}, which treefold does not know. Known "
            "are X, NV#, C2C, PIX, PXB, PXN, P2C, PHB, NODE, SYS and SOC. Write the links as plain JSON, or give "
            "another tool's output."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    def test_with_rows_of_mig_is_refused(self):
        sentence = (
            "The table of nvidia-smi topo -m has rows of MIG instances, which it gives no links. Paste that of the "
            "GPUs, with MIG turned off, or name a known machine."
        )
        text = "\tGPU0\tMIG0\tGPU1\nGPU0\tX\tN/A\tSYS\nMIG0\tN/A\tX\tN/A\nGPU1\tSYS\tN/A\tX\n"
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    def test_of_whole_gpus_is_read_beside_rows_of_mig(self):
        text = "\tGPU0\tGPU1\nGPU0\tX\tNV12\n  MIG 3g.20gb Device 0:\tN/A\tN/A\nGPU1\tNV12\tX\n"
        assert shown.matrix(treefold.load_topology(text)) == [[0, 240], [240, 0]]

    @pytest.mark.parametrize("wrap", ["{}", "<details>\n<summary>topo</summary>\n\n```\n{}\n```\n</details>\n"])
    @pytest.mark.parametrize("order", ["{peers}\n{table}", "{table}\n{peers}", "{peers}\n{table}\n{peers}"])
    def test_is_read_beside_tables_of_peer_access(self, wrap, order):
        peers = (
            "$ nvidia-smi topo -p2p n\n \tGPU0\tGPU1\tGPU2\tGPU3\n GPU0\tX\tOK\tOK\tCNS\n GPU1\tOK\tX\tOK\tOK\n"
            " GPU2\tOK\tOK\tX\tOK\n GPU3\tCNS\tOK\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
            "  CNS  = Chipset not supported\n"
        )
        text = wrap.format(order.format(peers=peers, table=pasted.FOUR_H100_ON_NVSWITCH))
        topology, alone = treefold.load_topology(text), treefold.load_topology(pasted.FOUR_H100_ON_NVSWITCH)
        assert (topology.kinds, topology.capacities) == (alone.kinds, alone.capacities)

    def test_with_a_row_cut_in_the_middle_is_refused(self):
        """Only the last rows are ever cut off."""
        text = pasted.DGX1_V100.replace("mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS", "mlx5_0\tPIX")
        with pytest.raises(ParseError, match=r"the row of mlx5_0 has 1 of 10 relations\."):
            treefold.load_topology(text)

    def test_of_too_many_rows_is_refused(self):
        """A table is one host's."""
        rows = "".join(f"GPU{number} X\n" for number in range(257))
        with pytest.raises(ParseError, match=r"^The topology has 257 rows; at most 256 are read\."):
            treefold.load_topology(rows)
