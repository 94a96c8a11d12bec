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

DEVICES = {  # how many devices, and the files of machines that have so many
    1: """
        AMD-15h-Bulldozer-4xOpteron-6272.xml AMD-17h-Zen-2xEpyc-7451.xml AMD-19h-Zen3-2xEpyc-7763.xml
        Intel-CascadeLake-2xXeon6230.xml mpich_topo1.xml mpich_topo4.xml nvidia-dgx-gb10.xml
    """,
    2: """
        mpich_topo2.xml azure_nc48v4-topo.xml
    """,
    3: """
        24em64t-2n6c2t-pci.xml topo_3p_pcie_1.xml
    """,
    4: """
        mi2xx_4gpu_4numa_rocm-smi_showtopo.txt 32em64t-2n8c2t-pci-wholeio.xml 64intel64-heteromem.xml
        8intel64-4n2t-memattrs.xml topo_4p1h_1.xml topo_4p_940.xml azure_ncv4-topo.xml
        a100_pcie_4gpu_nvlink_pairs_xeon8470.txt a100_sxm4_4gpu_2mlx5_pxb.txt a10_4gpu_all_sys.txt
        aws_p3.8xlarge_v100_4gpu.txt azure_nc96_a100_4gpu_pairs.txt cryoem_a100_4gpu_nv4_1mlx5.txt
        dell_c4140_v100_4gpu_nv2_mesh.txt h100_4gpu_nv6_4nic.txt l40s_4gpu_2nic.txt
        nv4_pairs_4gpu_1nic_2socket.txt
    """,
    8: """
        mi300x_8gpu_amd-smi_topology.txt 16amd64-4distances.xml topo_4p2h_1.xml topo_4p2h_3.xml
        topo_4p3l_2h.xml topo_4p3l_n2.xml topo_4p3l_n4.xml topo_8p1h.xml topo_8p1h_2.xml topo_8p1h_4.xml
        topo_8p1h_n1.xml topo_8p6l_1nic.xml topo_8p6l_3nic.xml topo_8p6l_5nic.xml topo_8p_4nics.xml
        topo_8p_90a_1.xml topo_8p_940vm.xml topo_8p_950.xml topo_8p_pcie_1.xml topo_8p_rome.xml
        topo_8p_rome_4n_2.xml topo_8p_rome_n1.xml topo_8p_rome_n2_1.xml topo_8p_rome_n4.xml
        topo_8p_rome_pcie.xml topo_8p_ts1.xml topo_8p_ts1_n4.xml topo_8p_ts1_n4_2.xml topo_collnet_n4.xml
        aws_p4de-24xl-topo.xml aws_p5.48xl-topo_pr1226_thirdparty.xml azure_ndv2-topo.xml
        oci_A100_topo-flattened.xml oci_H100-topology-kubernetes.xml a100_sxm_8gpu_2mlx5.txt
        a100_sxm_8gpu_4nic_onesided.txt dgx1_topo_mp_pcie_only.txt dgx1_v100_8gpu_4mlx5.txt
        dgx_a100_8gpu_12mlx5.txt dlperf_v100_8gpu_1mlx5.txt h100_8gpu_nv18.txt
        rtx4090_8gpu_all_sys_8numa.txt rtxpro6000_8gpu_all_sys_16numa.txt titan_v_8gpu_pcie.txt
        v100_8gpu_vm_PHB.txt v100_sxm2_8gpu_node_mlx5_pairs.txt
    """,
    16: """
        nvidiaDGX2.xml topo_16p1h_vm.xml
    """,
    24: """
        192em64t-12gr2n8c2t.xml 192em64t-24n8c2t.xml
    """,
}
MISSING = {  # what clouds give to NCCL, which asks the driver for NVLinks
    "aws_p4de-24xl-topo.xml": "NVLinks are missing from this file: its GPUs are A100 SXM",
    "aws_p5.48xl-topo_pr1226_thirdparty.xml": "NVLinks are missing from this file, if its GPUs have any",
    "azure_ndv2-topo.xml": "NVLinks are missing from this file, if its GPUs have any",
    "oci_A100_topo-flattened.xml": "NVLinks are missing from this file, if its GPUs have any",
}
COUNTS = {name: count for count, names in DEVICES.items() for name in names.split()}


def devices_or_refusal(text):
    """Return the devices of a text, or the error that refuses it."""
    try:
        return treefold.load_topology(text).devices
    except ParseError as error:
        return error


class TestPathOrText:
    def test_takes_a_path_in_both_spellings(self, tmp_path):
        file = tmp_path / "my machine.json"
        file.write_text(PAIR, encoding="utf-8")
        assert treefold.load_topology(file) == treefold.load_topology(str(file))
        assert treefold.load_topology(file).name == "my machine"

    def test_takes_text(self):
        assert treefold.load_topology(PAIR).devices == ("gpu:0", "gpu:1")
        assert treefold.load_topology("\ufeff" + PAIR).name == ""

    def test_keeps_the_name_that_the_file_gives(self, tmp_path):
        file = tmp_path / "other.json"
        file.write_text(pasted.PLAIN_JSON, encoding="utf-8")
        assert treefold.load_topology(file).name == "two and a switch"

    def test_reads_the_standard_input(self, monkeypatch):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(PAIR.encode())))
        assert treefold.load_topology("-").devices == ("gpu:0", "gpu:1")

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_reads_what_windows_writes(self, tmp_path, encoding):
        """PowerShell writes UTF-16 where output is redirected into a file, with its line ends."""
        file = tmp_path / "topo.txt"
        file.write_bytes(pasted.TWO_RTX_3090.replace("\n", "\r\n").encode(encoding))
        assert treefold.load_topology(file).devices == ("gpu:0", "gpu:1")


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
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(argument)

    def test_of_a_folder(self, tmp_path):
        sentence = f"{str(tmp_path)!r} cannot be read: Is a directory. Give the path of a file of text."
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(tmp_path)

    def test_are_value_errors(self):
        with pytest.raises(ValueError, match="no file"):
            treefold.load_topology("nowhere")

    def test_of_a_huge_file_come_before_it_is_in_memory(self, tmp_path):
        """A file without end is read up to the bound."""
        file = tmp_path / "huge.json"
        with file.open("wb") as stream:
            stream.truncate(10**10)
        with pytest.raises(ParseError, match=r"^The topology has 16000001 characters; at most 4000000 are read\."):
            treefold.load_topology(file)


@pytest.mark.skipif(not FILES, reason=f"there is no collection of topology files in {SHARED.name} beside this checkout")
class TestCollection:
    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_file_is_read_or_refused_by_name(self, file):
        """No file crashes; those that describe no machine are refused in their own words, all others are whole."""
        if file.name in REFUSED:
            with pytest.raises(ParseError, match=f"^{re.escape(REFUSED[file.name])}"):
                treefold.load_topology(file)
        else:
            devices = treefold.load_topology(file).devices
            assert len(devices) == COUNTS.get(file.name, len(devices) or 1)

    @pytest.mark.parametrize("file", [file for file in FILES if file.name not in REFUSED], ids=lambda file: file.name)
    def test_every_file_without_its_nvlinks_says_so(self, file):
        missing = treefold.load_topology(file).missing
        assert (None if missing is None else str(missing)) == MISSING.get(file.name)

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_every_file_that_is_cut_off_is_refused_or_read(self, file):
        """A truncated file is one sentence; where only a legend was cut off, the machine is still whole."""
        text = file.read_text(encoding="utf-8", errors="replace")
        for part in (len(text) // 2, 2 * len(text) // 3):
            devices = devices_or_refusal(text[:part] + "\n")
            assert isinstance(devices, ParseError) or devices == treefold.load_topology(file).devices


class TestSeveralDescriptions:
    """A paste of all that a machine's tools say of it."""

    @pytest.mark.parametrize(
        "order", ["{xml}{table}", "{table}{xml}", "$ cat topo.xml\n{xml}$ nvidia-smi topo -m\n{table}"]
    )
    def test_of_one_machine_are_read_from_the_one_that_knows_more(self, order):
        topology = treefold.load_topology(order.format(xml=pasted.NCCL_DGX1_V100, table=pasted.DGX1_V100))
        alone = treefold.load_topology(pasted.NCCL_DGX1_V100)
        assert topology.capacities == alone.capacities
        assert topology.notes[-1] == (
            "The text describes the machine more than once: NCCL topology XML is read, which knows more than "
            "nvidia-smi topo -m."
        )

    def test_of_which_one_lacks_the_nvlinks_are_read_from_the_other(self):
        xml = (
            "<system>"
            + "".join(f'<cpu numaid="{n}"><pci busid="0000:0{n}:00.0" class="0x030200"/></cpu>' for n in range(2))
            + "</system>\n"
        )
        topology = treefold.load_topology(xml + pasted.TWO_RTX_3090)
        assert topology.capacities == treefold.load_topology(pasted.TWO_RTX_3090).capacities
        assert topology.notes[-1].endswith("nvidia-smi topo -m is read, which knows more than NCCL topology XML.")

    def test_of_which_one_shows_no_gpus_are_read_from_the_other(self):
        topology = treefold.load_topology(pasted.HWLOC_NUMA + "\n" + pasted.TWO_RTX_3090)
        assert topology.devices == ("gpu:0", "gpu:1")

    def test_of_different_machines_are_refused(self):
        sentence = (
            "The text holds two machines, or one twice: NCCL topology XML has 2 devices, and nvidia-smi topo -m 8. "
            "Give the text of one."
        )
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(pasted.NCCL_H100_PAIR + pasted.DGX1_V100)
