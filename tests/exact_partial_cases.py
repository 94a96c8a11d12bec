"""Values for exact partial sums, and calls of a group with one replica a rank that are compared with one process."""

import bit_cases
import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np

import treefold
from treefold.dtypes import numpy_dtype
from treefold.testing import mixed_values

REALS = ("float16", "bfloat16", "float32", "float64")
#: No multiple of a block or of any number of ranks, and more than a frame has room for.
LENGTH = 9001


def hostile(replica, dtype, length=LENGTH):
    """Return values of every kind, by stretches that begin anywhere in blocks."""
    values = np.random.default_rng(replica).normal(size=length).astype(numpy_dtype(dtype))
    kind = np.arange(length) // 100 % 8
    large = 6e4 if dtype == "float16" else 1e30
    others = (
        mixed_values(replica, (length,), dtype),
        mixed_values(replica, (length,), dtype, is_finite=True),
        np.full(length, large * (1, 0, -1)[replica % 3] + (replica % 3 == 1)),
        np.full(length, -0.0),
        np.full(length, (0.0, -0.0)[replica % 2]),
    )
    for number, other in enumerate(others):
        values[kind == number] = other.astype(values.dtype)[kind == number]
    return values


def differing(group):
    """Return which calls of this group have not the bits of one process."""
    wrong, bits_of, length = [], bit_cases.folded_bits_of, group.size * (LENGTH // group.size)
    for dtype in REALS:
        everyone = [hostile(replica, dtype, length) for replica in range(group.size)]
        own = everyone[group.rank]
        for op in ("sum", "mean"):
            expected = treefold.all_reduce(everyone, op)[0]
            if bits_of(group.all_reduce(own, op)) != bits_of(expected):
                wrong.append((dtype, op))
            part = np.split(expected, group.size)[group.rank]
            if bits_of(group.reduce_scatter(own, op)) != bits_of(part):
                wrong.append((dtype, op, "reduce_scatter"))
        for weights in ([1 + rank for rank in range(group.size)], [rank / 7 for rank in range(group.size)]):
            expected = treefold.all_reduce(everyone, "mean", weights=weights)[0]
            if bits_of(group.all_reduce(own, "mean", weights=weights[group.rank])) != bits_of(expected):
                wrong.append((dtype, weights))
    return wrong
