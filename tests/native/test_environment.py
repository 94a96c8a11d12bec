import os
import subprocess
import sys

import pytest
from native_cases import LEVELS

PROGRAM = """
import hashlib, sys
import ml_dtypes, numpy as np, treefold
from treefold.execution import native
from treefold.testing import mixed_values
bits = hashlib.sha256()
try:
    for case in ("sum float32", "mean float64", "max float16", "mean int64", "sum bfloat16"):
        op, dtype = case.split()
        with np.errstate(invalid="ignore"):
            arrays = [mixed_values(r, (70_001,), dtype, is_finite=True) for r in range(5)]
        bits.update(treefold.all_reduce(arrays, op)[2].tobytes())
except ValueError as error:
    sys.exit(str(error))
print(bits.hexdigest(), native.vector_levels()[native.level()], native.num_threads())
"""
THREADS = (
    "TREEFOLD_NUM_THREADS is {} in the environment. It takes a whole number, 1 or more; unset it for the default.\n"
)
CACHE = (
    "TREEFOLD_HOST_CACHE_BYTES is {} in the environment. "
    "It takes a whole number, 0 or more; unset it for the default.\n"
)


def run(**environment):
    """Return the words that a process with these variables prints, or its error."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    return done.stdout.split() if done.returncode == 0 else done.stderr


class TestVectorLevel:
    @pytest.mark.parametrize("level", LEVELS)
    def test_never_changes_bits(self, level):
        assert run(TREEFOLD_VECTOR_LEVEL=level)[:2] == [run()[0], level]

    @pytest.mark.parametrize("wrong", ["wrong", "", "AVX2", "0"])
    def test_is_one_of_the_machine(self, wrong):
        assert run(TREEFOLD_VECTOR_LEVEL=wrong) == (
            f"TREEFOLD_VECTOR_LEVEL is {wrong!r} in the environment. "
            f"It takes one of {', '.join(LEVELS)} on this machine; unset it for the default.\n"
        )


class TestNumThreads:
    @pytest.mark.parametrize("count", [1, 2, 5, 8])
    def test_is_taken_from_the_environment(self, count):
        assert run(TREEFOLD_NUM_THREADS=str(count)) == [*run()[:2], str(count)]

    @pytest.mark.parametrize("wrong", ["abc", "0", "", "-1", "2.5", " 2", "٣", "0" * 50])
    def test_is_a_whole_number_above_0(self, wrong):
        assert run(TREEFOLD_NUM_THREADS=wrong) == THREADS.format(repr(wrong))

    def test_may_be_more_than_there_are(self):
        assert run(TREEFOLD_NUM_THREADS=str(10**30))[2] == "1024"
        assert run(TREEFOLD_NUM_THREADS="9" * 5000)[2] == "1024"
        assert run(TREEFOLD_NUM_THREADS="0" * 5000 + "3")[2] == "3"


class TestHostCacheBytes:
    @pytest.mark.parametrize("wrong", ["1GiB", "", "-1", "1e9"])
    def test_is_a_whole_number(self, wrong):
        assert run(TREEFOLD_HOST_CACHE_BYTES=wrong) == CACHE.format(repr(wrong))

    @pytest.mark.parametrize("limit", [0, 1, 10**9, 10**30])
    def test_does_not_change_bits(self, limit):
        assert run(TREEFOLD_HOST_CACHE_BYTES=str(limit)) == run()
