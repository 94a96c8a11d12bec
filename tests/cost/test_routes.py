"""When the longer route is worth its latency: sharing two routes between devices, at the sizes around the answer."""

from fractions import Fraction

import pytest

from treefold.planners import add_star
from treefold.planners.method import Method, one_array
from treefold.planners.star import star
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.cost.routes import Alternatives, alternatives, busiest_s, find_routes
from treefold.topology.cost.simulation import MovementTimes

PAIR = ("gpu:0", "gpu:1")


def two_routes(second_gb_per_s=12.0, second_alpha_us=5.0):
    """Return two devices with an NVLink of 25 GB/s and 1 µs, and a switch of 12 GB/s and twice 5 µs between them."""
    builder = TopologyBuilder("two routes").device("gpu:0").device("gpu:1").switch("sw")
    builder.link(*PAIR, gb_per_s=25, alpha_us=1, kind="nvlink")
    for device in PAIR:
        builder.link(device, "sw", gb_per_s=second_gb_per_s, alpha_us=second_alpha_us, kind="pcie")
    return builder.build()


def chosen(machine, traffic, scale=1, **messages):
    """Return the routes that suit traffic drawn out by a factor."""
    choice = find_routes(machine, traffic, **messages)
    return choice.shared if choice.shares_at(scale) else choice.alone


def num_routes(nbytes, machine=None, **options):
    return len(chosen(machine or two_routes(), {PAIR: nbytes}, **options)[PAIR])


class TestFindRoutes:
    @pytest.mark.parametrize(("nbytes", "count"), [(1e3, 1), (600e3, 1), (800e3, 2), (1e9, 2)])
    def test_pays_9_us_more_for_what_takes_longer_alone(self, nbytes, count):
        """37 GB/s in place of 25 win 9 µs at 694 KB: below that the second route costs more than it brings."""
        assert num_routes(nbytes) == count

    @pytest.mark.parametrize(("scale", "count"), [(0, 1), (1, 1), (600, 1), (800, 2), (1e6, 2)])
    def test_serves_all_sizes_of_a_plan(self, scale, count):
        """Routes for 1 KB, asked for 600 and 800 times as much, answer as routes for 600 and 800 KB do."""
        assert num_routes(1e3, scale=scale) == count

    def test_has_nothing_to_share_on_one_route(self):
        builder = TopologyBuilder("one route").device("gpu:0").device("gpu:1")
        choice = find_routes(builder.link(*PAIR, gb_per_s=25, alpha_us=1).build(), {PAIR: 1e9})
        assert (choice.alone_s, choice.shared_s, choice.longer_s) == (0.04, 0.04, 0)
        assert choice.shared == choice.alone

    @pytest.mark.parametrize(("beside", "is_shared"), [(2e9, False), (1e9, True)])
    def test_shares_nothing_beside_a_busier_link_without_a_way_around(self, beside, is_shared):
        """2 GB over the only link to a third device, of 12 GB/s, take longer than 3 GB over NVLink; 1 GB does not."""
        nodes = TopologyBuilder("three").device("gpu:0").device("gpu:1").device("gpu:2").switch("sw")
        nodes.link(*PAIR, gb_per_s=25, alpha_us=1, kind="nvlink").link("gpu:0", "gpu:2", gb_per_s=12, alpha_us=1)
        for device in PAIR:
            nodes.link(device, "sw", gb_per_s=12, alpha_us=5, kind="pcie")
        choice = find_routes(nodes.build(), {PAIR: 3e9, ("gpu:0", "gpu:2"): beside})
        assert choice.shares_at(1) == is_shared
        assert len(choice.shared[PAIR]) == 1 + is_shared

    def test_says_what_sharing_wins_and_costs(self):
        choice = find_routes(two_routes(), {PAIR: 1e9})
        assert choice.alone_s == pytest.approx(1 / 25)
        assert choice.shared_s == pytest.approx(1 / 37, rel=0.01)
        assert choice.longer_s == pytest.approx(9e-6)

    def test_takes_those_that_are_known(self):
        known = Alternatives(two_routes(second_gb_per_s=50))
        choice = find_routes(two_routes(), {PAIR: 1e9, PAIR[::-1]: 1e9}, known=known)
        assert choice.alone[PAIR][0].nodes == known[PAIR][0]
        assert known[PAIR] is known[PAIR]

    @pytest.mark.parametrize(("messages", "count"), [(1, 2), (2, 1)])
    def test_pays_them_for_every_message(self, messages, count):
        """800 KB in two messages cost 18 µs of latency, and win 10."""
        assert num_routes(800e3, messages={PAIR: messages}) == count

    @pytest.mark.parametrize(("second_gb_per_s", "count"), [(0.1, 1), (0.5, 2)])
    def test_leaves_what_wins_less_than_a_hundredth(self, second_gb_per_s, count):
        """A second route of 0.4 % of the first is not worth a second look, one of 2 % is."""
        assert num_routes(1e12, two_routes(second_gb_per_s)) == count

    def test_shares_by_width(self):
        shares = [route.share for route in chosen(two_routes(), {PAIR: 1e9})[PAIR]]
        assert shares == pytest.approx([25 / 37, 12 / 37], rel=0.01)

    def test_says_what_a_route_is(self):
        routes = chosen(two_routes(), {PAIR: 1e9})[PAIR]
        assert [route.nodes for route in routes] == [PAIR, ("gpu:0", "sw", "gpu:1")]
        assert [route.alpha_s for route in routes] == pytest.approx([1e-6, 10e-6])
        assert routes[1].links == (("gpu:0", "sw"), ("sw", "gpu:1"))


class TestAlternatives:
    def test_have_the_widest_in_front(self):
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
        builder = TopologyBuilder("star").switch("sw")
        for number in range(3):
            builder.device(f"gpu:{number}").link(f"gpu:{number}", "sw", gb_per_s=10, kind="pcie")
        traffic = {("gpu:0", "gpu:1"): 1e9, ("gpu:0", "gpu:2"): 3e9}
        routes = find_routes(builder.build(), traffic).alone
        assert busiest_s(builder.build(), traffic, routes) == pytest.approx(0.4)

    def test_of_nothing_is_nothing(self):
        assert busiest_s(two_routes(), {}, {}) == 0


class TestMovementTimes:
    @pytest.mark.parametrize(("num_packs", "count"), [(1, 2), (2, 1), (3, 1)])
    def test_counts_a_message_for_every_pack(self, num_packs, count):
        """Packs to one root are messages of one pair, so 800 KB in two of them stay on the NVLink."""
        shares = (Fraction(1, num_packs),) * num_packs
        method = Method(shares, lambda builder, pack, _: add_star(builder, pack, "gpu:0"), "star")
        setting = MovementTimes(method.movement(one_array(PAIR)), two_routes()).at(800e3)
        assert len(setting.load.routes["gpu:1", "gpu:0"]) == count

    @pytest.mark.parametrize(("nbytes", "gb_per_s"), [(600e3, 25), (1e9, 37)])
    def test_is_busy_as_the_chosen_routes_are(self, nbytes, gb_per_s):
        movement = star("gpu:0").movement(one_array(PAIR))
        setting = MovementTimes(movement, two_routes()).at(nbytes)
        assert setting.busy_s == pytest.approx(nbytes / gb_per_s / 1e9, rel=0.01)


class TestRoutes:
    def test_go_through_no_third_device_where_they_need_not(self):
        """On a DGX-1V, GPU 0 has a link to GPU 4 and none to GPU 5: there another one forwards."""
        machine = known_topology("dgx1_v100")
        assert alternatives(machine, "gpu:0", "gpu:4") == (("gpu:0", "gpu:4"),)
        [route] = alternatives(machine, "gpu:0", "gpu:5")
        assert len(route) == 3
        assert route[1] in {"gpu:1", "gpu:4"}

    def test_spread_over_the_planes_of_a_fabric(self):
        builder = TopologyBuilder("planes").device("gpu:0").device("gpu:1")
        for plane in range(6):
            builder.switch(f"sw{plane}")
            for device in ("gpu:0", "gpu:1"):
                builder.link(device, f"sw{plane}", gb_per_s=25, kind="nvlink")
        machine = builder.build()
        routes = chosen(machine, {("gpu:0", "gpu:1"): 1e9})
        assert busiest_s(machine, {("gpu:0", "gpu:1"): 1e9}, routes) == pytest.approx(1 / 150, rel=0.01)
