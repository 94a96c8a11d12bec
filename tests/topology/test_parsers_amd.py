import json
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


def amd_smi(count, *, hive=8, weight=lambda _i, _j: 15, bandwidth=lambda _i, _j: "N/A"):
    """Return the output of ``amd-smi topology`` for GPUs in hives of this many, its cells by functions of the pair."""

    def table(title, own, cell):
        names = [f"0000:{16 * number + 5:02x}:00.0" for number in range(count)]
        rows = [[own if i == j else cell(i, j) for j in range(count)] for i in range(count)]
        lines = [" ".join(map(str, (name, *row))) for name, row in zip(names, rows, strict=True)]
        return "\n".join([f"{title} TABLE:", " " * 13 + " ".join(names), *lines, ""])

    def near(i, j):
        return i // hive == j // hive

    return "\n".join(
        (
            table("WEIGHT", 0, lambda i, j: weight(i, j) if near(i, j) else 72),
            table("HOPS", 0, lambda i, j: 1 if near(i, j) else 3),
            table("LINK TYPE", "SELF", lambda i, j: "XGMI" if near(i, j) else "PCIE"),
            table("NUMA BW", "N/A", bandwidth),
        )
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
        verb = "is " if problem.startswith("cut") else ""
        with pytest.raises(ParseError, match=f"^{re.escape(f'The table of rocm-smi --showtopo {verb}{problem}')}$"):
            treefold.load_topology(text)


class TestAmdSmi:
    def test_bandwidths_of_the_tool(self):
        """The most of "least-most" in MB/s is what a pair's links carry together; N/A is not zero."""
        topology = treefold.load_topology(pasted.AMD_SMI)
        assert shown.matrix(topology) == [[0, 200, 50], [200, 0, 24], [50, 24, 0]]
        assert topology.notes == (
            "xGMI bandwidths are the maxima that the tool states: raw figures, not measured ones.",
            "The tool states no bandwidth for 1 of 3 xGMI pairs: each of these is taken as one link of 24 GB/s, the "
            "slowest kind.",
            "gpu:0 and following are, in this order: 0000:0c:00.0, 0000:22:00.0, 0000:38:00.0.",
        )

    @pytest.mark.parametrize("title", ["{}:", "**{}:**", "### {}:"])
    def test_of_markdown_is_the_machine_of_the_tool(self, title):
        def markdown(line):
            if line.endswith(":"):
                return title.format(line[:-1]) + "\n"
            cells = line.split()
            is_header = line.startswith(" ")
            row = f"| {' | '.join(['', *cells] if is_header else cells)} |"
            return row + ("\n" + "| --- " * (len(cells) + 1) + "|" if is_header else "")

        text = "\n".join(map(markdown, pasted.AMD_SMI.splitlines()))
        topology, printed = treefold.load_topology(text), treefold.load_topology(pasted.AMD_SMI)
        assert (topology.kinds, topology.capacities) == (printed.kinds, printed.capacities)

    @pytest.mark.parametrize("cell", ["0-0", "N/A"])
    def test_without_any_bandwidth_are_joined_by_their_weights(self, cell):
        """Eight MI355X print such tables: a whole mesh, and no machine in parts."""
        topology = treefold.load_topology(amd_smi(8, bandwidth=lambda _i, _j: cell))
        assert shown.matrix(topology) == [[24 * (i != j) for j in range(8)] for i in range(8)]
        assert topology.notes[0] == (
            "The tables name neither GPU models nor links per pair: every xGMI pair is taken as one link of 24 GB/s, "
            "the slowest kind."
        )

    def test_of_two_hives_are_joined_by_pcie_between_them_only(self):
        topology = treefold.load_topology(amd_smi(4, hive=2, bandwidth=lambda _i, _j: "0-0"))
        assert shown.matrix(topology, "xgmi") == [[0, 24, 0, 0], [24, 0, 0, 0], [0, 0, 0, 24], [0, 0, 24, 0]]
        assert shown.tree(topology) == {f"gpu:{number}": (f"socket {number}", 12) for number in range(4)}

    def test_of_one_direction_are_taken_both_ways(self):
        topology = treefold.load_topology(amd_smi(2, bandwidth=lambda i, j: "50000-64000" if i < j else "N/A"))
        assert shown.matrix(topology) == [[0, 64], [64, 0]]
        note = "Only one end names the links from gpu:0 to gpu:1; they are taken both ways."
        assert note in topology.notes

    def test_of_larger_weights_have_no_link_of_their_own(self):
        topology = treefold.load_topology(amd_smi(3, weight=lambda i, j: 30 if {i, j} == {0, 2} else 15))
        assert shown.matrix(topology) == [[0, 24, 0], [24, 0, 24], [0, 24, 0]]

    def test_without_a_link_type_are_joined_by_pcie(self):
        """UNKNOWN is the tool's word for a type that it could not find out."""
        topology = treefold.load_topology(amd_smi(2, hive=1).replace("PCIE", "UNKNOWN"))
        assert shown.matrix(topology) == [[0, 0], [0, 0]]
        assert topology.notes[0] == (
            "The tool names no link type for some pairs: they are taken to be joined by PCIe only."
        )

    def test_of_two_hosts_are_two_machines(self):
        """The last one does not win silently."""
        sentence = (
            "The text holds two machines, or one twice: the table 'WEIGHT' of amd-smi topology stands there twice. "
            "Give the text of one."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(amd_smi(2) + "\n" + amd_smi(4))
        with pytest.raises(
            ParseError, match=r"^The text holds two machines, or one twice: the table 'weight' of rocm-smi "
        ):
            treefold.load_topology(pasted.ROCM_SMI_PCIE + pasted.ROCM_SMI_XGMI)

    def test_access_alone_is_no_topology(self):
        sentence = (
            "The ACCESS TABLE of amd-smi says which devices may access each other, not how fast; it can even hide the "
            "fastest links. Give a topology with links, such as `nvidia-smi topo -m`."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(pasted.AMD_SMI.split("\n\n")[0] + "\n")

    def test_without_link_types_is_cut_off(self):
        text = pasted.AMD_SMI.split("LINK TYPE", 1)[0].split("\n\n", 1)[1]
        sentence = "The table of amd-smi topology is cut off: there is no LINK TYPE TABLE. Paste the whole output."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    @pytest.mark.parametrize("cell", ["50000-", "fast", "1-2-3"])
    def test_cells_that_are_none_are_refused(self, cell):
        text = pasted.AMD_SMI.replace("50000-200000", cell, 1)
        sentence = (
            f"The table of amd-smi topology has {cell!r} in the row of 0000:0c:00.0 in 'NUMA BW', which treefold does "
            "not know. Known are whole numbers, ranges of MB/s, XGMI, PCIE, SELF, N/A and UNKNOWN. Write the links as "
            "plain JSON, or give another tool's output."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)


def amd_smi_json(count, **changed):
    """Return what ``amd-smi topology --json`` prints of a mesh of GPUs."""
    names = [f"0000:{16 * number + 5:02x}:00.0" for number in range(count)]
    own = {"weight": 0, "link_status": "ENABLED", "link_type": "SELF", "num_hops": 0, "bandwidth": "N/A"}
    other = {"weight": 15, "link_status": "ENABLED", "link_type": "XGMI", "num_hops": 1, "bandwidth": "50000-64000"}
    other |= changed
    return [
        {"gpu": i, "bdf": a, "links": [{"gpu": j, "bdf": b, **(own if i == j else other)} for j, b in enumerate(names)]}
        for i, a in enumerate(names)
    ]


class TestAmdSmiJson:
    def test_is_read_as_the_tables_are(self):
        topology = treefold.load_topology(json.dumps(amd_smi_json(3), indent=4))
        assert shown.matrix(topology) == [[0, 64, 64], [64, 0, 64], [64, 64, 0]]
        assert topology.notes == (
            "xGMI bandwidths are the maxima that the tool states: raw figures, not measured ones.",
            "gpu:0 and following are, in this order: 0000:05:00.0, 0000:15:00.0, 0000:25:00.0.",
        )
        assert shown.matrix(treefold.load_topology(json.dumps(amd_smi_json(2, bandwidth="0-0")))) == [[0, 24], [24, 0]]

    @pytest.mark.parametrize(
        ("gpus", "sentence"),
        [
            (
                [{"gpu": 0, "links": []}],
                "The bdf of a GPU in amd-smi topology --json is None. It must be a bus id such as 0000:0c:00.0; "
                "correct it.",
            ),
            ([{"gpu": 0, "bdf": "a", "links": 1}], "The links of a is 1. It must be a list; correct it."),
            (
                [*amd_smi_json(3)[:2], {"gpu": 2, "bdf": "0000:25:00.0", "links": []}],
                "The table of amd-smi topology --json is cut off: 0000:25:00.0 has no link_type for each of the 3 "
                "GPUs. Paste the whole output.",
            ),
            (
                amd_smi_json(2) + amd_smi_json(2),
                "The text holds two machines, or one twice: amd-smi topology --json names a bus id twice. Give the "
                "text of one.",
            ),
            (
                amd_smi_json(2, link_type="CXL"),
                "The table of amd-smi topology --json has 'CXL' in the link type of 0000:05:00.0 and 0000:15:00.0, "
                "which treefold does not know. Known are XGMI and PCIE. Write the links as plain JSON, or give another "
                "tool's output.",
            ),
        ],
    )
    def test_that_is_damaged_is_refused_by_name(self, gpus, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(json.dumps(gpus))

    def test_of_two_hosts_is_two_machines(self):
        text = json.dumps(amd_smi_json(2))
        sentence = (
            "The text holds two machines, or one twice: another JSON begins behind the first. Give the text of one."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(f"{text}\n{text}")
