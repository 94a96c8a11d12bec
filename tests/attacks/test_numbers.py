"""Numbers of every kind against exact fractions: each op, dtype and accumulation, with weights, in both kernels."""

import math

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np
import pytest
from attack import cases, in_shards, replayable
from exact import INTEGERS, PARTS, allowed_complex, allowed_number, is_allowed

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.execution import host_fold, native
from treefold.testing import assert_same_bits, mixed_values, owned, special_values

FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMBERS = (*FLOATS, *INTEGERS, *PARTS)
#: Around the vectors of the kernels; 121 in all, so that the full attack has a million elements.
LENGTHS = (1, 2, 7, 16, 31, 64)
FULL = 50_000
WEIGHTS = (0.0, 0.1, 0.5, 1.0, 3.0, 1e-3, 12345.678)

#: Every op with every dtype that it has a meaning for, with both accumulations, and the mean with weights.
FOLDS = [
    (op, dtype, accumulate, is_weighted)
    for op in ("SUM", "MEAN", "MIN", "MAX", "PRODUCT")
    for dtype in (*NUMBERS, "bool")
    if (op in {"MIN", "MAX"} or dtype != "bool") and not (op in {"MIN", "MAX"} and dtype in PARTS)
    for accumulate in ("exact", "native")
    for is_weighted in ((False, True) if op == "MEAN" else (False,))
]


class Case:
    """One reduction, drawn from its number."""

    def __init__(self, number):
        self.op, self.dtype, self.accumulate, is_weighted = FOLDS[number % len(FOLDS)]
        self.rng = np.random.default_rng(number)
        self.count, self.length = int(self.rng.integers(1, 18)), LENGTHS[number // len(FOLDS) % len(LENGTHS)]
        self.weights = [float(self.rng.choice(WEIGHTS)) for _ in range(self.count)] if is_weighted else None
        if is_weighted and not any(self.weights):
            self.weights[-1] = 1.0
        arrays = self._contributions()
        self.arrays = [arrays[i] for i in self.rng.permutation(self.count)]

    def _contributions(self):
        """Return arrays that name their owner; of all kinds of values; of finite ones; or of three special ones."""
        kind = self.rng.integers(4)
        if kind == 0 and self.dtype != "float16":
            return [owned(replica, (self.length,), self.dtype) for replica in range(self.count)]
        if kind == 3 and self.dtype != "bool":
            specials = special_values(self.dtype)
            chosen = self.rng.choice(specials, min(3, specials.size), replace=False)
            return [self.rng.choice(chosen, self.length) for _ in range(self.count)]
        seed = int(self.rng.integers(2**31))
        is_finite = bool(kind == 1)
        return [mixed_values(seed + r, (self.length,), self.dtype, is_finite=is_finite) for r in range(self.count)]

    def reduced(self):
        """Return the result of the public call, new on some device or in place on all."""
        if self.weights is not None or (self.accumulate == "exact" and self.op != "MEAN" and self.rng.integers(2)):
            return treefold.all_reduce([array.copy() for array in self.arrays], self.op, weights=self.weights)[-1]
        ops = HierarchicalCopyAllReduce(int(self.rng.integers(3)), accumulate=self.accumulate)
        return ops.reduce(self.op, PerReplica(self.arrays), "cpu:0")[0]

    def check(self, got):
        """Fail unless every element is what its contributions allow."""
        columns = zip(*(numbers_of(array) for array in self.arrays), strict=True)
        for element, (column, number) in enumerate(zip(columns, numbers_of(got), strict=True)):
            if self.dtype in PARTS:
                parts = allowed_complex(column, self.op, self.dtype, self.accumulate, self.weights)
                pairs = zip((number.real, number.imag), parts, strict=True)
                is_right = all(is_allowed(part, allowed) for part, allowed in pairs)
            else:
                parts = allowed_number(column, self.op, self.dtype, self.accumulate, self.weights)
                is_right = is_allowed(number, parts)
            assert is_right, (
                f"{self.accumulate} {self.op} of {self.dtype} at {element}: "
                f"got {number!r}, allowed {parts}, weights {self.weights}, contributions {column}"
            )


def numbers_of(array):
    array = np.asarray(array).reshape(-1)
    if array.dtype.name == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value here
            array = array.astype("float64")
    return array.tolist()


class TestNumbers:
    @in_shards
    def test_are_exact_or_as_exact_as_products_are(self, shard, monkeypatch):
        """Every element is the exact result, and of products nearly so; both kernels give its bits."""
        for number in cases(FULL, shard):
            with replayable(number):
                got = Case(number).reduced()
                Case(number).check(got)
                with monkeypatch.context() as without_native:
                    without_native.setattr(native, "HAS_NATIVE", False)
                    without_native.setattr(host_fold, "_warn_without_native", lambda: None)
                    assert_same_bits(Case(number).reduced(), got)


class TestInterval:
    @pytest.mark.parametrize(
        ("numbers", "op", "dtype", "allowed"),
        [
            ([1.0, 2.0, 4.0], "SUM", "float16", (7.0, 7.0)),
            ([1e308, 1e308, -1e308], "SUM", "float64", (1e308, 1e308)),
            ([2.0**127, 2.0**127], "MEAN", "bfloat16", (2.0**127, 2.0**127)),
            ([65504.0, 65504.0], "SUM", "float16", (math.inf, math.inf)),
            ([2.0**-100] * 12 + [2.0**100] * 12, "PRODUCT", "float64", (1 - 2**-48, 1 + 2**-48)),
            ([127, 1], "SUM", "int8", (-128, -128)),
        ],
    )
    def test_is_narrow(self, numbers, op, dtype, allowed):
        low, high = allowed_number(numbers, op, dtype, "exact", None)
        assert allowed[0] <= low <= high <= allowed[1]

    def test_shows_a_lost_replica(self):
        allowed = allowed_number([2.0**r for r in range(8)], "SUM", "float32", "exact", None)
        assert is_allowed(255.0, allowed)
        assert not any(is_allowed(255.0 + sign * 2.0**r, allowed) for r in range(8) for sign in (1, -1))
