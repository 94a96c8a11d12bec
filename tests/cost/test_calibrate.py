import random

import pytest

from treefold.errors import SimulationError
from treefold.topology import known_topology
from treefold.topology.cost import fit_link, fit_links, refine
from treefold.topology.cost.calibrate import _columns

SIZES = [2**power for power in range(6, 27, 2)]
ALPHA, BETA = 2.5e-6, 1 / 48e9


def measured(seed, *, scatter=0.01, late=0.0, repeats=9):
    """Return samples of a link: times scatter in proportion, and some share of them is up to ten times too long."""
    numbers = random.Random(seed)  # noqa: S311 - nothing is secret here
    samples = []
    for size in SIZES * repeats:
        seconds = (ALPHA + BETA * size) * numbers.gauss(1, scatter)
        samples.append((size, seconds * numbers.uniform(1.5, 10) if numbers.random() < late else seconds))
    return samples


class TestFitLink:
    def test_is_exact_on_exact_samples(self):
        fit = fit_link([(size, ALPHA + BETA * size) for size in SIZES])
        assert fit.alpha_s == pytest.approx(ALPHA, rel=1e-6)
        assert fit.bytes_per_s == pytest.approx(48e9, rel=1e-9)

    @pytest.mark.parametrize("seed", range(20))
    def test_is_near_where_a_fifth_of_the_samples_is_late(self, seed):
        """Late copies move it by no more than 2 % in bandwidth and 5 % in latency."""
        fit = fit_link(measured(seed, late=0.2))
        assert fit.bytes_per_s == pytest.approx(48e9, rel=0.02)
        assert fit.alpha_s == pytest.approx(ALPHA, rel=0.05)

    def test_has_no_negative_latency(self):
        assert fit_link([(100, 90e-9), (200, 190e-9), (300, 290e-9)]).alpha_s == 0

    def test_serves_many_links(self):
        fits = fit_links({("gpu:0", "gpu:1"): [(0, 1.0), (1, 2.0)], ("gpu:1", "gpu:0"): [(0, 1.0), (1, 3.0)]})
        assert {ends: fit.bytes_per_s for ends, fit in fits.items()} == {
            ("gpu:0", "gpu:1"): pytest.approx(1.0),
            ("gpu:1", "gpu:0"): pytest.approx(0.5),
        }

    @pytest.mark.parametrize(
        ("samples", "count"), [([], "0 samples"), ([(5, 1.0)], "1 sample"), ([(5, 1.0)] * 3, "3 samples")]
    )
    def test_refuses_one_size(self, samples, count):
        sentence = (
            rf"^{count} of one size or none say nothing of latency and bandwidth\. Measure copies of at least "
            r"two sizes, a few bytes and some megabytes\.$"
        )
        with pytest.raises(SimulationError, match=sentence):
            fit_link(samples)

    @pytest.mark.parametrize("sample", [(-1, 1.0), (1, -1.0), (1, float("nan")), (float("inf"), 1.0)])
    def test_refuses_what_cannot_be(self, sample):
        sentence = r"^A copy of .* bytes in .* seconds cannot be\. Both are finite numbers, 0 or more\.$"
        with pytest.raises(SimulationError, match=sentence):
            fit_link([(1, 1.0), sample])

    def test_refuses_copies_that_take_no_longer(self):
        sentence = (
            r"^Larger copies take no longer than small ones, so no bandwidth follows\. Wait for each copy to end "
            r"before the clock is read, or measure larger ones\.$"
        )
        with pytest.raises(SimulationError, match=sentence):
            fit_link([(1, 1.0), (1000, 1.0), (2000, 0.5)])

    def test_gives_what_a_machine_is_refined_with(self):
        samples = [(size, ALPHA + BETA * size) for size in SIZES]
        fits = fit_links({("gpu:0", "gpu:1"): samples, ("gpu:1", "gpu:0"): samples})
        refined = refine(known_topology("ring:2"), fits)
        assert float(refined.capacity("gpu:0", "gpu:1")) == pytest.approx(48e9)


class TestSamples:
    @pytest.mark.parametrize(("count", "kept"), [(999, 999), (1000, 1000), (1001, 501), (2000, 1000), (2001, 667)])
    def test_are_thinned_beyond_a_thousand(self, count, kept):
        sizes, seconds = _columns([(number, 2 * number) for number in range(count)])
        assert sizes.size == kept
        assert (seconds == 2 * sizes).all()


class TestMedian:
    def test_of_two_in_the_middle_is_between_them(self):
        """Two copies of nothing took 1 s and 3 s, and one byte 4 s: 2 s and 2 s per byte, each between two answers."""
        fit = fit_link([(0, 1.0), (0, 3.0), (1, 4.0)])
        assert (fit.alpha_s, 1 / fit.bytes_per_s) == pytest.approx((2.0, 2.0))

    def test_may_lie_anywhere(self):
        """Of four copies of nothing and one of a byte: slopes 5, 4, 2 and 1, and latencies 1, 2, 3, 4 and 5."""
        fit = fit_link([(0, 1.0), (0, 2.0), (0, 4.0), (0, 5.0), (1, 6.0)])
        assert (fit.alpha_s, 1 / fit.bytes_per_s) == pytest.approx((3.0, 3.0))
