import dataclasses
import json
import math
import re
from fractions import Fraction

import pytest

from treefold.errors import DeviceError, TopologyError
from treefold.topology import Link, Node, Topology, TopologyBuilder, known_topology
from treefold.topology.drawing.machine_drawing import draw_machine


def pair(**link):
    return TopologyBuilder("pair").device("gpu:0").device("gpu:1").link("gpu:0", "gpu:1", **link).build()


def switched(count, gb_per_s=10.0):
    builder = TopologyBuilder("switched").switch("sw0")
    for number in range(count):
        builder.device(f"gpu:{number}").link(f"gpu:{number}", "sw0", gb_per_s=gb_per_s)
    return builder.build()


def refuses(sentence):
    """Expect a TopologyError of exactly these words."""
    return pytest.raises(TopologyError, match=f"^{re.escape(sentence)}$")


class TestTopology:
    def test_takes_decimals_at_their_word(self):
        [there, back] = pair(gb_per_s=20.6, alpha_us=1.1).links
        assert Fraction(there.bytes_per_s) == 20_600_000_000
        assert there.alpha_s == back.alpha_s == 1.1e-6
        assert (there.source, there.target, back.source, back.target) == ("gpu:0", "gpu:1", "gpu:1", "gpu:0")

    @pytest.mark.parametrize("text", ["a\x1b[31mb", "a\nb", "a\x9bb", "a\u202eb", "a\ud800b", "a\x7fb"])
    def test_shows_no_terminal_what_it_would_obey(self, text):
        topology = dataclasses.replace(pair(gb_per_s=1), name=text, notes=(text,))
        escaped = f"a{text[1:-1].encode('unicode_escape').decode()}b"
        assert (topology.name, topology.notes) == (escaped, (escaped,))

    def test_adds_up_links_between_the_same_ends(self):
        builder = TopologyBuilder().device("gpu:0").device("gpu:1")
        builder.link("gpu:0", "gpu:1", gb_per_s=25, alpha_us=2, kind="nvlink")
        builder.link("gpu:1", "gpu:0", gb_per_s=0.1, back_gb_per_s=0.2, alpha_us=1, kind="nvlink")
        topology = builder.link("gpu:0", "gpu:1", gb_per_s=12, alpha_us=9, kind="pcie").build()
        assert len(topology.links) == 4
        assert topology.capacity("gpu:0", "gpu:1") == Fraction("37.2") * 10**9
        assert topology.capacity("gpu:1", "gpu:0") == Fraction("37.1") * 10**9
        assert topology.alphas["gpu:0", "gpu:1"] == 1e-6
        assert not topology.is_symmetric

    def test_knows_its_devices_and_neighbours(self):
        builder = TopologyBuilder().device("cuda:1").device("/device:GPU:0").host("cpu0").switch("sw").nic("mlx5_0")
        builder.link("GPU:1", "sw", gb_per_s=1).link("gpu:0", "sw", gb_per_s=1).link("sw", "cpu0", gb_per_s=1)
        topology = builder.link("mlx5_0", "sw", gb_per_s=1, one_way=True).note("A note.").build()
        assert topology.devices == ("gpu:1", "gpu:0")
        assert topology.neighbours("sw") == ("gpu:1", "gpu:0", "cpu0")
        assert topology.neighbours("mlx5_0") == ("sw",)
        assert topology.kinds == {"gpu:1": "device", "gpu:0": "device", "cpu0": "host", "sw": "switch", "mlx5_0": "nic"}
        assert topology.notes == ("A note.",)
        assert "sw" in builder
        assert "gpu:7" not in builder

    def test_cannot_be_changed(self):
        topology = switched(2)
        with pytest.raises(dataclasses.FrozenInstanceError):
            topology.name = "other"
        with pytest.raises(TypeError):
            topology.capacities["gpu:0", "sw0"] = 0

    def test_is_equal_to_the_same_machine(self):
        assert switched(3) == switched(3) != switched(3, gb_per_s=11.0)

    def test_has_a_plain_form(self):
        builder = TopologyBuilder("box").device("gpu:0").device("gpu:1").switch("sw0").nic("nic0").host("cpu0")
        builder.link("gpu:0", "sw0", gb_per_s=20.6, alpha_us=1.1, kind="nvlink")
        builder.link("gpu:1", "sw0", gb_per_s=3, back_gb_per_s=4.5).link("nic0", "cpu0", gb_per_s=2, one_way=True)
        assert json.loads(json.dumps(builder.build().to_json())) == {
            "name": "box",
            "devices": ["gpu:0", "gpu:1"],
            "switches": ["sw0"],
            "hosts": ["cpu0"],
            "nics": ["nic0"],
            "links": [
                {"between": ["gpu:0", "sw0"], "gb_per_s": 20.6, "alpha_us": 1.1, "kind": "nvlink"},
                {"between": ["gpu:1", "sw0"], "gb_per_s": [3.0, 4.5], "alpha_us": 0.0},
                {"between": ["nic0", "cpu0"], "gb_per_s": [2.0, None], "alpha_us": 0.0},
            ],
        }

    def test_is_restricted_to_some_devices(self):
        part = known_topology("dgx1_v100").restricted(["cuda:4", "gpu:0"])
        assert part.devices == ("gpu:4", "gpu:0")
        assert {(link.source, link.target) for link in part.links} == {("gpu:0", "gpu:4"), ("gpu:4", "gpu:0")}
        assert known_topology("dgx2").restricted(["gpu:9", "gpu:3"]).neighbours("nvswitch") == ("gpu:3", "gpu:9")


class TestShown:
    def test_is_one_line(self):
        machine = TopologyBuilder("four").device("gpu:0").device("gpu:1").switch("s").host("h").nic("n")
        for name in ("gpu:0", "gpu:1", "h", "n"):
            machine.link(name, "s", gb_per_s=1)
        built = machine.build()
        assert repr(built) == "<Topology 'four': 2 devices, 1 host, 1 switch, 1 NIC, 8 directed links>"
        assert str(built) == repr(built)

    def test_is_drawn_in_a_notebook(self):
        assert draw_machine(known_topology("dgx1_v100")) == known_topology("dgx1_v100")._repr_html_()


class TestBadMachines:
    def test_without_devices(self):
        sentence = "This topology has no devices. It needs at least one; hosts, switches and NICs only carry."
        with refuses(sentence):
            TopologyBuilder().switch("sw0").build()
        with refuses(sentence):
            switched(2).restricted([])

    def test_with_a_name_twice(self):
        sentence = "The device 'gpu:1' is named twice. Every device, host, switch and NIC needs a name of its own."
        with refuses(sentence):
            TopologyBuilder().device("gpu:1").device("cuda:1")
        with refuses(sentence):
            Topology("", (Node("gpu:1", "device"), Node("gpu:1", "device")), ())
        with refuses(sentence):
            switched(2).restricted(["gpu:1", "GPU:1"])

    def test_with_a_kind_of_its_own(self):
        with refuses('\'x\' is said to be of kind \'gpu\'. A node is "device", "host", "switch" or "nic".'):
            Topology("", (Node("x", "gpu"),), ())

    def test_with_a_device_that_is_no_device(self):
        with pytest.raises(DeviceError, match=r"^'gpu-0' is no device name\."):
            TopologyBuilder().device("gpu-0")
        with pytest.raises(DeviceError, match=r"^'cuda:0' is no device name\."):
            Topology("", (Node("cuda:0", "device"),), ())

    def test_with_a_link_to_nowhere(self):
        sentence = (
            "The link from 'gpu:0' to 'sw1' leads nowhere: there is no 'sw1'. "
            "Name the device, host, switch or NIC before its links."
        )
        with refuses(sentence):
            TopologyBuilder().device("gpu:0").link("gpu:0", "sw1", gb_per_s=1)
        with refuses(sentence):
            Topology("", (Node("gpu:0", "device"),), (Link("gpu:0", "sw1", "", 1.0, 0.0),))

    def test_with_a_link_to_itself(self):
        with refuses("There is a link from 'gpu:0' to itself. A link joins two nodes; leave it out."):
            TopologyBuilder().device("gpu:0").link("gpu:0", "gpu:0", gb_per_s=1).build()

    @pytest.mark.parametrize(
        ("width", "word"),
        [
            (0, "0"),
            (-1.5, "-1.5"),
            (math.inf, "inf"),
            (math.nan, "nan"),
            (True, "True"),
            ("9", "'9'"),
            (5e-324, "5e-324"),
            (1e11, "100000000000.0"),
        ],
    )
    def test_with_an_impossible_bandwidth(self, width, word):
        sentence = " GB/s. A bandwidth is a number from 1e-9 to 1e9; leave out a link that carries nothing."
        with refuses(f"The link from 'gpu:0' to 'gpu:1' has {word}{sentence}"):
            pair(gb_per_s=width)
        with refuses(f"The link from 'gpu:1' to 'gpu:0' has {word}{sentence}"):
            pair(gb_per_s=1, back_gb_per_s=width)

    def test_with_links_that_no_machine_has_together(self):
        """Solvers lose their way between such numbers, which come of a wrong unit."""
        with refuses(
            "The link from 'gpu:1' to 'gpu:0' has 1e-06 GB/s and that from 'gpu:0' to 'gpu:1' 25. Links of one machine "
            "differ by a factor of 1e7 at most: check the units."
        ):
            pair(gb_per_s=25, back_gb_per_s=1e-6)
        assert pair(gb_per_s=900, back_gb_per_s=9e-5).capacity("gpu:1", "gpu:0") == 90_000

    @pytest.mark.parametrize(("alpha", "word"), [(-1, "-1"), (math.nan, "nan"), ("1", "'1'")])
    def test_with_an_impossible_latency(self, alpha, word):
        sentence = f"The link from 'gpu:0' to 'gpu:1' has a latency of {word} µs. It is a finite number, 0 or more."
        with refuses(sentence):
            pair(gb_per_s=1, alpha_us=alpha)

    def test_with_impossible_numbers_in_a_link_made_by_hand(self):
        nodes = (Node("gpu:0", "device"), Node("gpu:1", "device"))
        with pytest.raises(TopologyError, match=r"has 0\.0 GB/s"):
            Topology("", nodes, (Link("gpu:0", "gpu:1", "", 0.0, 0.0),))
        with pytest.raises(TopologyError, match=r"latency of nan µs"):
            Topology("", nodes, (Link("gpu:0", "gpu:1", "", 1.0, math.nan),))

    @pytest.mark.parametrize("kind", ["host", "switch", "nic"])
    def test_with_a_control_character_in_a_name(self, kind):
        with refuses(f"A {kind} is named 'a\\x1b[2Jb'. Names are printed and drawn: use printable characters only."):
            getattr(TopologyBuilder().device("gpu:0"), kind)("a\x1b[2Jb").build()

    def test_with_a_control_character_in_the_kind_of_a_link(self):
        with refuses(
            "The link from 'gpu:0' to 'gpu:1' is of kind 'a\\x1b[2Jb'. Kinds are printed and drawn: use printable "
            "characters only."
        ):
            pair(gb_per_s=1, kind="a\x1b[2Jb")

    def test_in_two_parts(self):
        builder = TopologyBuilder().device("gpu:0").device("gpu:1").device("gpu:2").device("gpu:3")
        builder.link("gpu:0", "gpu:2", gb_per_s=1).link("gpu:1", "gpu:3", gb_per_s=1)
        sentence = (
            "The machine is not connected: nothing leads from {} to {}. "
            "Add the links between them, or plan for one part."
        )
        with refuses(sentence.format("gpu:0, gpu:2", "gpu:1, gpu:3")):
            builder.build()
        with refuses(sentence.format("gpu:0, gpu:1", "gpu:6, gpu:7")):
            known_topology("dgx1_v100").restricted(["gpu:0", "gpu:1", "gpu:6", "gpu:7"])
        many = "gpu:0, gpu:1, gpu:2, gpu:3, gpu:4 … (7 devices)"
        builder = TopologyBuilder()
        for number in range(8):
            builder.device(f"gpu:{number}")
        for number in range(6):
            builder.link(f"gpu:{number}", f"gpu:{number + 1}", gb_per_s=1)
        with refuses(sentence.format(many, "gpu:7")):
            builder.build()

    def test_that_lead_one_way_only(self):
        builder = TopologyBuilder().device("gpu:0").device("gpu:1").link("gpu:0", "gpu:1", gb_per_s=1, one_way=True)
        with pytest.raises(TopologyError, match=r"nothing leads from gpu:1 to gpu:0\."):
            builder.build()

    def test_that_lack_a_device_asked_for(self):
        with refuses(
            "There is no gpu:2 in this topology. It has gpu:0, gpu:1: name some of these, once each.",
        ):
            switched(2).restricted(["gpu:0", "gpu:2"])
