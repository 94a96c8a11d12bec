"""The core's sums and means against whole numbers: 100,000 elements per dtype and op, and 10,000,000 by `math.fsum`."""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from exact_oracle import KINDS, WIDTHS, any_bits, bits_of, huge
from native_cases import IS_FULL, LEVELS, fold_natively

from treefold import _native
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

COUNTS = (1, 2, 3, 5, 7, 8, 13, 33, 64)
ELEMENTS, MANY_REPLICAS = 1_600, 100
#: Of as many elements, exact by `math.fsum`, in parts.
LONG, PART = 10_000_000, 250_000


def fold_of(op, count):
    """Return the fold, the weights and the divisor of this many contributions."""
    if op == "weighted MEAN":
        weights = tuple(
            [0, 1, 3, 7, 600, (1 << 53) - 1, (1 << 40) + 1, 1023][index % 8] for index in range(1, count + 1)
        )
        return Fold(ReduceOp.MEAN, weights=weights), weights, sum(weights)
    return Fold(ReduceOp(op)), (1,) * count, count if op == "MEAN" else 1


def folded(parts, fold, dtype, case):
    """Return the bits that the core gives, by one certificate and level after the other."""
    _native.set_certificate(case % len(_native.CERTIFICATES))
    target = np.empty_like(parts[0])
    kept = [part for part, weight in zip(parts, fold.weights or (1,) * len(parts), strict=True) if weight]
    fold_natively(
        [(kept, [target])],
        Fold(fold.op, weights=fold.weights and tuple(filter(None, fold.weights))),
        dtype,
        case % len(LEVELS),
    )
    return target


@pytest.mark.parametrize("op", ["SUM", "MEAN", "weighted MEAN"])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_every_element_is_right(dtype, op):
    form, rng = WIDTHS[dtype], np.random.default_rng(len(dtype) + len(op))
    word, elements, wrong = f"u{form[0] // 8}", 0, []
    works = [(count, ELEMENTS) for count in COUNTS] + [(1000, MANY_REPLICAS)]
    for case, ((count, length), kind) in enumerate(itertools.product(works, KINDS)):
        bits = kind(rng, form, (count, length)).astype(word)
        fold, weights, divisor = fold_of(op, count)
        found = folded(list(bits.view(np.dtype(dtype))), fold, dtype, case).view(word)
        right = np.array(
            [bits_of(dtype, column, weights, divisor) for column in zip(*bits.tolist(), strict=True)], word
        )
        wrong += [(kind.__name__, count, hex(found[at]), hex(right[at])) for at in np.flatnonzero(found != right)]
        elements += length
    assert not wrong
    assert elements > 100_000


@pytest.mark.skipif(not IS_FULL, reason="takes minutes: `make test-long` runs it")
@pytest.mark.parametrize("dtype", WIDTHS)
def test_sums_are_those_of_fsum(dtype):
    """Ten million elements of 2 to 64 contributions, and 100,000 of 1,000; of no size that overflows."""
    form, rng, wrong = WIDTHS[dtype], np.random.default_rng(len(dtype)), 0
    kinds = [kind for kind in KINDS if kind is not any_bits and not (dtype == "float64" and kind is huge)]
    sizes = [(count, PART) for count, _ in zip(itertools.cycle(COUNTS[1:]), range(LONG // PART), strict=False)]
    for case, (count, length) in enumerate([*sizes, (1000, 100_000)]):
        bits = kinds[case % len(kinds)](rng, form, (count, length)).astype(f"u{form[0] // 8}")
        parts = list(bits.view(np.dtype(dtype)))
        found = folded(parts, Fold(ReduceOp.SUM), dtype, case // len(kinds))
        wrong += np.count_nonzero(found.view(np.uint8) != right_sums(parts).view(np.uint8))
    assert wrong == 0


def right_sums(parts):
    """Return sums by `math.fsum`, which is exact for float64, rounded once to the dtype."""
    columns = list(zip(*(part.astype(np.float64).tolist() for part in parts), strict=True))
    doubles = np.array([math.fsum(column) for column in columns])
    sums = rounded(doubles, parts[0].dtype)
    # Python's sum of what cancels is +0, and so is ours; that of zeros that are all negative is not.
    sums[np.logical_and.reduce([(part == 0) & np.signbit(part) for part in parts])] = -0.0
    if parts[0].dtype == np.float64:
        return sums
    for index in np.flatnonzero(are_halfway(doubles, sums.dtype)):
        beyond = math.fsum((*columns[index], -doubles[index]))
        if beyond:
            sums[index] = rounded(np.nextafter(doubles[[index]], math.copysign(math.inf, beyond)), sums.dtype)[0]
    return sums


def rounded(doubles, dtype):
    """Round float64 once. ml_dtypes reaches bfloat16 by float32, so what that loses is kept in its last bit."""
    if dtype.name == "bfloat16":
        bits, lost = doubles.view(np.uint64), np.uint64((1 << 29) - 1)
        doubles = ((((bits & lost) + lost) | bits) & ~lost).view(np.float64)
    with np.errstate(over="ignore"):
        return doubles.astype(dtype)


def are_halfway(doubles, dtype):
    """Tell where a float64 is as near to one number of a narrower dtype as to another; infinity is the next power."""
    beyond = 2.0 ** ml_dtypes.finfo(dtype).maxexp
    ends = [rounded(np.nextafter(doubles, end), dtype).astype(np.float64) for end in (-np.inf, np.inf)]
    low, high = (np.clip(end, -beyond, beyond) for end in ends)
    return (low != high) & (doubles == (low + high) / 2)


class TestMoreThanAMillionContributions:
    """Sums of that many 32-bit integers do not fit float64, and would take Python minutes."""

    def test_of_integers_have_the_exact_mean(self):
        most, count, length = (1 << 32) - 1, (1 << 21) + 3, 16
        first, mean = np.arange(1, length + 1, dtype=np.uint32), np.empty(length)
        fold_into([first, *[np.full_like(first, most)] * (count - 1)], [mean], Fold(ReduceOp.MEAN), "uint32")
        sums = [int(one) + (count - 1) * most for one in first]
        assert mean.tolist() == [total / count for total in sums]
        assert mean.tolist() != [float(total) / count for total in sums]

    @pytest.mark.parametrize("op", ["SUM", "MEAN"])
    def test_of_any_exponents_are_exact(self, op):
        """All that is large cancels; what is left is small numbers, one of each replica of a few."""
        count, length = (1 << 20) + 8, 4
        huge, tiny = np.full(length, 1.7e38, np.float32), 2.0 ** np.arange(-120, -116, dtype=np.float32)
        rows = [huge, -huge] * (count // 2 - 4) + [tiny * np.float32(2**replica) for replica in range(8)]
        made = np.empty(length, np.float32)
        fold_into(rows, [made], Fold(ReduceOp[op]), "float32")
        exact = [Fraction(float(one)) * 255 / (count if op == "MEAN" else 1) for one in tiny]
        assert made.tolist() == [float(np.float32(float(one))) for one in exact]
