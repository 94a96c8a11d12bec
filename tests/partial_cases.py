"""Contributions and weights for partial sums, so that blocks come into every mode, and exact sums by whole numbers."""

import ml_dtypes
import numpy as np
from exact_oracle import WIDTHS, bits_of

from treefold.backends.numpy_partial import Factor
from treefold.partials.partial_sum import PartialSum, Pieces

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
ONE = 1 << 64  # a weight of 1


def hostile(random, dtype, length, kinds=range(6)):
    """Return numbers of one of some kinds: any bits, ordinary ones, few exponents, subnormal, zeros, or the largest."""
    kind, bits = np.dtype(DTYPES[dtype]), WIDTHS[dtype][0]
    largest = float(ml_dtypes.finfo(kind).max)
    with np.errstate(all="ignore"):
        drawn = [
            lambda: random.integers(0, 1 << bits, length, np.uint64).astype(f"uint{bits}").view(kind),
            lambda: random.normal(size=length).astype(kind),
            lambda: (random.integers(-3, 4, length) * 2.0 ** random.integers(-24, 12, length)).astype(kind),
            lambda: random.integers(0, 1 << (bits - 6), length, np.uint64).astype(f"uint{bits}").view(kind),
            lambda: random.choice([-0.0, 0.0], length).astype(kind),
            lambda: random.choice([-largest, largest], length).astype(kind),
        ][random.choice(kinds)]()
        are_kept = np.isfinite(drawn) | (random.random() < 0.2)
        return np.where(are_kept, drawn, kind.type(1)).astype(kind)


def weight(random, kind):
    """Return a weight in units of 2**-64: 1, a count, a float, 63 bits, or as many as there may be."""
    return [
        lambda: ONE,
        lambda: int(random.integers(1, 5000)) * ONE,
        lambda: int(random.random() * 2**54) << 20 | 1 << 20,
        lambda: int(random.integers(1, 2**63)) * ONE,
        lambda: (int(random.integers(1, 2**62)) << int(random.integers(60))) + int(random.integers(1, 99)),
    ][kind]()


def in_random_tree(random, dtype, arrays, weights):
    """Return a sum of arrays that are cut, added in any order to some sums, and merged, some as they were saved."""
    length = arrays[0].size
    sums = [PartialSum(dtype, length) for _ in range(random.integers(1, 4))]
    for index in random.permutation(len(arrays)):
        array, at = arrays[index], int(random.integers(length + 1))
        sums[random.integers(len(sums))].add(Pieces.of([array[:at].copy(), array[at:].copy()]), Factor(weights[index]))
    while len(sums) > 1:
        last = sums.pop(random.integers(len(sums)))
        if random.random() < 0.5:
            last = PartialSum.of_state(dtype, length, last.state(), "state")
        sums[random.integers(len(sums))].merge(last)
    return sums[0]


def expected(dtype, arrays, weights, divisor):
    """Return the bits of the exact weighted sum over a divisor, in the units of weights."""
    word = f"uint{WIDTHS[dtype][0]}"
    columns = zip(*(array.view(word).tolist() for array in arrays), strict=True)
    return np.asarray([bits_of(dtype, column, weights, divisor) for column in columns], word)


def wrong_elements(random, dtype, most_adds=20):
    """Add random numbers in a random tree; return how many elements of its sum or mean are wrong, and the modes."""
    length, adds, kind = (
        int(random.integers(1, 400)),
        int(random.integers(1, most_adds)),
        random.choice([0, 0, 0, 1, 2, 3, 4]),
    )
    kinds = random.choice(6, 2)
    arrays = [hostile(random, dtype, length, kinds) for _ in range(adds)]
    weights = [weight(random, kind) for _ in range(adds)]
    total = in_random_tree(random, dtype, arrays, weights)
    divisor = sum(weights) if random.random() < 0.5 else ONE
    made = total.finish(divisor).view(f"uint{WIDTHS[dtype][0]}")
    return int((made != expected(dtype, arrays, weights, divisor)).sum()), set(total.state()["modes"].tolist())
