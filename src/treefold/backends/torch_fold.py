"""The arithmetic of a fold in PyTorch's operations, for tensors on devices.

Sums and means are accumulated wide, in replica order, and rounded once, while the reference, ``numpy_fold``, is exact.
The reference itself folds, in host memory, the ops that ``folds_on_device`` excludes: PRODUCT, the MEAN of 64-bit
integers, MIN and MAX of uint64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treefold.backends.numpy_fold import clamp
from treefold.dtypes import COMPLEX, HALVES, INTEGERS, OVERFLOWING, REAL, WIDE_INTEGERS
from treefold.fold import Fold, headroom
from treefold.reduce_op import ReduceOp

_HALVES = tuple(getattr(torch, name) for name in HALVES)


def folds_on_device(fold: Fold, dtype: str) -> bool:
    """Return whether ``fold_on_device`` supports this op for contributions of ``dtype``."""
    if fold.op is ReduceOp.MEAN:
        return dtype not in WIDE_INTEGERS
    return fold.op is ReduceOp.SUM or (fold.op is not ReduceOp.PRODUCT and dtype != "uint64")


def fold_on_device(parts: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: Any) -> Any:
    """Return the fold of 1-d tensors on one device as a new tensor of dtype ``result``, as ``fold_block`` does."""
    with torch.no_grad():
        if fold.op in {ReduceOp.MIN, ReduceOp.MAX}:
            return _extreme(parts, fold.op).to(result)
        if dtype in COMPLEX:
            real = [_as_real(part) for part in parts]
            folded = _sum(real, fold, dtype=REAL[dtype], divisor=divisor)
            return _as_complex(folded, result)
        return _rounded(_sum(parts, fold, dtype=dtype, divisor=divisor), result)


def scale_on_device(part: Any, divisor: int, result: Any) -> Any:
    """Return a 1-d tensor, of integers of at most 32 bits or of floats, divided and rounded once to ``result``."""
    with torch.no_grad():
        if part.is_complex():
            return _as_complex(_divided(_as_real(part).double(), divisor), result)
        return _rounded(_divided(part.double(), divisor), result)


def _divided(values: Any, divisor: float) -> Any:
    # By a tensor: on GPUs PyTorch replaces a division by a number with a product with its reciprocal: two roundings.
    return values / torch.full((), divisor, dtype=values.dtype, device=values.device)


def _as_real(part: Any) -> Any:
    return torch.view_as_real(part.resolve_conj().contiguous()).reshape(-1)


def _as_complex(real: Any, result: Any) -> Any:
    return torch.view_as_complex(real.to(result.to_real()).reshape(-1, 2))


def _sum(parts: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None) -> Any:
    """Return the SUM, MEAN, or partial sum of a MEAN, still in the accumulator's dtype."""
    mean_of = divisor if fold.op is ReduceOp.MEAN else None
    if mean_of and fold.weights is not None:
        # The parts of a complex array come as twice as many reals, so weights go by part, not by element.
        pairs = zip(fold.scaled_weights, parts, strict=True)
        chosen = [(weight, part.double()) for weight, part in pairs if weight]
        return _weighted_mean(chosen, fold.weight_sum)
    total = _accumulate(parts, getattr(torch, "int64" if dtype in INTEGERS else fold.accumulator_dtype(dtype)))
    if mean_of is not None:
        # int64 holds the sum of 2^31 contributions of 32 bits, and native 16-bit sums cannot hold the count itself.
        wide = torch.float64 if dtype in INTEGERS else torch.float32 if total.dtype in _HALVES else total.dtype
        total = _divided(total.to(wide), mean_of)
    if fold.accumulate == "exact" and dtype in OVERFLOWING:
        total = _refolded(total, parts, mean_of)
        # Parts may be partial sums, which do not bound the mean.
        return clamp(total, parts, namespace=torch) if mean_of == len(parts) and dtype == "float64" else total
    return total


def _accumulate(parts: Sequence[Any], dtype: Any) -> Any:
    total = parts[0].to(dtype, copy=True)
    for part in parts[1:]:
        total += part.to(dtype)
    return total


def _refolded(total: Any, parts: Sequence[Any], mean_of: int | None) -> Any:
    """Repeat sums that are not finite on a smaller scale, on which no sum of finite values overflows."""
    where = ~torch.isfinite(total)
    if not where.any():
        return total
    scale = headroom(len(parts))
    small = _accumulate([part.double() / scale for part in parts], torch.float64)
    again = (small if mean_of is None else _divided(small, mean_of)) * scale
    return torch.where(where, _halfway_float32(again) if total.dtype is torch.float32 else again, total)


def _weighted_mean(chosen: Sequence[tuple[float, Any]], weight_sum: float) -> Any:
    """Return Σwᵢxᵢ/Σwᵢ of float64 contributions; all weights are above 0 and below 2."""
    values = [part for _, part in chosen]
    total = _divided(_accumulate([weight * part for weight, part in chosen], torch.float64), weight_sum)
    where = ~torch.isfinite(total)
    if where.any():
        scale = 2 * headroom(len(chosen))
        small = _accumulate([weight * (part / scale) for weight, part in chosen], torch.float64)
        total = torch.where(where, _divided(small, weight_sum) * scale, total)
    return clamp(total, values, namespace=torch)


def _rounded(values: Any, dtype: Any) -> Any:
    """Round once. PyTorch converts float64 to 16 bits through float32, which rounds twice."""
    if dtype in _HALVES and values.dtype is torch.float64:
        values = _halfway_float32(values)
    return values.to(dtype)


def _halfway_float32(values: Any) -> Any:
    """Return float64 values in float32 such that rounding them to 16 bits next is one rounding ("round to odd")."""
    narrow = values.float()
    is_inexact = (narrow.double() != values) & torch.isfinite(narrow)  # too large values stay infinite
    is_larger = is_inexact & (narrow.double().abs() > values.abs())
    bits = (narrow.view(torch.int32) - is_larger.int()) | is_inexact.int()
    return bits.view(torch.float32)


def _extreme(parts: Sequence[Any], op: ReduceOp) -> Any:
    """Return MIN or MAX: NaN wins from any replica, and -0 counts as less than +0."""
    choose = torch.minimum if op is ReduceOp.MIN else torch.maximum
    is_float = parts[0].is_floating_point()
    # Not every device has these operations for all integers and 16-bit floats; int64 and float32 hold them.
    wide = parts[0].dtype if parts[0].dtype is torch.float64 else torch.float32 if is_float else torch.int64
    best = parts[0].to(wide)
    for part in (other.to(wide) for other in parts[1:]):
        chosen = choose(best, part)
        if is_float:
            signs = torch.signbit(best), torch.signbit(part)
            is_negative = signs[0] | signs[1] if op is ReduceOp.MIN else signs[0] & signs[1]
            zero = torch.where(is_negative, -0.0, 0.0).to(wide)
            chosen = torch.where((best == 0) & (part == 0), zero, chosen)
        best = chosen
    return best.clone() if len(parts) == 1 else best
