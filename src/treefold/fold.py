"""The arithmetic of a reduction as data: which op, in which precision, with which weights.

The dtypes of MEAN, accumulators and results are decided here, from the table of dtypes, and nowhere else. Sums and
means are the exact value, rounded once. Products, and sums on GPUs, are accumulated in the next wider dtype, in replica
order, and rounded once.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from treefold.dtypes import COMPLEX, DTYPES, FOLDABLE, HALVES, INTEGERS
from treefold.errors import DtypeError
from treefold.reduce_op import ReduceOp

#: Elements of a block of exact partial sums.
EXACT_BLOCK = 128
#: The bytes in which the exact sum of an element travels. Sums of 16-bit floats do as whole numbers of 32 bits.
_EXACT_BYTES = {"float16": 4, "bfloat16": 4, "float32": 8, "float64": 16}
#: Bits of the sum of weights at most, so that sums of products with float32 nearly always have room in float64.
_SHORT_WEIGHTS = 28

_SMALLEST = 5e-324  # the smallest float64 above 0
_DOUBLE_BITS = 53  # of its significand

AccumulationFn = Callable[[Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Fold:
    """How the contributions to one element become its result.

    Integers are exact with either ``accumulate``: SUM and PRODUCT modulo 2^w, and the MEAN of the true sum.

    Args:
        op: The reduce op.
        accumulate: ``"exact"``, or ``"native"``: additions are made in the dtype itself.
        weights: For MEAN: whole numbers in the ratio of the weights, one per replica; None: all weigh the same.
        accumulation_fn: Replaces the fold; it gets the list of arrays in replica order. None: treefold folds.

    """

    op: ReduceOp
    accumulate: str = "exact"
    weights: tuple[int, ...] | None = None
    accumulation_fn: AccumulationFn | None = None

    @property
    def manner(self) -> str:
        """How contributions are accumulated on host memory, as plans name it."""
        if self.accumulation_fn is not None:
            return "callback"
        return "wide" if self.op is ReduceOp.PRODUCT and self.accumulate == "exact" else self.accumulate

    @property
    def divisor(self) -> int | None:
        """The divisor of a weighted MEAN; None without weights."""
        return None if self.weights is None else sum(self.weights)

    @property
    def are_weights_short(self) -> bool:
        """Whether there are weights of so few bits that exact partial sums of products can travel."""
        return self.divisor is not None and self.divisor.bit_length() <= _SHORT_WEIGHTS

    @property
    def are_weights_long(self) -> bool:
        """Whether an odd part of a weight has more bits than float64: then folds are slow."""
        odd = (weight // (weight & -weight) for weight in self.weights or () if weight)
        return any(weight.bit_length() > _DOUBLE_BITS for weight in odd)

    @property
    def scaled_weights(self) -> tuple[float, ...]:
        """The weights as floats, the largest in [1, 2), for devices without exact sums; empty without weights.

        A weight too small for float64 beside the largest becomes the smallest number: only 0 leaves a replica out.
        """
        if not self.weights:
            return ()
        unit = 1 << (max(self.weights).bit_length() - 1)
        return tuple([max(weight / unit, _SMALLEST) if weight else 0.0 for weight in self.weights])

    @property
    def weight_sum(self) -> float:
        """The sum of ``scaled_weights``, added one by one: Python's own ``sum`` rounds differently by version."""
        return functools.reduce(operator.add, self.scaled_weights, 0.0)

    def check_dtype(self, dtype: str, where: str = "") -> None:
        """Refuse a dtype that this op has no meaning for.

        Raises:
            DtypeError: bool under SUM, MEAN or PRODUCT; complex under MIN or MAX; a dtype outside the table.

        """
        if dtype == "bool":
            if self.op not in {ReduceOp.MIN, ReduceOp.MAX}:
                raise DtypeError(
                    f"{self.op.name} of bool{where} is not defined. Use MAX for any, MIN for all, or cast to an "
                    "integer dtype to count."
                )
        elif dtype == "float0":
            raise DtypeError(
                f"float0{where} is JAX's dtype for gradients of whole numbers, which have none. Put None in its place: "
                "jax.tree.map(lambda g: None if g.dtype == jax.dtypes.float0 else g, gradients)."
            )
        elif dtype not in FOLDABLE:
            raise DtypeError(
                f"{dtype}{where} cannot be reduced. Reducible are {', '.join(FOLDABLE)}; cast to one of them."
            )
        elif dtype in COMPLEX and self.op in {ReduceOp.MIN, ReduceOp.MAX}:
            raise DtypeError(
                f"{self.op.name} of {dtype}{where} is not defined: complex numbers have no order. Use SUM, MEAN or "
                "PRODUCT."
            )

    def result_dtype(self, dtype: str) -> str:
        """Return the dtype of the result: that of the input, but float for the MEAN of integers."""
        return (self.op is ReduceOp.MEAN and dtype in DTYPES and DTYPES[dtype].mean) or dtype

    def accumulator_dtype(self, dtype: str) -> str:
        """Return the dtype in which contributions of ``dtype`` are accumulated."""
        is_wide = self.op not in {ReduceOp.MIN, ReduceOp.MAX} and (self.accumulate == "exact" or dtype in INTEGERS)
        return (is_wide and DTYPES[dtype].accumulator) or dtype

    def has_any_order(self, dtype: str) -> bool:
        """Return whether contributions of this dtype may be folded in any order and in parts, with the same bits."""
        is_exact = dtype in INTEGERS and self.op in {ReduceOp.SUM, ReduceOp.PRODUCT}
        return self.op in {ReduceOp.MIN, ReduceOp.MAX} or is_exact

    def has_exact_partials(self, dtype: str) -> bool:
        """Tell whether sums of some contributions of this dtype can travel without being rounded.

        Products of 16-bit floats with weights have too many bits for that.
        """
        are_exact = self.op in {ReduceOp.SUM, ReduceOp.MEAN} and self.manner == "exact" and dtype in _EXACT_BYTES
        return are_exact and (self.weights is None or (self.are_weights_short and dtype not in HALVES))

    def partial_dtype(self, dtype: str) -> str:
        """Return the dtype in which a partial fold travels between devices.

        16-bit floats travel as float32, so that they are rounded once, at the root. Partial sums for a MEAN of small
        integers travel in 64 bits, so that they cannot wrap. Others keep their dtype.
        """
        is_wide = dtype in HALVES or (self.op is ReduceOp.MEAN and dtype in INTEGERS)
        return self.accumulator_dtype(dtype) if is_wide else dtype


def exact_bytes(dtype: str, length: int) -> int:
    """Return the bytes of the message in which exact partial sums travel: in whole blocks, with a byte for each.

    >>> exact_bytes("float32", 1000)
    8200
    """
    return -(-length // EXACT_BLOCK) * (EXACT_BLOCK * _EXACT_BYTES[dtype] + 1)


def headroom(num_terms: int) -> int:
    """Return the power of two that divides ``num_terms`` values so that no sum of them overflows.

    >>> headroom(1), headroom(5), headroom(8)
    (1, 8, 8)
    """
    return 1 << (num_terms - 1).bit_length()
