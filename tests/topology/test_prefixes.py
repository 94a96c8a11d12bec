"""Prompts above a tool's output, and what mpirun and log collectors put before every line of it."""

import json
import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError

PREFIXES = {
    "mpirun": "[1,0]<stdout>:{line}",
    "prterun": "[prterun-node12-33@1,0]<stdout>: {line}",
    "srun -l": "0: {line}",
    "torchrun": "[default0]:{line}",
    "ray": "(Worker pid=123, ip=10.0.0.1) {line}",
    "kubectl logs": "[pod/worker-0/main] {line}",
    "timestamps": "[2026-01-01 10:00:{second:02}] {line}",
    "fractions": "2026-01-01T10:00:{second:02}.{fraction}Z stdout F {line}",
    "stern": "worker-0 main {line}",
    "compose": "worker-0  | {line}",
    "syslog": "Jan  1 10:00:{second:02} node12 app[123]: {line}",
}
PROMPTS = ["[root@node ~]#", "{user}$", "[2026-01-01 10:00:00]", "[pod/worker-0]", "[1,0]<stdout>:", "(base) u@h:~$"]
TEXTS = {name: text for name, text in pasted.ALL.items() if name != "MEASURED_MATRIX"}  # of one line only


def prefixed(text, prefix):
    """Return a text with a prefix before every line, and without blanks at the ends of lines."""
    lines = (
        prefix.replace("{line}", line).replace("{second:02}", f"{n % 60:02}").replace("{fraction}", str(7 ** (n % 9)))
        for n, line in enumerate(text.splitlines())
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


class TestPrefixes:
    @pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
    def test_before_every_line_do_not_matter(self, text, prefix):
        assert treefold.load_topology(prefixed(text, prefix)) == treefold.load_topology(text)

    def test_may_stand_below_the_command(self):
        text = "[root@node ~]# mpirun -np 1 --tag-output nvidia-smi topo -m\n"
        text += prefixed(pasted.DGX1_V100, PREFIXES["mpirun"])
        assert treefold.load_topology(text) == treefold.load_topology(pasted.DGX1_V100)

    def test_of_several_ranks_are_not_mixed_up(self):
        """Two ranks that print the same table are two tables: refused."""
        text = "".join(prefixed(pasted.TWO_RTX_3090, f"[1,{rank}]<stdout>:{{line}}") for rank in range(2))
        with pytest.raises(ParseError, match=r"^The text holds two machines, or one twice: the row of GPU0 "):
            treefold.load_topology(text)


class TestPrompts:
    @pytest.mark.parametrize("prompt", PROMPTS)
    @pytest.mark.parametrize("text", pasted.ALL.values(), ids=pasted.ALL)
    def test_above_do_not_matter(self, text, prompt):
        assert treefold.load_topology(f"{prompt} nvidia-smi topo -m\n{text}") == treefold.load_topology(text)

    @pytest.mark.parametrize("text", [pasted.DGX1_V100, pasted.NCCL_H100_PAIR, pasted.HWLOC_NUMA, pasted.AMD_SMI])
    def test_below_do_not_matter(self, text):
        assert treefold.load_topology(f"{text}[root@node ~]# \n") == treefold.load_topology(text)

    def test_before_the_header_of_a_table_do_not_hide_it(self):
        """A log's first line has the header: a row that it names and that is missing is still missed."""
        text = "[2026-01-01 10:00:00] INFO " + pasted.FOUR_V100.split("\n", 1)[1].lstrip()
        assert treefold.load_topology(text) == treefold.load_topology(pasted.FOUR_V100)
        with pytest.raises(ParseError, match=r"its header names GPU3, and there is no row of it\."):
            treefold.load_topology(text.rsplit("GPU3 ", 1)[0])


class TestTerminalEscapes:
    @pytest.mark.parametrize(
        "escape",
        ["\x1b[1;31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b(B", "\x9b31m", "\x07", "\x08", "\x1b[?25l"],
    )
    def test_in_a_table_are_dropped(self, escape):
        text = pasted.FOUR_V100.replace("GPU2    NV1", f"{escape}GPU2{escape}    NV1")
        assert treefold.load_topology(text) == treefold.load_topology(pasted.FOUR_V100)


def as_markdown(text, *, bold=True):
    """Return a text with Markdown's tables, as notes and issues have them; the rest of the text stays as it is."""
    lines = []
    for line in text.splitlines():
        cells = line.split()
        is_header = len(cells) > 1 and line[:1].isspace() and cells[0].startswith("GPU")
        if is_header:
            lines += [f"|  | {' | '.join(cells)} |", f"| --- |{' :-: |' * len(cells)}"]
        elif len(cells) > 1 and re.fullmatch(r"GPU\d+|mlx5_\d", cells[0]):
            name = f"**{cells[0]}**" if bold else cells[0]
            lines.append(f"| {name} | {' | '.join(cells[1:])} |")
        else:
            lines.append(line)
    return "\n".join([*lines, ""])


class TestMarkdown:
    @pytest.mark.parametrize("name", ["FOUR_V100", "EIGHT_ON_PCIE", "THREE_SOCKETS", "ROCM_SMI_XGMI", "ROCM_SMI_PCIE"])
    @pytest.mark.parametrize("bold", [True, False])
    @pytest.mark.parametrize("quote", ["", "> "])
    def test_tables_are_read_as_the_tools_own(self, name, bold, quote):
        text = pasted.ALL[name]
        table = "".join(f"{quote}{line}\n" for line in as_markdown(text, bold=bold).splitlines())
        assert "| --- |" in table
        assert treefold.load_topology(table) == treefold.load_topology(text)

    @pytest.mark.parametrize("mark", ["**", "__", "`"])
    def test_cells_may_be_bold_or_code(self, mark):
        text = pasted.FOUR_V100.replace("NV2", f"{mark}NV2{mark}")
        assert treefold.load_topology(text) == treefold.load_topology(pasted.FOUR_V100)

    @pytest.mark.parametrize("title", ["**{}**", "### {}", "{}:"])
    def test_titles_may_be_those_of_a_page(self, title):
        links = [["X" if i == j else "XGMI" for j in range(4)] for i in range(4)]
        rows = "".join(f"| GPU{number} | {' | '.join(row)} |\n" for number, row in enumerate(links))
        header = "|  | GPU0 | GPU1 | GPU2 | GPU3 |\n|---|---|---|---|---|\n"
        hops = rows.replace("XGMI", "1")
        text = "\n".join(
            f"{title.format(f'{name} between two GPUs')}\n\n{header}{body}"
            for name, body in (("Hops", hops), ("Link Type", rows))
        )
        topology = treefold.load_topology(text)
        assert shown.matrix(topology, "xgmi") == [[0 if i == j else 24 for j in range(4)] for i in range(4)]

    def test_a_string_of_json_is_read(self):
        text = pasted.DGX1_V100
        assert treefold.load_topology(json.dumps(text)) == treefold.load_topology(text)
        assert treefold.load_topology(json.dumps({"topology": text})) == treefold.load_topology(text)


class TestOtherOutputs:
    @pytest.mark.parametrize(
        ("text", "what", "lacks"),
        [
            (
                "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n",
                "`nvidia-smi nvlink --status`",
                "where NVLinks lead",
            ),
            (
                "node1: GPU 0: NVIDIA A100\nnode1: \t Link 0: <inactive>\n",
                "`nvidia-smi nvlink --status`",
                "where NVLinks lead",
            ),
            (
                "-[0000:00]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers\n           \\-05.0  Intel\n",
                "`lspci -tv`",
                "speeds and NVLinks",
            ),
            (
                "node:1:1 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===\n"
                "node:1:1 [0] NCCL INFO CPU/0 (1/1/2)\nnode:1:1 [0] NCCL INFO + PCI[24.0] - GPU/7000 (0)\n",
                "NCCL_DEBUG=INFO",
                "which GPU an id is",
            ),
            ("NCCL INFO === System : maxWidth 12.0 ===\n", "NCCL_DEBUG=INFO", "which GPU an id is"),
        ],
    )
    def test_without_links_are_named_with_what_to_paste(self, text, what, lacks):
        sentence = (
            f"This output of {what} does not say {lacks}. Paste that of `nvidia-smi topo -m`, or run any program on "
            "NCCL with NCCL_TOPO_DUMP_FILE=machine.xml and give that file."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)
