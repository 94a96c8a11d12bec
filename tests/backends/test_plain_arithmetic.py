"""NumPy's folds in threads that round otherwise, or flush subnormals: the bits of the default mode."""

import math

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np
import pytest
from floating_modes import MODES, current_mode, thread_mode

from treefold.backends.numpy_exact import exact_fold
from treefold.backends.numpy_fold import add_rows, fold_block, scale_block
from treefold.backends.plain_arithmetic import by_libm, in_plain_arithmetic
from treefold.execution import host_fold
from treefold.execution.host_fold import Job, fold_batch
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import mixed_values

LENGTH, REPLICAS = 600, 5
NAMES = ("float16", "bfloat16", "float32", "float64", "complex64", "int32")
#: 2**-140 and 2**-141 as float32.
TINY, TINIER = np.array([[512], [256]], np.uint32).view(np.float32)


def folded(op, dtype):
    fold = Fold(ReduceOp[op])
    parts = [mixed_values(seed, (LENGTH,), dtype, is_finite=True) for seed in range(REPLICAS)]
    return lambda: fold_block(parts, fold, dtype=dtype, divisor=REPLICAS, result=fold.result_dtype(dtype))


CASES = {f"{op} of {dtype}": folded(op, dtype) for op in ("SUM", "MEAN", "PRODUCT") for dtype in NAMES}
CASES["a scaled block"] = lambda: scale_block(TINY, 2, "float32")
CASES["rows of one index"] = lambda: add_rows(np.array([TINY, TINY]), np.array([0, 0]), (1, 1))
CASES["an exact fold"] = lambda: exact_fold([TINY, TINIER], "float32", weights=None, divisor=2)


def job_of_integers():
    """Return the mean of integers in float32, as JAX has it without x64, by way of float64."""
    ends = [np.empty(1, np.float32)]
    fold_batch(
        [Job("int32", [np.array([2**24], np.int32), np.array([2**24 + 7], np.int32)], ends)], Fold(ReduceOp.MEAN)
    )
    return ends[0]


CASES["a mean of integers in float32"] = job_of_integers


class TestModes:
    @pytest.mark.parametrize("mode", MODES)
    def test_change_no_bit_and_stay(self, mode):
        """Whatever a thread has set holds for the thread, not for its folds."""
        expected = {name: case().tobytes() for name, case in CASES.items()}
        with thread_mode(mode):
            before = current_mode()
            made = {name: case().tobytes() for name, case in CASES.items()}
            after = current_mode()
        assert [name for name in CASES if made[name] != expected[name]] == []
        assert after == before

    @pytest.mark.parametrize("mode", MODES)
    def test_leave_sums_of_the_reference_exact(self, mode, monkeypatch):
        monkeypatch.setattr(host_fold.native, "HAS_NATIVE", False)
        monkeypatch.setattr(host_fold, "_warn_without_native", lambda: None)
        rng = np.random.default_rng(0)
        arrays, sums = [rng.normal(size=LENGTH) for _ in range(REPLICAS)], [np.empty(LENGTH)]
        with thread_mode(mode):
            fold_batch([Job("float64", arrays, sums)], Fold(ReduceOp.SUM))
        assert sums[0].tolist() == [math.fsum(column) for column in zip(*arrays, strict=True)]


class TestWithoutTheCore:
    @pytest.mark.parametrize("mode", MODES)
    def test_the_c_library_sets_the_mode_and_restores_it(self, mode):
        with thread_mode("nearest"):
            plain = current_mode()
        with thread_mode(mode):
            before = current_mode()
            assert by_libm(current_mode) == plain == in_plain_arithmetic(current_mode)()
            with pytest.raises(ZeroDivisionError):
                by_libm(lambda: 1 / 0)
            assert current_mode() == before
