"""Prompts above a tool's output, and what mpirun and log collectors put before every line of it."""

import pasted_machines as pasted
import pytest

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
        """The machine is that of the text, in every format."""
        assert treefold.load_topology(prefixed(text, prefix)) == treefold.load_topology(text)

    def test_may_stand_below_the_command(self):
        """The line that a user typed has no prefix."""
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
        """Tables, XML and JSON below a prompt in brackets of any kind."""
        assert treefold.load_topology(f"{prompt} nvidia-smi topo -m\n{text}") == treefold.load_topology(text)

    @pytest.mark.parametrize("text", [pasted.DGX1_V100, pasted.NCCL_H100_PAIR, pasted.HWLOC_NUMA, pasted.AMD_SMI])
    def test_below_do_not_matter(self, text):
        """Nor does the next prompt."""
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
        """Colours, titles, links, bells: the table is read without them."""
        text = pasted.FOUR_V100.replace("GPU2    NV1", f"{escape}GPU2{escape}    NV1")
        assert treefold.load_topology(text) == treefold.load_topology(pasted.FOUR_V100)
