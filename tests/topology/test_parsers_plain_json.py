import json
import re

import pasted_machines as pasted
import pytest
import shown

import treefold
from treefold.errors import ParseError
from treefold.topology import known_names, known_topology


class TestPlainForm:
    def test_is_read_whole(self):
        topology = treefold.load_topology(pasted.PLAIN_JSON)
        assert topology.name == "two and a switch"
        assert {ends: float(width) / 1e9 for ends, width in topology.capacities.items()} == {
            ("gpu:0", "sw0"): 25,
            ("sw0", "gpu:0"): 25,
            ("gpu:1", "sw0"): 25.1,
            ("sw0", "gpu:1"): 12.6,
            ("gpu:1", "gpu:0"): 3,
        }
        assert topology.alphas["gpu:0", "sw0"] == 1e-6

    @pytest.mark.parametrize("name", known_names())
    def test_round_trips_every_known_machine(self, name):
        topology = known_topology(name)
        again = treefold.load_topology(json.dumps(topology.to_json()))
        assert (again.name, again.devices, again.links) == (topology.name, topology.devices, topology.links)
        assert set(again.nodes) == set(topology.nodes)

    @pytest.mark.parametrize("text", pasted.ALL.values(), ids=pasted.ALL)
    def test_round_trips_every_pasted_machine(self, text):
        topology = treefold.load_topology(text)
        again = treefold.load_topology(json.dumps(topology.to_json()))
        assert (again.capacities, again.alphas, again.notes) == (topology.capacities, topology.alphas, topology.notes)
        assert set(again.nodes) == set(topology.nodes)

    @pytest.mark.parametrize(
        ("link", "sentence"),
        [
            (
                {"between": ["gpu:0"], "gb_per_s": 1},
                "between of links[0] is ['gpu:0']. It must be a pair of names; correct it.",
            ),
            (
                {"between": ["gpu:0", 1], "gb_per_s": 1},
                "between of links[0] is 1. It must be a string; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"], "gb_per_s": "25"},
                "gb_per_s of links[0] is '25'. It must be a number, or a pair [to, back]; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"], "gb_per_s": [1, 2, 3]},
                "gb_per_s of links[0] is [1, 2, 3]. It must be a number, or a pair [to, back]; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"], "gb_per_s": True},
                "gb_per_s of links[0] is True. It must be a number, or a pair [to, back]; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"]},
                "gb_per_s of links[0] is None. It must be a number, or a pair of which one may be null; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"], "gb_per_s": 10**400},
                "gb_per_s of links[0] is an int. It must be a number up to 1e+09; correct it.",
            ),
            (
                {"between": ["gpu:0", "gpu:1"], "gb_per_s": 1, "width": 16},
                "A key of links[0] is 'width'. It must be one of alpha_us, between, gb_per_s, kind; correct it.",
            ),
            (
                "gpu:0-gpu:1",
                "links[0] is 'gpu:0-gpu:1'. It must be an object such as "
                '{"between": ["gpu:0", "gpu:1"], "gb_per_s": 25.0}; correct it.',
            ),
        ],
    )
    def test_links_that_are_none_are_named(self, link, sentence):
        text = json.dumps({"devices": ["gpu:0", "gpu:1"], "links": [link]})
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({"devices": 8}, "devices is 8. It must be a list; correct it."),
            ({"devices": [0]}, "A name in devices is 0. It must be a string; correct it."),
            (
                {"devices": ["gpu:0"], "link": []},
                "A key of the JSON is 'link'. It must be one of devices, hosts, links, missing, name, nics, notes, "
                "switches; correct it.",
            ),
        ],
    )
    def test_fields_that_are_none_are_named(self, data, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(json.dumps(data))

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({"devices": ["gpu:0"] * 8193}, "The topology has 8193 nodes; at most 8192 are read."),
            ({"devices": ["gpu:0"], "links": [0] * 200_001}, "The topology has 200001 links; at most 200000 are read."),
        ],
        ids=["nodes", "links"],
    )
    def test_bounds(self, data, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}"):
            treefold.load_topology(json.dumps(data))


class TestMatrices:
    @pytest.mark.parametrize(
        "text",
        [
            '{"gb_per_s": [[0, 25, 0], [12.5, 0, 50], [0, 50, 0]]}',
            '{"links": [[0, 2, 0], [1, 0, 4], [0, 4, 0]], "gb_per_s_per_link": 12.5}',
            '{"m": [[0, 25, 0], [12.5, 0, 50], [0, 50, 0]], "note": "GB/s"}',
            "[[0, 25, 0], [12.5, 0, 50], [0, 50, 0]]",
        ],
    )
    def test_of_gb_per_s_and_of_links(self, text):
        assert shown.matrix(treefold.load_topology(text)) == [[0, 25, 0], [12.5, 0, 50], [0, 50, 0]]

    def test_measured_pairs_are_the_narrowest_machine(self):
        """p2pBandwidthLatencyTest measures one pair at a time: one port per device, as wide as its best pair."""
        topology = treefold.load_topology(pasted.MEASURED_MATRIX)
        assert {ends: float(width) / 1e9 for ends, width in topology.capacities.items()} == {
            ("gpu:0", "shared"): 11,
            ("shared", "gpu:0"): 11,
            ("gpu:1", "shared"): 11.5,
            ("shared", "gpu:1"): 12,
            ("gpu:2", "shared"): 12,
            ("shared", "gpu:2"): 11.5,
        }
        assert topology.notes == (
            "The diagonal is each device's own memory, so the matrix was measured one pair at a time and does not show "
            "what pairs share: every device is taken to have one port, as wide as its best pair.",
        )

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                "[[0, 1], [1, 0]]",
                "A matrix of zeros and ones says which devices may access each other, not how fast; it can even hide "
                "the fastest links. Give a topology with links, such as `nvidia-smi topo -m`.",
            ),
            (
                '{"m": [[0, 2], [2, 0]]}',
                "The matrix holds small whole numbers: link counts, weights or GB/s? Say which: "
                '{"gb_per_s": matrix} or {"links": matrix, "gb_per_s_per_link": 25}.',
            ),
            ("[[0, 25], [25]]", "The length of row 1 of the matrix is 1. It must be 2, as many as rows; correct it."),
            (
                '{"gb_per_s": [[0, -1], [1, 0]]}',
                "A number in row 0 of gb_per_s is -1. It must be GB/s or a count, 0 to 1e9; correct it.",
            ),
            (
                '{"gb_per_s": [[0, 1e11], [1e11, 0]]}',
                "A number in row 0 of gb_per_s is 100000000000.0. It must be GB/s or a count, 0 to 1e9; correct it.",
            ),
            ("[[7]]", "The size of the matrix is 1. It must be 2 or more; correct it."),
            (
                '{"gb_per_s": 5}',
                "gb_per_s is 5. It must be a square matrix: a list of lists of numbers; correct it.",
            ),
            (
                '{"links": [[0, 1], [1, 0]], "gb_per_s_per_link": "fast"}',
                "gb_per_s_per_link is 'fast'. It must be a number; correct it.",
            ),
            (
                '{"a": {"m": [[0]]}, "b": {"m": [[0]]}}',
                "This JSON holds 2 matrices (a, b). load_topology reads one: give the text of one.",
            ),
        ],
    )
    def test_that_say_nothing_of_bandwidth_are_refused(self, text, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)


class TestOtherJson:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                '{"name": "x", "gpus_per_node": 8, "node_betas_list": [23, 46]}',
                "This is a TACCL profile: latency and bandwidth per class of link, and no links. Give a topology; "
                "calibration takes measured figures.",
            ),
            (
                '[{"links": []}]',
                "This graph of a network lists NICs, hosts and switches of a network and no device that could combine "
                "values. Describe the hosts with their devices in the plain JSON form, or name a known cluster.",
            ),
            (
                '{"a": 1, "b": 2}',
                'The JSON has a, b, and no machine. The plain form is {"devices": [...], "switches": [...], "links": '
                '[{"between": ["gpu:0", "gpu:1"], "gb_per_s": 25.0}, ...]}; {"gb_per_s": matrix} is read as well.',
            ),
            (
                '{"devices": ["gpu:0"',
                "The JSON is broken or cut off: Expecting ',' delimiter: line 1 column 21 (char 20). Save the whole "
                "file and give that.",
            ),
        ],
    )
    def test_is_refused_by_name(self, text, sentence):
        with pytest.raises(ParseError, match=f"^{re.escape(sentence)}$"):
            treefold.load_topology(text)

    def test_that_is_too_deep_is_refused(self):
        with pytest.raises(ParseError, match=r"^The JSON is broken or cut off: "):
            treefold.load_topology("[" * 1_000_000)
