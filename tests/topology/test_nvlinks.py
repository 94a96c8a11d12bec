"""Machines from files without their NVLinks: recognised by their GPUs' ids, completed from a known machine."""

import json
import re

import pytest
import shown

import treefold
from treefold.errors import ParseError, TopologyError
from treefold.topology import known_names, known_topology, with_nvlinks
from treefold.topology.gpus import MissingLinks
from treefold.topology.known import fitting_nvlinks

SXM_IDS = {
    "P100 SXM": ["15f9"],
    "V100 SXM": ["1db1", "1db5", "1db8"],
    "A100 SXM": ["20b0", "20b2"],
    "A800 SXM": ["20bd", "20f3"],
    "H100 SXM": ["2330", "2339"],
    "H800 SXM": ["2324"],
    "H20": ["2329"],
    "H200 SXM": ["2335"],
    "B200": ["2901"],
    "B300": ["3182"],
}
SWITCH_PORT = (
    '<nvlink target="0000:ee:00.0" count="5" tclass="0x068000"/>'
    '<nvlink target="0000:ef:00.0" count="13" tclass="0x068000"/>'
)


def cloud(ids, *, count=8, inside="", maker="0x10de", pci_class="0x030200"):
    """Return a file as clouds give it to NCCL: slots of two CPUs, with the PCI ids of the GPUs or without any."""
    named = f'vendor="{maker}" device="0x{ids}"' if ids else ""
    slots = [
        f'<pci busid="0000:{16 + number:02x}:00.0" class="{pci_class}" {named} link_speed="16 GT/s" link_width="16">'
        f"{inside.format(number)}</pci>"
        for number in range(count)
    ]
    half = (count + 1) // 2
    cpus = "".join(
        f'<cpu numaid="{numa}" arch="x86_64" vendor="AuthenticAMD" familyid="143">{"".join(part)}</cpu>'
        for numa, part in enumerate((slots[:half], slots[half:]))
    )
    return f'<system version="1">{cpus}</system>'


def with_gpu(sm, links=""):
    return f'<gpu dev="{{0}}" sm="{sm}" rank="{{0}}" gdr="1">{links}</gpu>'


def missing(text):
    return str(treefold.load_topology(text).missing)


class TestMissing:
    @pytest.mark.parametrize("model", SXM_IDS)
    def test_is_told_by_the_ids_of_gpus_with_nvlinks(self, model):
        for ids in SXM_IDS[model]:
            assert missing(cloud(ids)) == f"NVLinks are missing from this file: its GPUs are {model}"

    def test_is_told_where_gpus_have_elements_without_nvlinks(self):
        """A dump of NCCL from a machine on which the driver hid the links."""
        text = cloud("2330", inside=with_gpu(90))
        assert missing(text) == "NVLinks are missing from this file: its GPUs are H100 SXM"

    def test_is_told_where_links_lead_to_cpus_only(self):
        """GB200: its link to the CPU is in the file, its NVLinks are not."""
        text = cloud("2941", inside=with_gpu(100, '<c2c bw="44712" count="10"/>'))
        assert missing(text) == "NVLinks are missing from this file: its GPUs are GB200"

    def test_is_told_of_amd_too(self):
        text = cloud("74a1", maker="0x1002", pci_class="0x120000")
        assert missing(text) == "xGMI links are missing from this file: its GPUs are MI300X"

    def test_is_told_of_hwloc_too(self):
        devices = "".join(
            f'<object type="PCIDev" gp_index="{number}" pci_busid="0000:{number}0:00.0" '
            f'pci_type="0302 [10de:20b0] [10de:1463] a1" pci_link_speed="31.5"/>'
            for number in (1, 2)
        )
        bridge = f'<object type="Bridge" bridge_type="0-1">{devices}</object>'
        text = f'<topology><object type="Machine">{bridge}</object></topology>'
        assert missing(text) == "NVLinks are missing from this file: its GPUs are A100 SXM"

    @pytest.mark.parametrize(
        "text",
        [cloud(""), cloud("20b5"), cloud("", inside=with_gpu(90)), cloud("", inside=with_gpu(70))],
        ids=["slots", "slots of another id", "sm 90 without id", "sm 70 without id"],
    )
    def test_is_left_open_where_the_file_could_not_show_nvlinks(self, text):
        """Slots without GPUs, and GPUs without ids of a kind that comes with and without NVLinks."""
        assert missing(text) == "NVLinks are missing from this file, if its GPUs have any"

    def test_is_left_open_for_a_table_that_hides_nvlinks(self):
        table = "nvidia-smi topo -mp\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-7\nGPU1\tPIX\t X \t0-7\n"
        assert missing(table) == "NVLinks are missing from this file, if its GPUs have any"
        assert treefold.load_topology(table.replace("-mp", "-m")).missing is None

    @pytest.mark.parametrize(
        "text",
        [
            cloud("2330", inside=with_gpu(90, SWITCH_PORT)),
            cloud("2331", inside=with_gpu(90)),
            cloud("", inside=with_gpu(89)),
            cloud("2330", count=1),
            cloud("0bd5", maker="0x8086"),
            cloud("", inside=with_gpu(60).replace("sm=", 'gcn="906" sm=')),
        ],
        ids=["with NVLinks", "H100 PCIe", "L40", "one GPU", "of another maker", "AMD with 60 compute units"],
    )
    def test_is_nothing_where_nothing_is(self, text):
        assert treefold.load_topology(text).missing is None

    def test_goes_around_in_the_plain_form(self):
        topology = treefold.load_topology(cloud("2330"))
        plain = topology.to_json()
        assert plain["missing"] == {"links": "nvlink", "gpus": ["H100 SXM"]}
        again = treefold.load_topology(json.dumps(plain))
        assert again.missing == again.restricted(["gpu:0", "gpu:1"]).missing == MissingLinks("nvlink", ("H100 SXM",))

    @pytest.mark.parametrize("value", [7, {"links": "pcie"}, {"links": ["nvlink"]}, {"link": "nvlink"}, {}])
    def test_of_another_form_is_refused(self, value):
        text = json.dumps({"devices": ["gpu:0"], "missing": value})
        must = re.escape('It must be an object such as {"links": "nvlink", "gpus": ["H100 SXM"]}; correct it.')
        with pytest.raises(ParseError, match=f"^missing is .*{must}$"):
            treefold.load_topology(text)


class TestWithNvlinks:
    def test_gives_the_machine_of_the_whole_file(self):
        """The file of a machine without its NVLinks, and these added, is the file with them."""
        whole = treefold.load_topology(cloud("2330", inside=with_gpu(90, SWITCH_PORT)))
        laid = with_nvlinks(treefold.load_topology(cloud("2330", inside=with_gpu(90))), "dgx_h100")
        assert (laid.capacities, laid.alphas, set(laid.nodes)) == (whole.capacities, whole.alphas, set(whole.nodes))
        assert laid.missing is None
        assert "The NVLinks are those of dgx_h100, at what NCCL takes for them." in laid.notes

    @pytest.mark.parametrize(
        ("name", "ids", "port"), [("dgx_a100", "20b2", 240), ("dgx_h100", "2335", 370.8), ("dgx_b200", "3182", 721.8)]
    )
    def test_gives_every_gpu_its_port_of_the_switch(self, name, ids, port):
        laid = with_nvlinks(treefold.load_topology(cloud(ids)), name)
        assert shown.ports(laid) == {f"gpu:{number}": ("nvswitch", port) for number in range(8)}

    def test_joins_gpus_directly_in_their_order(self):
        laid = with_nvlinks(treefold.load_topology(cloud("")), "dgx1_v100")
        known = shown.matrix(known_topology("dgx1_v100"))
        assert shown.matrix(laid, "nvlink") == [[width * 20 / 25 for width in row] for row in known]
        assert laid.notes[-1] == (
            "The NVLinks are those of dgx1_v100, at what NCCL takes for them. They join the GPUs in the order of "
            "dgx1_v100: compare with `nvidia-smi topo -m`."
        )

    def test_keeps_the_links_of_the_file(self):
        bare = treefold.load_topology(cloud("2330"))
        assert shown.tree(with_nvlinks(bare, "dgx_h100")) == shown.tree(bare)

    def test_lends_ports_of_a_switch_to_fewer_gpus(self):
        laid = with_nvlinks(treefold.load_topology(cloud("2330", count=4)), "dgx_h100")
        assert set(shown.ports(laid)) == {f"gpu:{number}" for number in range(4)}

    def test_reaches_what_such_a_machine_does(self):
        bare = treefold.load_topology(cloud("20b2"))
        assert treefold.optimal_packing(bare).bound_bytes_per_s < 20e9
        assert treefold.optimal_packing(with_nvlinks(bare, "dgx_a100")).bound_bytes_per_s > 8 * 240e9 / 14

    @pytest.mark.parametrize(
        ("text", "name", "sentence"),
        [
            (
                cloud("2330"),
                "dgx_h200",
                "No NVLinks are known of 'dgx_h200'. The nearest is 'dgx_h100'. Known are those of dgx1_p100, "
                "p3_8xlarge, dgx1_v100, dgx2, dgx_a100, dgx_h100, dgx_b200.",
            ),
            (
                cloud("2330"),
                "dgx_a100",
                "The GPUs of this topology are H100 SXM, which do not have the NVLinks of dgx_a100. Name a machine of "
                "such GPUs, or write their NVLinks into the plain JSON form.",
            ),
            (
                cloud("2324"),
                "dgx_h100",
                "The GPUs of this topology are H800 SXM, which do not have the NVLinks of dgx_h100. Name a machine of "
                "such GPUs, or write their NVLinks into the plain JSON form.",
            ),
            (
                cloud("74a1", maker="0x1002"),
                "dgx_h100",
                "The GPUs of this topology are MI300X, which do not have the NVLinks of dgx_h100. Name a machine of "
                "such GPUs, or write their NVLinks into the plain JSON form.",
            ),
            (
                cloud("", count=4),
                "dgx1_v100",
                "The NVLinks of dgx1_v100 join 8 GPUs, and this topology has 4. It takes 8: name a machine of as many "
                "GPUs.",
            ),
            (
                cloud("", count=9),
                "dgx_a100",
                "The NVLinks of dgx_a100 join 8 GPUs, and this topology has 9. It takes at most 8: name a machine of "
                "as many GPUs.",
            ),
            (
                cloud("2330", inside=with_gpu(90, SWITCH_PORT)),
                "dgx_h100",
                "This topology has NVLinks of its own, and a known machine's NVLinks would be added to them. Plan it "
                "without these, or remove its own.",
            ),
            (
                '{"devices": ["cpu:0", "gpu:0"], "links": [{"between": ["cpu:0", "gpu:0"], "gb_per_s": 1}]}',
                "dgx_h100",
                "NVLinks join GPUs, and this topology has cpu:0. Give a topology of GPUs only.",
            ),
        ],
    )
    def test_refuses_what_does_not_fit(self, text, name, sentence):
        with pytest.raises(TopologyError, match=f"^{re.escape(sentence)}$"):
            with_nvlinks(treefold.load_topology(text), name)


class TestFittingNvlinks:
    def test_are_those_of_machines_with_such_gpus(self):
        """One machine has 8 H100; none has H800; where the ids say nothing, all of as many GPUs."""
        assert fitting_nvlinks(treefold.load_topology(cloud("2330"))) == ("dgx_h100",)
        assert fitting_nvlinks(treefold.load_topology(cloud("2324"))) == ()
        assert fitting_nvlinks(treefold.load_topology(cloud("1db1", count=4))) == ("p3_8xlarge", "dgx2")
        assert len(fitting_nvlinks(treefold.load_topology(cloud("")))) == 6

    def test_are_known_machines(self):
        for name in fitting_nvlinks(treefold.load_topology(cloud("", count=8))):
            assert name in known_names()
            assert {link.kind for link in known_topology(name).links} == {"nvlink"}
