"""When times count as equally good: within a hundredth, without the launch that all pay."""

import pytest

from treefold.topology.cost.routes import LAUNCH_S, is_as_good


class TestAsGood:
    @pytest.mark.parametrize(("more_us", "expected"), [(-1, True), (0, True), (0.9, True), (1.1, False), (100, False)])
    def test_is_within_a_hundredth_of_what_copies_take(self, more_us, expected):
        """100 µs of copies are as good as 100.9, whatever the launch adds to both."""
        least = LAUNCH_S + 100e-6
        assert is_as_good(least + 1e-6 * more_us, least) is expected

    def test_of_the_least_is_itself(self):
        assert is_as_good(1e-6, 1e-6)
