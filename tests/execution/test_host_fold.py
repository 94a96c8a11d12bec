import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.execution import native

REDUCE = """
import hashlib, json, sys, warnings
{before}
import numpy as np
import treefold

caught = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rng = np.random.default_rng(0)
    bits = hashlib.sha256()
    for op in ("sum", "mean", "sum", "max"):
        for dtype in ("float32", "float16", "int32", "float64"):
            for length in (1, 1023, 70_001):
                arrays = [(rng.normal(size=length) * 1000).astype(dtype) for _ in range(5)]
                bits.update(treefold.all_reduce(arrays, op)[3].tobytes())
value = treefold.PerReplica([np.zeros(3, "float32")] * 2)
plan = treefold.HierarchicalCopyAllReduce().plan(value, value)
print(json.dumps([bits.hexdigest(), plan.kernel, str(plan), [[w.category.__name__, str(w.message)] for w in caught]]))
"""
#: As on an installation that has no compiled module.
WITHOUT_NATIVE = "sys.modules['treefold._native'] = None"


def run(before):
    """Return what a fresh process reports of its reductions."""
    done = subprocess.run(  # noqa: S603 - our own text
        [sys.executable, "-c", REDUCE.format(before=before)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reports():
    return run(""), run(WITHOUT_NATIVE)


#: `make test-long` runs all tests with each of what proves sums exact.
CERTIFICATE = os.environ.get("TREEFOLD_CERTIFICATE", "flag")


class TestKernel:
    def test_is_native_here(self):
        """The tests run with the native core, on a processor with a flag that works."""
        assert native.kernel() == f"native-{CERTIFICATE}"

    def test_gives_the_same_bits_without_the_native_core(self, reports):
        assert reports[0][0] == reports[1][0]

    def test_is_named_in_the_plan(self, reports):
        assert [report[1] for report in reports] == [f"native-{CERTIFICATE}", "numpy"]
        for report, kernel in zip(reports, ("native kernel, ", "numpy kernel)"), strict=True):
            assert report[2].splitlines()[1].startswith(f"executor:  host ({kernel}")

    def test_warns_once_where_it_is_not_native(self, reports):
        message = (
            "treefold._native is not installed, so reductions run in NumPy: the same results, slower. "
            "Install treefold with a C++17 compiler at hand, or from a wheel."
        )
        assert [report[3] for report in reports] == [[], [["RuntimeWarning", message]]]


class TestHost:
    @pytest.mark.parametrize("num_packs", [0, 1, 3, "auto"])
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    def test_gives_the_same_bits_whatever_the_packing(self, num_replicas, num_packs):
        rng = np.random.default_rng(num_replicas)
        value = PerReplica([(rng.normal(size=1000) * 2.0 ** rng.integers(-9, 9, 1000)) for _ in range(num_replicas)])
        total = np.array([math.fsum(numbers) for numbers in zip(*value.values, strict=True)])
        result = HierarchicalCopyAllReduce(num_packs).reduce("sum", value, value)
        assert result.plan.guarantee == "exact"
        assert {component.tobytes() for component in result} == {total.tobytes()}


class TestMemoryOrder:
    """Arrays of one layout are folded as they lie; others are copied first."""

    @pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
    def test_of_all_arrays_is_kept(self, axes, monkeypatch):
        monkeypatch.setattr("treefold.execution.host_fold._plain", None)
        contents = [np.arange(24.0).reshape(2, 3, 4) * 2**r for r in range(3)]
        value = PerReplica([array.transpose(axes) for array in contents])
        HierarchicalCopyAllReduce().reduce("sum", value, value, out=value)
        assert all(np.array_equal(array, np.arange(24.0).reshape(2, 3, 4) * 7) for array in contents)

    @pytest.mark.parametrize("first", [0, 1, 2])
    def test_may_differ(self, first):
        expected = np.arange(24.0).reshape(4, 6) * 7
        arrays = [np.arange(24.0).reshape(4, 6) * 2**r for r in range(3)]
        arrays[first] = np.asfortranarray(arrays[first])
        value = PerReplica(arrays)
        HierarchicalCopyAllReduce().reduce("sum", value, value, out=value)
        assert all(np.array_equal(array, expected) for array in arrays)
