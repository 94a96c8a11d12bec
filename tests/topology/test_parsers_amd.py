import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError

NARROWEST_PCIE = (
    "The tables show neither PCIe generations nor switches: every GPU is taken to have gen 3 x16 to its socket, and "
    "sockets to be 6 GB/s apart."
)


class TestRocmSmi:
    def test_xgmi_ring(self):
        """A weight of 30 is two hops: such a pair has no link of its own."""
        topology = treefold.load_topology(pasted.ROCM_SMI_XGMI)
        ring = [[0, 24, 0, 24], [24, 0, 24, 0], [0, 24, 0, 24], [24, 0, 24, 0]]
        assert shown.matrix(topology, "xgmi") == ring
        assert shown.tree(topology) == {f"gpu:{number}": (f"numa:{number // 2}", 12) for number in range(4)}
        assert shown.between(topology) == {("numa:0", "numa:1"): 6}
        assert topology.notes == (
            "Some pairs reach each other by xGMI through other GPUs only: they are given no link of their own.",
            "The tables name neither GPU models nor links per pair: every xGMI pair is taken as one link of 24 GB/s, "
            "the slowest kind.",
            NARROWEST_PCIE,
        )

    def test_pcie(self):
        """Two hops are one socket, three are two."""
        topology = treefold.load_topology(pasted.ROCM_SMI_PCIE)
        assert shown.matrix(topology) == [[0] * 3] * 3
        tree = {"gpu:0": ("socket 0", 12), "gpu:1": ("socket 0", 12), "gpu:2": ("socket 1", 12)}
        assert shown.tree(topology) == tree
        assert topology.notes == (NARROWEST_PCIE,)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                pasted.ROCM_SMI_PCIE.rsplit("GPU2 ", 1)[0],
                "cut off: 'link type' has 2 of 3 rows. Paste the whole output.",
            ),
            (
                pasted.ROCM_SMI_PCIE.rsplit("PCIE", 1)[0],
                "cut off: the row of GPU2 in 'link type' is not 3 cells. Paste the whole output.",
            ),
            (
                pasted.ROCM_SMI_PCIE.split("=====================", 5)[0]
                + pasted.ROCM_SMI_PCIE.split("\n\n")[0]
                + "\n",
                "cut off: there is no table of link types. Paste the whole output.",
            ),
            (
                pasted.ROCM_SMI_PCIE.replace("GPU1   PCIE ", "GPU1   XGMI "),
                "contradicts itself: GPU0 and GPU1 are joined by PCIE and XGMI. Paste the output as the tool printed "
                "it.",
            ),
            (
                pasted.ROCM_SMI_PCIE.replace("GPU1   2 ", "GPU7   2 "),
                "contradicts itself: 'hops' has a row 'GPU7' where 'GPU1' should be. Paste the output as the tool "
                "printed it.",
            ),
        ],
    )
    def test_damaged_tables_are_refused_by_name(self, text, problem):
        """Cut off or contradictory: one sentence."""
        verb = "is " if problem.startswith("cut") else ""
        with pytest.raises(ParseError, match=f"^{re.escape(f'The table of rocm-smi --showtopo {verb}{problem}')}$"):
            treefold.load_topology(text)


class TestAmdSmi:
    def test_bandwidths_of_the_tool(self):
        """The most of "least-most" in MB/s is what a pair's links carry together; N/A is no link."""
        topology = treefold.load_topology(pasted.AMD_SMI)
        assert shown.matrix(topology) == [[0, 200, 50], [200, 0, 0], [50, 0, 0]]
        assert topology.notes == (
            "Some pairs reach each other by xGMI through other GPUs only: they are given no link of their own.",
            "xGMI bandwidths are the maxima that the tool states: raw figures, not measured ones.",
            "gpu:0 and following are, in this order: 0000:0c:00.0, 0000:22:00.0, 0000:38:00.0.",
        )

    def test_access_alone_is_no_topology(self):
        """Who may access whom is not how fast."""
        sentence = (
            "The ACCESS TABLE of amd-smi says which devices may access each other, not how fast; it can even hide the "
            "fastest links. Give a topology with links, such as `nvidia-smi topo -m`."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(pasted.AMD_SMI.split("\n\n")[0] + "\n")

    def test_without_link_types_is_cut_off(self):
        """Weights alone do not tell xGMI from PCIe."""
        text = pasted.AMD_SMI.split("LINK TYPE", 1)[0].split("\n\n", 1)[1]
        sentence = "The table of amd-smi topology is cut off: there is no LINK TYPE TABLE. Paste the whole output."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    @pytest.mark.parametrize("cell", ["50000-", "fast", "1-2-3"])
    def test_cells_that_are_none_are_refused(self, cell):
        """A cell that the tool never prints is a damaged row."""
        text = pasted.AMD_SMI.replace("50000-200000", cell, 1)
        sentence = (
            "The table of amd-smi topology is cut off: the row of 0000:0c:00.0 in 'NUMA BW' is not 3 cells. "
            "Paste the whole output."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)
