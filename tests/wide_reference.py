"""The results of devices without exact sums: accumulated in the next wider dtype, in replica order."""

import numpy as np

from treefold.backends import numpy_fold
from treefold.backends.numpy_fold import clamp, put, rounded
from treefold.dtypes import COMPLEX, INTEGERS, OVERFLOWING, REAL
from treefold.fold import headroom
from treefold.reduce_op import ReduceOp


def fold_block(parts, fold, *, dtype, divisor, result):
    """Return what ``numpy_fold.fold_block`` does, but sums and means of floats accumulated wide."""
    is_exact = fold.accumulate == "exact" and (dtype not in INTEGERS or fold.weights is not None)
    if fold.op not in {ReduceOp.SUM, ReduceOp.MEAN} or not is_exact:
        return numpy_fold.fold_block(parts, fold, dtype=dtype, divisor=divisor, result=result)
    with np.errstate(all="ignore"):
        if dtype in COMPLEX:
            real = [part.view(REAL[part.dtype.name]) for part in parts]
            return _folded(real, fold, REAL[dtype], divisor).astype(REAL[result], copy=False).view(result)
        return rounded(_folded(parts, fold, dtype, divisor), result)


def _folded(parts, fold, dtype, divisor):
    mean_of = divisor if fold.op is ReduceOp.MEAN else None
    if mean_of and fold.weights is not None:
        return _weighted_mean(parts, fold)
    total = _accumulated(parts, fold.accumulator_dtype(dtype))
    if mean_of is not None:
        total /= mean_of
    where = np.flatnonzero(~np.isfinite(total))
    if dtype in OVERFLOWING and where.size:  # on a smaller scale no sum of finite values overflows
        scale = headroom(len(parts))
        small = _accumulated([part[where].astype("float64") / scale for part in parts], "float64")
        put(total, where, (small if mean_of is None else small / mean_of) * scale)
    return clamp(total, parts) if mean_of == len(parts) and dtype == "float64" else total


def _accumulated(parts, accumulator):
    total = parts[0].astype(accumulator)
    for part in parts[1:]:
        total += part.astype(accumulator)
    return total


def _weighted_mean(parts, fold):
    pairs = zip(fold.scaled_weights, parts, strict=True)
    chosen = [(weight, part.astype("float64")) for weight, part in pairs if weight]
    total = _accumulated([weight * part for weight, part in chosen], "float64") / fold.weight_sum
    where = np.flatnonzero(~np.isfinite(total))
    if where.size:
        scale = 2 * headroom(len(chosen))
        small = _accumulated([weight * (part[where] / scale) for weight, part in chosen], "float64")
        total[where] = small / fold.weight_sum * scale
    return clamp(total, [part for _, part in chosen])
