"""Exact folds of the reference against fractions: every kind of float, and what rounding could get wrong."""

import random

import ml_dtypes
import numpy as np
import pytest
from exact_oracle import KINDS, WIDTHS, bits_of, floats, middle

from treefold.backends.numpy_exact import exact_fold

_COUNT = 100
_REPLICAS = (1, 2, 3, 5, 7, 8, 13, 33, 64)


def drawn(dtype, kind, count, seed):
    """Return the bits of the replicas of some elements; some replicas cancel the one before."""
    rng = np.random.default_rng([*f"{dtype} {kind.__name__} {count} {seed}".encode()])
    bits = kind(rng, WIDTHS[dtype], (count, _COUNT))
    if count > 1:
        bits[1] = np.where(rng.random(_COUNT) < 0.3, bits[0] ^ np.uint64(1 << (WIDTHS[dtype][0] - 1)), bits[1])
    return bits.T.tolist()


def folded(dtype, elements, weights, divisor):
    """Return the bits that the reference gives."""
    word = f"uint{WIDTHS[dtype][0]}"
    floats = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    parts = [np.array(column, word).view(floats) for column in zip(*elements, strict=True)]
    return exact_fold(parts, dtype, weights=weights, divisor=divisor).view(word).tolist()


def check(dtype, elements, weights, divisor):
    """Assert that every element is right, by its bits."""
    expected = [bits_of(dtype, replicas, weights or [1] * len(replicas), divisor) for replicas in elements]
    wrong = [
        (list(map(hex, replicas)), hex(got), hex(right))
        for replicas, got, right in zip(elements, folded(dtype, elements, weights, divisor), expected, strict=True)
        if got != right
    ]
    assert not wrong


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", WIDTHS)
class TestExactFold:
    def test_sum(self, dtype, kind):
        for count in _REPLICAS:
            check(dtype, drawn(dtype, kind, count, "sum"), None, 1)

    def test_mean(self, dtype, kind):
        for count in _REPLICAS:
            check(dtype, drawn(dtype, kind, count, "mean"), None, count)

    def test_weights(self, dtype, kind):
        draw = random.Random("weights")  # noqa: S311 - a test's choice
        for count in _REPLICAS[1:6]:
            for weights in ([0, 1, 3, 7], [1, 1023, 5], [2**40 + 1, 2**53 - 1], [0, 2**200 + 3, 1]):
                chosen = [draw.choice(weights) for _ in range(count - 1)] + [weights[-1]]
                check(dtype, drawn(dtype, kind, count, "weights"), chosen, sum(chosen))

    def test_any_order(self, dtype, kind):
        draw = random.Random("orders")  # noqa: S311 - a test's choice
        elements = drawn(dtype, kind, 8, "orders")
        right = folded(dtype, elements, None, 8)
        for _ in range(5):
            order = draw.sample(range(8), 8)
            assert folded(dtype, [[one[index] for index in order] for one in elements], None, 8) == right


class TestExponentsThatAreNearlyTooFarApart:
    @pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 45), ("float32", 29), ("float64", 26)])
    @pytest.mark.parametrize("count", [3, 8])
    def test_sums(self, dtype, bits, count):
        form, rng = WIDTHS[dtype], np.random.default_rng([*dtype.encode(), count])
        most = (1 << (form[1] - 1)) - 1
        for spread in range(bits - 4, bits + 3):
            low = middle(form) - spread // 2
            ends = floats(rng, form, low + spread * rng.integers(0, 2, (count, 2000)))
            few = rng.choice(np.array([0, 1, most], np.uint64), 2000)
            ends = np.where(rng.random(2000) < 0.75, ends & ~np.uint64(most) | few, ends)
            check(dtype, ends.T.tolist(), None, 1)


class TestNeighbours:
    @pytest.mark.parametrize("dtype", WIDTHS)
    def test_of_every_kind(self, dtype):
        for count in (2, 8, 64):
            elements = [one for kind in KINDS for seed in range(20) for one in drawn(dtype, kind, count, seed)]
            random.Random("places").shuffle(elements)  # noqa: S311 - a test's choice
            check(dtype, elements, None, count)


class TestExamples:
    def test_exponents_27_apart(self):
        """Eight of them need one bit more than float64 has."""
        values = [2.0**50, 2.0**50, *[1.5 * 2.0**50] * 3, 1.5 * 2.0**50 + 2.0**29, 2.0**23 + 5, -(2.0**23 + 4)]
        parts = [np.array([value], np.float32) for value in values]
        assert float(exact_fold(parts, "float32", weights=None, divisor=1)[0]).hex() == "0x1.0000020000000p+53"

    def test_a_speck_that_decides_a_tie(self):
        """A wider accumulator rounds the speck away: 1 + 2**-24 + 2**-60 is above the tie."""
        parts = [np.array([value], np.float32) for value in (1.0, 2.0**-24, 2.0**-60)]
        assert exact_fold(parts, "float32", weights=None, divisor=1)[0] == np.float32(1 + 2.0**-23)

    def test_what_cancels_on_the_way(self):
        values = (2.0**100, 1.0, 2.0**-24, 2.0**-100, -(2.0**100), 2.0**-110, -(2.0**-110), 2.0**-120)
        parts = [np.array([value], np.float32) for value in values]
        assert exact_fold(parts, "float32", weights=None, divisor=1)[0] == np.float32(1 + 2.0**-23)

    def test_a_nonzero_value_that_rounds_to_zero_keeps_its_sign(self):
        parts = [np.array([value]) for value in (-5e-324, 0.0, 0.0)]
        result = exact_fold(parts, "float64", weights=None, divisor=3)[0]
        assert result == 0
        assert np.signbit(result)
