"""Cases for the native core: arrays that begin anywhere, with the results of the NumPy fold, the reference.

The variable ``TREEFOLD_CASES`` is the number of cases of each kind of fold; a release runs ``full``.
"""

import os

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np

from treefold import _native
from treefold.backends.numpy_fold import fold_block
from treefold.calls.arguments import read_weights
from treefold.execution.native import packed_weights
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import mixed_values, special_values

ASKED = os.environ.get("TREEFOLD_CASES", "50")
IS_FULL = ASKED == "full"
FULL_CASES = 2_500
CASES = FULL_CASES if IS_FULL else int(ASKED)

DTYPES, OPS, ACCUMULATIONS = _native.DTYPES, _native.OPS, _native.ACCUMULATIONS
LEVELS = _native.level_names()
REALS = {"complex64": "float32", "complex128": "float64"}

#: Every op with every dtype that it has a meaning for, and the MEAN with weights.
FOLDS = [
    (op, dtype)
    for op in (*OPS, "weighted MEAN")
    for dtype in DTYPES
    if not (op in {"MIN", "MAX"} and dtype in REALS) and not (op not in {"MIN", "MAX"} and dtype == "bool")
]

#: Around vectors, cache lines and blocks of loops, primes, and more than one task (most of these move more than 1 MiB).
EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 251, 1000, 1023, 1024, 1025, 2053)
SEVERAL_TASKS = (150_011, 262_144, 400_009)
#: Longer arrays repeat after so many elements, a prime: the reference is slow, and no two blocks of a loop are alike.
PERIOD = 5003


def placed(values, offset):
    """Return a copy of values that begins ``offset`` elements behind a cache line, and the guarded memory around."""
    memory = np.full(values.nbytes + (offset + 16) * values.itemsize + 128, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + 64 + offset * values.itemsize
    array = memory[start : start + values.nbytes].view(values.dtype)
    array[...] = values
    return array, memory


def contributions(rng, dtype, count, length):
    """Return arrays of every kind of value, of finite values only, or of values that overflow in between."""
    if length > PERIOD:
        return [np.resize(array, length) for array in contributions(rng, dtype, count, PERIOD)]
    kind = rng.integers(3)
    if kind < 2 or dtype == "bool":
        seed = int(rng.integers(2**31))
        return [mixed_values(seed + r, (length,), dtype, is_finite=kind == 1) for r in range(count)]
    specials = special_values(dtype)
    finite = specials[np.isfinite(specials.astype("complex128"))]
    return [finite[rng.integers(len(finite), size=length)] for _ in range(count)]


def fold_of(rng, op):
    """Return a fold of this op, its accumulation and weights drawn, and how many replicas it takes."""
    count = int(rng.choice([1, 2, 3, 4, 5, 8, 9, 17]))
    if op != "weighted MEAN":
        return Fold(ReduceOp(op), ACCUMULATIONS[rng.integers(2)]), count
    extremes = [5e-324, 1e-308, 1e-3, 0.1, 1.0, 2.0, 3.0, 1e300]
    weights = rng.choice(extremes[2:7] if rng.random() < 0.8 else extremes, count)
    return Fold(ReduceOp.MEAN, weights=read_weights(weights.tolist(), ReduceOp.MEAN)), count


def reference(sources, fold, dtype):
    """Return the fold of ``contributions`` by NumPy."""
    result, parts = fold.result_dtype(dtype), [source[:PERIOD] for source in sources]
    folded = fold_block(parts, fold, dtype=dtype, divisor=len(sources), result=result)
    return np.resize(folded, len(sources[0]))


def fold_natively(items, fold, dtype, level=0):
    """Fold (sources, targets) of one dtype in one native call, at a vector level."""
    numbered = [(DTYPES.index(dtype), sources, targets) for sources, targets in items]
    op, accumulate = OPS.index(fold.op.name), ACCUMULATIONS.index(fold.accumulate)
    packed = () if fold.weights is None else packed_weights(fold.weights)
    _native.fold(numbered, op, accumulate, level, *packed)


def bits(array):
    """Return the bytes of an array with every NaN replaced by one and the same: which NaN it is, nobody promises."""
    real = array.view(REALS.get(array.dtype.name, array.dtype))
    if array.dtype.name not in {"float16", "bfloat16", "float32", "float64", *REALS}:
        return real.tobytes()
    with np.errstate(invalid="ignore"):  # random bits may be a signalling NaN
        return np.where(np.isnan(real), np.array(np.nan, real.dtype), real).tobytes()
