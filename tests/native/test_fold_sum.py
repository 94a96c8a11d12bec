import math
from fractions import Fraction

import numpy as np
import pytest

from treefold._native import fold_sum

# Around the native block of 1024 elements, and a prime well past it.
LENGTHS = (0, 1, 7, 1023, 1024, 1025, 2048, 10_007)


def owned(replica, length):
    """Return values that name their owner: 2**replica, or its negative at odd positions."""
    signs = np.where(np.arange(length) % 2, -1, 1)
    return (signs * 2.0**replica).astype(np.float32)


def random_replicas(count, length):
    """Return float32 arrays over ten orders of magnitude, other values for every replica."""
    rng = np.random.default_rng(count)
    return [(rng.normal(size=length) * 10.0 ** rng.integers(-5, 5, length)).astype(np.float32) for _ in range(count)]


def fold(sources, divisor=1.0):
    """Return the fold of ``sources`` in a new array that held NaN before."""
    target = np.full(len(sources[0]), np.nan, np.float32)
    fold_sum(sources, [target], divisor)
    return target


class TestFoldSum:
    @pytest.mark.parametrize("length", LENGTHS)
    @pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
    def test_counts_every_replica_once(self, count, length):
        """The sum of 2**r over n replicas is 2**n - 1, whatever the length."""
        sources = [owned(r, length) for r in range(count)]
        np.testing.assert_array_equal(fold(sources), owned(0, length) * (2**count - 1))

    @pytest.mark.parametrize("count", [2, 3, 5, 16])
    def test_accumulates_in_float64_in_replica_order(self, count):
        """The bits are those of a float64 loop over the replicas, rounded once."""
        sources = random_replicas(count, 10_007)
        wide = sources[0].astype(np.float64)
        for source in sources[1:]:
            wide += source
        assert fold(sources).tobytes() == wide.astype(np.float32).tobytes()

    def test_is_the_exact_sum_of_close_magnitudes(self):
        """Where float64 holds the sum exactly, the result is the exact sum rounded once."""
        rng = np.random.default_rng(0)
        sources = [rng.uniform(1, 2, 501).astype(np.float32) for _ in range(9)]
        exact = [math.fsum(float(source[i]) for source in sources) for i in range(501)]
        np.testing.assert_array_equal(fold(sources), np.array(exact).astype(np.float32))

    def test_keeps_what_a_float32_sum_would_lose(self):
        """Replica 1 survives beside a replica 0 that is 2**30 times larger and is taken away again."""
        sources = [np.array([v], np.float32) for v in (2.0**30, 1.0, -(2.0**30))]
        assert fold(sources) == 1

    def test_adds_in_replica_order(self):
        """Where float64 rounds, the order shows: 2**60 swallows a 1 that comes before -2**60, not one after."""
        large, small = np.array([2.0**60], np.float32), np.array([1], np.float32)
        assert fold([large, small, -large]) == 0
        assert fold([large, -large, small]) == 1

    def test_divides(self):
        """The mean is the float64 sum divided by n and rounded once."""
        sources = random_replicas(7, 4099)
        wide = sum(source.astype(np.float64) for source in sources)
        assert fold(sources, 7.0).tobytes() == (wide / 7).astype(np.float32).tobytes()

    def test_does_not_multiply_by_a_rounded_reciprocal(self):
        """A mean halfway between two float32 rounds to the even one; times 1/49 it would fall below the half."""
        sources = [np.array([v], np.float32) for v in (49, -49 * 2.0**-25)]
        assert fold(sources, 49.0) == 1

    def test_mean_of_equal_values_is_that_value(self):
        """Three replicas of 0.1 have the mean 0.1."""
        sources = [np.full(5, 0.1, np.float32)] * 3
        np.testing.assert_array_equal(fold(sources, 3.0), sources[0])

    def test_mean_does_not_overflow(self):
        """The mean of the largest finite value is that value."""
        largest = np.finfo(np.float32).max
        sources = [np.full(3, largest, np.float32) for _ in range(8)]
        np.testing.assert_array_equal(fold(sources, 8.0), sources[0])

    def test_keeps_negative_zero(self):
        """The sum of -0.0 is -0.0: it does not start from +0.0."""
        assert np.signbit(fold([np.array([-0.0], np.float32)] * 2)).all()

    def test_keeps_denormals(self):
        """The smallest denormal of replica r is counted like any other value."""
        smallest = np.finfo(np.float32).smallest_subnormal
        sources = [np.array([smallest], np.float32) * np.float32(2**r) for r in range(3)]
        assert Fraction(float(fold(sources)[0])) == 7 * Fraction(float(smallest))

    @pytest.mark.parametrize("holder", [0, 1, 2])
    def test_propagates_nan_from_any_replica(self, holder):
        """A NaN in one replica makes its element NaN, and no other."""
        sources = [owned(r, 4) for r in range(3)]
        sources[holder][2] = np.nan
        assert np.isnan(fold(sources)).tolist() == [False, False, True, False]

    @pytest.mark.parametrize("length", LENGTHS)
    def test_in_place(self, length):
        """Each target may be exactly one source's memory."""
        arrays = [owned(r, length) for r in range(5)]
        fold_sum(arrays, arrays, 1.0)
        for array in arrays:
            np.testing.assert_array_equal(array, owned(0, length) * 31)

    def test_writes_the_same_bits_into_every_target(self):
        """Targets among the sources and targets beside them get the same bits."""
        sources = random_replicas(3, 5003)
        expected = fold(sources, 3.0).tobytes()
        beside = [np.empty(5003, np.float32) for _ in range(4)]
        targets = [sources[1], *beside]
        fold_sum(sources, targets, 3.0)
        assert {target.tobytes() for target in targets} == {expected}

    def test_leaves_sources_and_neighbours_alone(self):
        """Only the targets' own elements change."""
        sources = [owned(r, 1025) for r in range(3)]
        guarded = np.full(1025 + 2, 99, np.float32)
        fold_sum(sources, [guarded[1:-1]], 1.0)
        assert guarded[0] == guarded[-1] == 99
        for r, source in enumerate(sources):
            np.testing.assert_array_equal(source, owned(r, 1025))

    def test_takes_read_only_sources(self):
        """A source is only read."""
        source = owned(3, 6)
        source.flags.writeable = False
        np.testing.assert_array_equal(fold([source]), source)


def strided():
    """Return every second element of an array."""
    return np.zeros(8, np.float32)[::2]


def unaligned():
    """Return four float32 elements that begin one byte past an aligned address."""
    return np.zeros(17, np.uint8)[1:].view(np.float32)


def read_only():
    """Return an array that must not be written."""
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


FOUR = np.zeros(4, np.float32)
ONLY_FLOAT32 = "but takes only float32, which is 'f'"
REFUSED = {
    "no sources": ([], [FOUR], 1.0, "no sources, but needs at least one"),
    "no targets": ([FOUR], [], 1.0, "no targets, but needs at least one"),
    "no buffer": ([3.0], [FOUR], 1.0, "source 0 without a buffer, but takes only arrays in host memory"),
    "float64": ([FOUR, np.zeros(4)], [FOUR], 1.0, f"source 1 of format 'd', {ONLY_FLOAT32}"),
    "bytes": ([FOUR], [bytearray(4)], 1.0, f"target 0 of format 'B', {ONLY_FLOAT32}"),
    "swapped": ([FOUR.astype(">f4")], [FOUR], 1.0, f"source 0 of format '>f', {ONLY_FLOAT32}"),
    "2-D": ([FOUR.reshape(2, 2)], [FOUR], 1.0, "source 0 with 2 axes, but takes only arrays with one"),
    "0-D": ([FOUR[0]], [FOUR], 1.0, "source 0 with 0 axes, but takes only arrays with one"),
    "strided": ([strided()], [FOUR], 1.0, "source 0 with a stride of 8 bytes, but takes only contiguous arrays"),
    "reversed": (
        [FOUR],
        [FOUR[::-1]],
        1.0,
        "target 0 with a stride of -4 bytes, but takes only contiguous arrays",
    ),
    "unaligned": (
        [unaligned()],
        [FOUR],
        1.0,
        "source 0 at an address that is no multiple of 4, but takes only aligned arrays",
    ),
    "read-only": ([FOUR], [FOUR, read_only()], 1.0, "target 1 read-only, but must write into every target"),
    "length": (
        [FOUR],
        [np.zeros(3, np.float32)],
        1.0,
        "target 0 of length 3 where source 0 has 4, but all must be equally long",
    ),
} | {
    f"divisor {divisor}": ([FOUR], [FOUR], divisor, "a divisor that is not a positive finite number")
    for divisor in (0.0, -2.0, math.inf, math.nan)
}


class TestRefusals:
    @pytest.mark.parametrize(("sources", "targets", "divisor", "sentence"), REFUSED.values(), ids=REFUSED)
    def test_says_what_was_got_and_what_is_taken(self, sources, targets, divisor, sentence):
        """What the core cannot fold is refused in one sentence."""
        with pytest.raises(ValueError, match=rf"^fold_sum got {sentence}\.$"):
            fold_sum(sources, targets, divisor)

    def test_writes_nothing_before_refusing(self):
        """A bad second target leaves the first as it was."""
        target = owned(4, 4)
        with pytest.raises(ValueError, match=r"^fold_sum got target 1 of length 3"):
            fold_sum([owned(0, 4)], [target, np.zeros(3, np.float32)], 1.0)
        np.testing.assert_array_equal(target, owned(4, 4))
