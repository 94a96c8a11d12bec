import io
import re
from pathlib import Path
from types import SimpleNamespace

import pasted_machines as pasted
import pytest

import treefold
from treefold.errors import ParseError

PAIR = '{"devices": ["gpu:0", "gpu:1"], "links": [{"between": ["gpu:0", "gpu:1"], "gb_per_s": 25}]}'
FORMATS = (
    "NCCL or RCCL topology XML, hwloc XML, the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or "
    "`amd-smi topology`, and the plain JSON form"
)
SHARED = Path(__file__).parents[3] / "shared" / "topologies"  # a collection of real files, where it lies beside
FILES = sorted(path for path in SHARED.rglob("*") if path.is_file() and path.suffix != ".md")
REFUSED = {
    "aws_g5.48xl-topo.xml": "The NCCL topology file names no GPU.",
    "azure_ncv4-graph.xml": "This is an NCCL graph file:",
    "azure_nc48v4-graph.xml": "This is an NCCL graph file:",
    "adjacency_matrices.json": "This JSON holds 10 matrices",
    "topo-ndv2-1KB.json": "This is a TACCL profile:",
    "topo-ndv2-32KB.json": "This is a TACCL profile:",
    "topo-ndv2-1MB.json": "This is a TACCL profile:",
    "topo-dgx2-1KB.json": "This is a TACCL profile:",
    "topo-dgx2-1MB.json": "This is a TACCL profile:",
    "ibnetdiscover_example.out": "This output of ibnetdiscover lists NICs, hosts and switches",
    "ibnetdiscover_example-bad.out": "This output of ibnetdiscover lists NICs, hosts and switches",
    "netq_topologyGraph.json": "This graph of a network lists NICs, hosts and switches",
}


def devices_or_refusal(text):
    """Return the devices of a text, or the error that refuses it."""
    try:
        return treefold.load_topology(text).devices
    except ParseError as error:
        return error


class TestPathOrText:
    def test_takes_a_path_in_both_spellings(self, tmp_path):
        """A string without a line break is a path, and so is a Path; a file's machine is named after it."""
        file = tmp_path / "my machine.json"
        file.write_text(PAIR, encoding="utf-8")
        assert treefold.load_topology(file) == treefold.load_topology(str(file))
        assert treefold.load_topology(file).name == "my machine"

    def test_takes_text(self):
        """What starts as XML or JSON, or has a line break, is the text itself."""
        assert treefold.load_topology(PAIR).devices == ("gpu:0", "gpu:1")
        assert treefold.load_topology("\ufeff" + PAIR).name == ""

    def test_keeps_the_name_that_the_file_gives(self, tmp_path):
        """The plain form names its machine."""
        file = tmp_path / "other.json"
        file.write_text(pasted.PLAIN_JSON, encoding="utf-8")
        assert treefold.load_topology(file).name == "two and a switch"

    def test_reads_the_standard_input(self, monkeypatch):
        """A topology comes through a pipe as ``-``."""
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PAIR.encode())))
        assert treefold.load_topology("-").devices == ("gpu:0", "gpu:1")

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_reads_what_windows_writes(self, tmp_path, encoding):
        """PowerShell writes UTF-16 where output is redirected into a file, with its line ends."""
        file = tmp_path / "topo.txt"
        file.write_bytes(pasted.TWO_RTX_3090.replace("\n", "\r\n").encode(encoding))
        assert treefold.load_topology(file).devices == ("gpu:0", "gpu:1")

    @pytest.mark.parametrize("text", pasted.ALL.values(), ids=pasted.ALL)
    def test_recognises_every_format_by_its_content(self, tmp_path, text):
        """The file's name says nothing."""
        file = tmp_path / "machine"
        file.write_text(text, encoding="utf-8")
        assert treefold.load_topology(file).links == treefold.load_topology(text + "\n").links


class TestRefusals:
    @pytest.mark.parametrize(
        ("argument", "sentence"),
        [
            (
                "no such file.xml",
                "There is no file 'no such file.xml', and it is no topology itself. Give a path, '-' or the text.",
            ),
            ("a\0b", "There is no file 'a\\x00b', and it is no topology itself. Give a path, '-' or the text."),
            (
                "x" * 5000,
                f"There is no file '{'x' * 56}..., and it is no topology itself. Give a path, '-' or the text.",
            ),
            (b"<system/>", "load_topology got b'<system/>'. It takes a path, '-' for the standard input, or the text."),
            (None, "load_topology got None. It takes a path, '-' for the standard input, or the text."),
            ("", f"The topology is empty. treefold reads {FORMATS}."),
            (" \n\t\n", f"The topology is empty. treefold reads {FORMATS}."),
            (
                "hello\nworld",
                f"This is no topology that treefold knows: it starts with 'hello\\nworld'. It reads {FORMATS}.",
            ),
            (
                "<graphs version='1'/>",
                "This is an NCCL graph file: the rings and trees that NCCL chose, not the machine's links. Dump the "
                "machine with NCCL_TOPO_DUMP_FILE and give that file.",
            ),
            (
                "<!-- x --><algo name='y'/>",
                "This is an MSCCL algorithm: steps, not a machine. Give the topology that it was made for.",
            ),
            (
                "<?xml version='1.0'?><html></html>",
                "The XML's root is <html>. NCCL and RCCL topologies start with <system>, hwloc's with <topology>; "
                "give one of these.",
            ),
            (
                "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n",
                "A table of `nvidia-smi topo -p2p` says which devices may access each other, not how fast; it can even "
                "hide the fastest links. Give a topology with links, such as `nvidia-smi topo -m`.",
            ),
            (
                "vendid=0x2c9\nswitchguid=0x2c(2c)\nSwitch\t65\n",
                "This output of ibnetdiscover lists NICs, hosts and switches of a network and no device that could "
                "combine values. Describe the hosts with their devices in the plain JSON form, or name a known "
                "cluster.",
            ),
            (
                " \n" * 2_000_001,
                "The topology has 4000002 characters; at most 4000000 are read. Cut it to one machine or cluster.",
            ),
        ],
        ids=range(14),
    )
    def test_are_one_sentence(self, argument, sentence):
        """Whatever is no topology is said to be none, and why."""
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(argument)

    def test_of_a_folder(self, tmp_path):
        """The system's reason is in the sentence."""
        sentence = f"{str(tmp_path)!r} cannot be read: Is a directory. Give the path of a file of text."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(tmp_path)

    def test_are_value_errors(self):
        """As the rest of what is wrong with an argument."""
        with pytest.raises(ValueError, match="no file"):
            treefold.load_topology("nowhere")

    def test_of_a_huge_file_come_before_it_is_in_memory(self, tmp_path):
        """A file without end is read up to the bound."""
        file = tmp_path / "huge.json"
        with file.open("wb") as stream:
            stream.truncate(10**12)
        with pytest.raises(ParseError, match=r"^The topology has 16000001 characters; at most 4000000 are read\."):
            treefold.load_topology(file)


@pytest.mark.skipif(not FILES, reason=f"there is no collection of topology files in {SHARED.name} beside this checkout")
class TestCollection:
    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_file_is_read_or_refused_by_name(self, file):
        """No file crashes; those that describe no machine are refused in their own words, all others are machines."""
        if file.name in REFUSED:
            with pytest.raises(ParseError, match=f"^{re.escape(REFUSED[file.name])}"):
                treefold.load_topology(file)
        else:
            topology = treefold.load_topology(file)
            numbered = re.search(r"(?:^|[_-])(\d{1,2})(?:gpu|p)(?:[_\d]|$)", file.stem)
            hives = re.search(r"topo_4p\dh|topo_4p3l", file.stem)  # two of four
            if numbered and not hives and not file.stem.startswith("topo_16p"):
                assert len(topology.devices) == int(numbered[1])
            assert all(link.bytes_per_s > 0 for link in topology.links)

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_file_that_is_cut_off_is_refused_or_read(self, file):
        """A truncated file is one sentence; where only a legend was cut off, the machine is still whole."""
        text = file.read_text(encoding="utf-8", errors="replace")
        for part in (len(text) // 2, 2 * len(text) // 3):
            devices = devices_or_refusal(text[:part] + "\n")
            assert isinstance(devices, ParseError) or devices == treefold.load_topology(file).devices
