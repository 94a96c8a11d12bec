"""How far the fit of a link may be off, by what its samples say themselves."""

import random

import pytest

from treefold.cost import fit_link
from treefold.cost.calibrate import _columns

SIZES = [2**power for power in range(6, 27, 2)] * 9
ALPHA, BETA = 2.5e-6, 1 / 48e9


def scattered(seed):
    """Return copies whose times scatter by 1 %."""
    numbers = random.Random(seed)  # noqa: S311 - nothing is secret here
    return [(size, (ALPHA + BETA * size) * numbers.gauss(1, 0.01)) for size in SIZES]


def fitted(seed):
    """Return their fit."""
    return fit_link(scattered(seed))


class TestSpread:
    def test_is_a_standard_deviation(self):
        """Of a hundred fits about two thirds lie within one of it: not many fewer, and not many more."""
        fits = [fitted(seed) for seed in range(100)]
        for name, truth in (("beta_s_per_byte", BETA), ("alpha_s", ALPHA)):
            spread = name.replace("beta_s", "beta_spread_s").replace("alpha_s", "alpha_spread_s")
            assert 45 <= sum(abs(getattr(fit, name) - truth) <= getattr(fit, spread) for fit in fits) <= 82

    def test_is_that_of_the_bandwidth_to_first_order(self):
        """A hundredth of beta is a hundredth of 1/beta."""
        fit = fitted(1)
        relative = fit.beta_spread_s_per_byte / fit.beta_s_per_byte
        assert fit.bytes_per_s_spread / fit.bytes_per_s == pytest.approx(relative)


class TestOutliers:
    def test_are_seen_beside_exact_samples(self):
        """Where nothing scatters, a sample that took half as long again is one."""
        exact = [(size, ALPHA + BETA * size) for size in SIZES]
        assert fit_link([*exact, (2**20, 1.5 * (ALPHA + BETA * 2**20))]).num_outliers == 1

    @pytest.mark.parametrize(("deviations", "count"), [(3.5, 0), (7, 1)])
    def test_are_five_standard_deviations_off(self, deviations, count):
        """Samples that scatter by a hundredth, none of them so far, and one that is further off."""
        late = (2**20, (ALPHA + BETA * 2**20) * (1 + deviations * 0.01))
        assert fit_link([*scattered(1), late]).num_outliers == count


class TestSamples:
    @pytest.mark.parametrize(("count", "kept"), [(999, 999), (1000, 1000), (1001, 501), (2000, 1000), (2001, 667)])
    def test_are_thinned_beyond_a_thousand(self, count, kept):
        """Every second, every third and so on, so that at most a thousand are left."""
        sizes, seconds = _columns([(number, 2 * number) for number in range(count)])
        assert sizes.size == kept
        assert (seconds == 2 * sizes).all()


class TestMedian:
    def test_of_two_in_the_middle_is_between_them(self):
        """Two copies of nothing took 1 s and 3 s, and one byte 4 s: 2 s and 2 s per byte, each between two answers."""
        fit = fit_link([(0, 1.0), (0, 3.0), (1, 4.0)])
        assert (fit.alpha_s, fit.beta_s_per_byte) == pytest.approx((2.0, 2.0))

    def test_may_lie_at_any_place(self):
        """Of four copies of nothing and one of a byte: slopes 5, 4, 2 and 1, and latencies 1, 2, 3, 4 and 5."""
        fit = fit_link([(0, 1.0), (0, 2.0), (0, 4.0), (0, 5.0), (1, 6.0)])
        assert (fit.alpha_s, fit.beta_s_per_byte) == pytest.approx((3.0, 3.0))
