import random
from fractions import Fraction

import pytest
from scipy.optimize import linprog

from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.planning.host_shares import host_shares, port_rates, shares_of_ports


def lines(rates, contributions):
    """Return (host, constant, slope, rate) of what leaves and what enters every host, by its share."""
    hosts, total = len(rates), sum(contributions)
    for host, ((out, into), own) in enumerate(zip(rates, contributions, strict=True)):
        yield host, own, hosts - 1 - own, out
        yield host, 1, total - own - 1, into


def seconds(rates, contributions, shares):
    return max((a + b * shares[host]) / rate for host, a, b, rate in lines(rates, contributions))


def least_seconds(rates, contributions):
    """Return the least time of any shares, by a linear program."""
    hosts, rows, most = len(rates), [], []
    for host, constant, slope, rate in lines(rates, contributions):
        rows.append([float(slope) if other == host else 0.0 for other in range(hosts)] + [-float(rate)])
        most.append(-float(constant))
    whole = [[1.0] * hosts + [0.0]]
    return linprog([0.0] * hosts + [1.0], A_ub=rows, b_ub=most, A_eq=whole, b_eq=[1.0], bounds=(0, None)).fun


def both_ways(*rates):
    return [(Fraction(rate), Fraction(rate)) for rate in rates]


class TestSharesOfPorts:
    @pytest.mark.parametrize("seed", range(100))
    def test_take_the_least_time(self, seed):
        """As a linear program does, whatever the ports and the numbers of contributions."""
        rng = random.Random(seed)  # noqa: S311 - cases
        hosts = rng.randrange(2, 7)
        rates = [(Fraction(rng.choice((1, 5, 20, 100))), Fraction(rng.choice((1, 5, 20, 100)))) for _ in range(hosts)]
        contributions = [rng.choice((1, 1, 2, 4, 8, Fraction(1, 2))) for _ in range(hosts)]
        shares = shares_of_ports(rates, contributions)
        assert sum(shares) == 1
        assert min(shares) >= 0
        found = least_seconds(rates, contributions)
        assert float(seconds(rates, contributions, shares)) == pytest.approx(found, rel=1e-9)

    @pytest.mark.parametrize("hosts", range(1, 10))
    def test_are_equal_for_equal_ports(self, hosts):
        for contributions in (1, 2, 8, 50):
            shares = shares_of_ports(both_ways(*[7] * hosts), [contributions] * hosts)
            assert shares == (Fraction(1, hosts),) * hosts

    def test_give_nothing_to_a_port_that_is_busy_with_its_own(self):
        """A port of 5 beside three of 20 has enough to do with its contribution and the result."""
        shares = shares_of_ports(both_ways(20, 20, 20, 5), [1] * 4)
        assert shares == (Fraction(1, 3), Fraction(1, 3), Fraction(1, 3), 0)
        assert seconds(both_ways(20, 20, 20, 5), [1] * 4, shares) == Fraction(1, 5)

    def test_follow_the_ports_where_several_are_best(self):
        assert shares_of_ports(both_ways(100, 50, 5), [1] * 3) == (Fraction(2, 3), Fraction(1, 3), 0)

    def test_let_a_host_own_what_it_would_send_often(self):
        """With 8 replicas of its own, a host sends less by owning more."""
        first, *others = shares_of_ports(both_ways(1, 1, 1), [8, 1, 1])
        assert first > max(others)


class TestHostShares:
    def test_count_the_rails_of_a_host_together(self):
        builder = TopologyBuilder("cluster").switch("left").switch("right")
        for number, rates in enumerate([(10, 10), (10, 10), (20, None), (5, None)]):
            builder.device(f"cpu:{number}")
            for rail, rate in zip(("left", "right"), rates, strict=True):
                if rate is not None:
                    builder.link(f"cpu:{number}", rail, gb_per_s=rate)
        cluster = builder.link("left", "right", gb_per_s=1000).build()
        shares = host_shares(cluster, [[device] for device in cluster.devices], [1] * 4)
        assert shares == (Fraction(1, 3), Fraction(1, 3), Fraction(1, 3), 0)


class TestPortRates:
    def test_are_the_narrowest_cut(self):
        """Eight NICs of 50 GB/s leave a host; a device in it has its NVSwitch port, too."""
        machine = known_topology("2x8_h100")
        assert port_rates(machine, machine.devices[:8]) == (400 * 10**9, 400 * 10**9)
        assert port_rates(machine, machine.devices[:1]) == (500 * 10**9, 500 * 10**9)

    def test_differ_by_direction(self):
        builder = TopologyBuilder().device("cpu:0").device("cpu:1").switch("switch")
        builder.link("cpu:0", "switch", gb_per_s=3, back_gb_per_s=2).link("cpu:1", "switch", gb_per_s=9)
        assert port_rates(builder.build(), ["cpu:0"]) == (3 * 10**9, 2 * 10**9)

    def test_go_around_by_all_routes(self):
        """Two narrow links behind a wide one, and flow that must give way to other flow."""
        builder = TopologyBuilder().device("cpu:0").device("cpu:1").switch("a").switch("b")
        builder.link("cpu:0", "a", gb_per_s=4).link("cpu:0", "b", gb_per_s=1).link("a", "b", gb_per_s=2)
        builder.link("a", "cpu:1", gb_per_s=1).link("b", "cpu:1", gb_per_s=9)
        assert port_rates(builder.build(), ["cpu:0"]) == (4 * 10**9, 4 * 10**9)
