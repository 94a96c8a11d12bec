"""When the longer way is worth its latency: sharing two ways between devices, at the sizes around the answer."""

from fractions import Fraction

import pytest

from treefold.cost.routes import alternatives, busiest_s, choose_routes
from treefold.cost.setting import Setting
from treefold.planners import add_star
from treefold.planners.methods import one_array, plan_packs
from treefold.topology import TopologyBuilder

PAIR = ("gpu:0", "gpu:1")


def two_ways(second_gb_per_s=12.0, second_alpha_us=5.0):
    """Return two devices with an NVLink of 25 GB/s and 1 µs, and a switch of 12 GB/s and twice 5 µs between them."""
    builder = TopologyBuilder("two ways").device("gpu:0").device("gpu:1").switch("sw")
    builder.link(*PAIR, gb_per_s=25, alpha_us=1, kind="nvlink")
    for device in PAIR:
        builder.link(device, "sw", gb_per_s=second_gb_per_s, alpha_us=second_alpha_us, kind="pcie")
    return builder.build()


def num_ways(nbytes, machine=None, **messages):
    """Return how many ways a copy of so many bytes takes."""
    return len(choose_routes(machine or two_ways(), {PAIR: nbytes}, **messages)[PAIR])


class TestChooseRoutes:
    @pytest.mark.parametrize(("nbytes", "ways"), [(1e3, 1), (600e3, 1), (800e3, 2), (1e9, 2)])
    def test_pays_9_us_more_for_what_takes_longer_alone(self, nbytes, ways):
        """37 GB/s in place of 25 win 9 µs at 694 KB: below that the second way costs more than it brings."""
        assert num_ways(nbytes) == ways

    @pytest.mark.parametrize(("messages", "ways"), [(1, 2), (2, 1)])
    def test_pays_them_for_every_message(self, messages, ways):
        """800 KB in two messages cost 18 µs of latency, and win 10."""
        assert num_ways(800e3, messages={PAIR: messages}) == ways

    @pytest.mark.parametrize(("second_gb_per_s", "ways"), [(0.1, 1), (0.5, 2)])
    def test_leaves_what_wins_less_than_a_hundredth(self, second_gb_per_s, ways):
        """A second way of 0.4 % of the first is not worth a second look, one of 2 % is."""
        assert num_ways(1e12, two_ways(second_gb_per_s)) == ways

    def test_shares_by_width(self):
        """25 and 12 of 37."""
        shares = [route.share for route in choose_routes(two_ways(), {PAIR: 1e9})[PAIR]]
        assert shares == pytest.approx([25 / 37, 12 / 37], rel=0.01)

    def test_says_what_a_route_is(self):
        """Its nodes, links and latency, the shorter first."""
        routes = choose_routes(two_ways(), {PAIR: 1e9})[PAIR]
        assert [route.nodes for route in routes] == [PAIR, ("gpu:0", "sw", "gpu:1")]
        assert [route.alpha_s for route in routes] == pytest.approx([1e-6, 10e-6])
        assert routes[1].links == (("gpu:0", "sw"), ("sw", "gpu:1"))


class TestAlternatives:
    def test_have_the_widest_in_front(self):
        """Of two switches, the one of 20 GB/s, then the one of 10; of two as wide, the one with less latency."""
        builder = TopologyBuilder("switches").device("gpu:0").device("gpu:1")
        figures = {"narrow": (10, 1), "wide": (20, 5), "quick": (20, 2)}
        for switch, (gb_per_s, alpha_us) in figures.items():
            builder.switch(switch)
            for device in PAIR:
                builder.link(device, switch, gb_per_s=gb_per_s, alpha_us=alpha_us, kind="pcie")
        found = alternatives(builder.build(), *PAIR)
        assert [nodes[1] for nodes in found] == ["quick", "wide", "narrow"]


class TestBusiest:
    def test_adds_up_what_shares_a_link(self):
        """Two copies from one device through one port."""
        builder = TopologyBuilder("star").switch("sw")
        for number in range(3):
            builder.device(f"gpu:{number}").link(f"gpu:{number}", "sw", gb_per_s=10, kind="pcie")
        traffic = {("gpu:0", "gpu:1"): 1e9, ("gpu:0", "gpu:2"): 3e9}
        routes = choose_routes(builder.build(), traffic)
        assert busiest_s(builder.build(), traffic, routes) == pytest.approx(0.4)

    def test_of_nothing_is_nothing(self):
        """No copy, no time."""
        assert busiest_s(two_ways(), {}, {}) == 0


class TestSetting:
    @pytest.mark.parametrize(("num_packs", "ways"), [(1, 2), (2, 1), (3, 1)])
    def test_counts_a_message_for_every_pack(self, num_packs, ways):
        """Packs to one root are messages of one pair, so 800 KB in two of them stay on the NVLink."""
        shares = [Fraction(1, num_packs)] * num_packs
        plan = plan_packs(one_array(PAIR), shares, lambda builder, pack, _: add_star(builder, pack, "gpu:0"), "star")
        assert len(Setting.of(plan, two_ways(), 800e3).routes["gpu:1", "gpu:0"]) == ways
