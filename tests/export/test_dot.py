import re

from treefold.planners.method import one_array
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.drawing.exports import to_dot
from treefold.topology.drawing.packs import packs_of
from treefold.topology.planning.tree_packing import along_packing, optimal_packing


class TestToDot:
    def test_has_every_node_and_every_link_once(self):
        text = to_dot(known_topology("dgx1_v100"))
        assert len(re.findall(r"shape=box", text)) == 8
        assert len(re.findall(r" -- ", text)) == 16
        assert '"gpu:0" -- "gpu:3" [label="50", penwidth=6];' in text

    def test_says_both_widths_where_they_differ(self):
        builder = TopologyBuilder('a "b"').device("gpu:0").device("gpu:1")
        text = to_dot(builder.link("gpu:0", "gpu:1", gb_per_s=10, back_gb_per_s=5).build())
        assert text.startswith('graph "a \\"b\\"" {')
        assert 'label="10 / 5"' in text

    def test_draws_every_tree_in_a_colour(self):
        topology = known_topology("ring:4")
        packs = packs_of(along_packing(optimal_packing(topology)).movement(one_array(topology.devices)))
        text = to_dot(topology, packs)
        assert len(re.findall(r"style=dashed", text)) == 12
        assert len(set(re.findall(r'color="(#\w+)"', text))) == 4
