import array
import collections
import decimal
import fractions
import numbers
import re

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice, all_reduce, reduce
from treefold.calls.arguments import read_weights
from treefold.errors import ArgumentError
from treefold.reduce_op import ReduceOp

ALLOWED = "It takes a list, tuple or one-dimensional array of one finite number ≥ 0 per replica, not all of them 0."


class Series:
    """Numbers under labels, as data frames hold them: gone through, it gives the numbers."""

    def __iter__(self):
        return iter((1.0, 3.0))


class Rounded:
    """A real number of which a float is all that can be had."""

    def __float__(self):
        return 1.0


def weighed(weights, op="mean"):
    """Return the mean of 1 and 3 by weights: 2.5 by 1 and 3."""
    return reduce([1.0, 3.0], op, to="cpu:0", weights=weights)


def weighed_bits(weights):
    return reduce([np.array([1 / 3]), np.array([np.pi])], "mean", to="cpu:0", weights=weights).tobytes()


class TestWeights:
    @pytest.mark.parametrize(
        "weights",
        [
            [1, 3],
            (0.25, 0.75),
            collections.deque([1, 3]),
            array.array("d", [1, 3]),
            range(1, 4, 2),
            np.array([1, 3]),
            np.array([1, 3], np.float32)[::1],
            np.array([3, 1])[::-1],
            [np.float32(1), np.array(3)],
            [fractions.Fraction(1, 4), decimal.Decimal("0.75")],
            [2**1000, 3 * 2**1000],
        ],
        ids=repr,
    )
    def test_are_a_sequence_or_one_axis_of_numbers(self, weights):
        assert weighed(weights) == 2.5

    @pytest.mark.parametrize(
        ("weights", "got"),
        [
            ({0: 1.0, 1: 3.0}, "a dict"),
            ({1.0, 3.0}, "a set"),
            (frozenset({1.0, 3.0}), "a frozenset"),
            ({0: 1.0, 1: 3.0}.values(), "a dict_values"),
            (iter([1, 3]), "a list_iterator"),
            (Series(), "a Series"),
            (PerReplica([1.0, 3.0]), "a PerReplica"),
            ("13", "'13'"),
            (b"\x01\x03", r"b'\x01\x03'"),
            (bytearray(b"\x01\x03"), "a bytearray"),
            (["1", "3"], "['1', '3']"),
            ([[1], [3]], "a list"),
            ([np.array([1.0]), np.array([3.0])], "a list"),
            (np.array([[1.0], [3.0]]), "an ndarray"),
            (np.array(1.0), "an ndarray"),
            (np.array([1 + 0j, 3]), "an ndarray"),
            (np.array(["1", "3"]), "an ndarray"),
            (np.ma.array([1.0, 3.0], mask=[0, 1]), "a MaskedArray"),
            ([1, 3j], "[1, 3j]"),
            ([None, 1], "[None, 1]"),
            ([1, object()], "a list"),
            ([-1, 3], "[-1, 3]"),
            ([np.nan, 1], "[nan, 1]"),
            ([np.inf, 1], "[inf, 1]"),
            ([decimal.Decimal("1e999999999"), 1], "a list"),
            ([0, 0], "[0, 0]"),
            (range(10**30), "a range"),
            (3, "3"),
            (10**5000, "an int"),
            (list, "the class list"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_that_are_something_else_are_refused(self, weights, got):
        """Above all values that have keys or no order: nobody could know which number belongs to which replica."""
        with pytest.raises(ArgumentError, match=f"^{re.escape(f'weights is {got}. {ALLOWED}')}$"):
            weighed(weights)

    def test_are_the_numbers_that_they_are(self):
        tenths = [decimal.Decimal("0.3"), decimal.Decimal("0.7")]
        ratios = ([3, 7], tenths, [fractions.Fraction(3, 10), fractions.Fraction(7, 10)], [30 * 10**40, 70 * 10**40])
        results = {weighed_bits(weights) for weights in ratios}
        assert results == {weighed_bits([fractions.Fraction(3), 7])}
        assert read_weights(tenths, ReduceOp.MEAN) == (3, 7) != read_weights([0.3, 0.7], ReduceOp.MEAN)

    def test_of_longer_floats_are_not_cut(self):
        long = np.longdouble(1) + np.finfo(np.longdouble).eps
        exact = fractions.Fraction(*long.as_integer_ratio())
        for weights in ([long, 1], np.array([long, 1])):
            assert read_weights(weights, ReduceOp.MEAN) == (exact.numerator, exact.denominator)
        expected = float((exact - 1) / (exact + 1))
        assert reduce([np.array([1.0]), np.array([-1.0])], "mean", to="cpu:0", weights=[long, 1]).tolist() == [expected]

    def test_that_do_not_tell_their_exact_value_are_refused(self):
        sentence = (
            "weights has a Rounded, which does not tell its exact value. A weight is a whole number, a float, a"
            " Fraction or a Decimal. Multiply the weights until they are whole numbers."
        )
        numbers.Real.register(Rounded)
        with pytest.raises(ArgumentError, match=f"^{re.escape(sentence)}$"):
            weighed([Rounded(), 1])

    def test_of_more_bits_than_float64_are_said_to_be_slow(self):
        value = PerReplica([np.array([1.0]), np.array([2.0])])
        weights = [fractions.Fraction(1, 3**40), fractions.Fraction(1, 7**30)]
        mean = ReductionToOneDevice().reduce("mean", value, "cpu:0", weights=weights)
        assert mean[0].item() == float((weights[0] + 2 * weights[1]) / sum(weights))
        assert mean.plan.notes == (
            "weights of more than 53 bits: every element is folded in whole numbers, which is slow",
        )

    def test_of_far_too_many_bits_are_refused(self):
        sentence = (
            "weights, as whole numbers in their ratio, have up to 4,097 bits, and 4,096 are taken. Round them, or leave"
            " out those that count for nothing."
        )
        with pytest.raises(ArgumentError, match=f"^{re.escape(sentence)}$"):
            weighed([1, 2**4096])

    @pytest.mark.parametrize("ops", [HierarchicalCopyAllReduce(), ReductionToOneDevice()], ids=str)
    @pytest.mark.parametrize("call", ["reduce", "batch_reduce", "all_reduce"])
    def test_are_refused_wherever_they_are_taken(self, ops, call):
        value, keyed = PerReplica([1.0, 3.0]), {0: 1.0, 1: 3.0}
        calls = {
            "reduce": lambda: ops.reduce("mean", value, value, weights=keyed),
            "batch_reduce": lambda: ops.batch_reduce("mean", [(value, value)], weights=keyed),
            "all_reduce": lambda: all_reduce([1.0, 3.0], "mean", weights=keyed),
        }
        with pytest.raises(ArgumentError, match=r"^weights is a dict\. "):
            calls[call]()

    @pytest.mark.parametrize("weight", [1e-200, 5e-324, 1e200, 8e307])
    @pytest.mark.parametrize("value", [1e-300, 1.0, 1e300])
    def test_count_by_their_ratio_alone(self, weight, value):
        assert reduce([np.array([value]), np.array([3 * value])], "mean", weights=[weight] * 2) == 2 * value

    def test_do_not_go_with_sparse_rows(self):
        """Rows are laid behind each other, none is added: a weight would be ignored in silence."""
        value = PerReplica([IndexedSlices(np.ones((1, 2)), np.array([row]), (4, 2)) for row in range(2)])
        with pytest.raises(
            ArgumentError, match=r"^weights do not go with IndexedSlices: .* make one of the values dense\.$"
        ):
            ReductionToOneDevice().reduce("mean", value, "cpu:0", weights=[1, 3])

    def test_go_with_rows_beside_a_dense_value(self):
        rows = IndexedSlices(np.full((1, 2), 4.0), np.array([0]), (2, 2))
        mean = ReductionToOneDevice().reduce("mean", PerReplica([rows, np.full((2, 2), 8.0)]), "cpu:0", weights=[1, 3])
        assert mean[0].tolist() == [[7.0, 7.0], [6.0, 6.0]]
