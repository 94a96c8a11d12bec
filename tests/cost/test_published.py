"""Published times of machines, and what they say of the sizes between and beyond them."""

import pytest

from treefold.cli.planning.words import CHECKED_FROM, PUBLISHED, published_for, published_s
from treefold.topology import known_topology


class TestPublishedTimes:
    def test_of_one_size_are_its_bandwidth(self):
        machine = known_topology("mi300x")
        [known] = published_for(machine)
        assert published_s(machine, 2 * known.nbytes) == pytest.approx(2 * known.seconds)

    def test_of_two_sizes_lie_on_a_line_between_them(self):
        machine = known_topology("dgx_h100")
        low, *_, high = published_for(machine)
        assert published_s(machine, (low.nbytes + high.nbytes) / 2) == pytest.approx((low.seconds + high.seconds) / 2)
        assert published_s(machine, low.nbytes) == pytest.approx(low.seconds)
        assert published_s(machine, 2 * high.nbytes) == pytest.approx(2 * high.seconds)

    def test_bound_what_is_claimed(self):
        """As busbw, which reports quote: S/t times 2·(n - 1)/n."""
        busbw = {
            (one.machine, one.nbytes): round(one.nbytes / one.seconds / 1e9 * 2 * (1 - 1 / count))
            for one in PUBLISHED
            for count in [len(known_topology(one.machine).devices)]
        }
        assert busbw == {
            ("dgx_h100", 2**28): 438,
            ("dgx_h100", 2**33): 481,
            ("2x8_h100", 2**28): 342,
            ("2x8_h100", 2**33): 488,
            ("mi300x", 2**28): 353,
        }

    def test_are_none_below_what_was_checked(self):
        assert published_s(known_topology("mi300x"), CHECKED_FROM - 1) is None
        assert published_s(known_topology("mi300x"), CHECKED_FROM) is not None
        assert CHECKED_FROM == 256 * 2**20
        assert published_s(known_topology("dgx2"), 2**30) is None
