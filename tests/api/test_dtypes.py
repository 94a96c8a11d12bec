import ml_dtypes
import numpy as np
import pytest

from treefold import dtypes
from treefold.dtypes import DTYPES
from treefold.execution import native


def kind_of(dtype):
    if dtype.itemsize == 1 and dtype.kind not in "iub":
        return "travels"
    return {"i": "signed", "u": "unsigned", "b": "flag", "c": "complex"}.get(dtype.kind, "float")


class TestTable:
    @pytest.mark.parametrize("name", DTYPES)
    def test_agrees_with_numpy(self, name):
        dtype = dtypes.numpy_dtype(name)
        assert dtype == np.dtype(getattr(ml_dtypes, name, name))
        assert (dtype.name, 8 * dtype.itemsize, dtype.isbuiltin == 1) == (
            name,
            DTYPES[name].bits,
            DTYPES[name].is_numpys,
        )
        assert DTYPES[name].kind == kind_of(dtype)

    def test_has_the_numbers_of_the_native_core(self):
        if native.HAS_NATIVE:
            assert {name: number for number, name in enumerate(dtypes.FOLDABLE)} == native.DTYPES
        assert tuple(DTYPES)[: len(dtypes.FOLDABLE)] == dtypes.FOLDABLE

    @pytest.mark.parametrize("name", dtypes.REDUCIBLE)
    def test_accumulators_hold_what_they_add(self, name):
        accumulator, mean = DTYPES[DTYPES[name].accumulator], DTYPES[DTYPES[name].mean]
        assert accumulator.kind == DTYPES[name].kind
        assert accumulator.bits >= DTYPES[name].bits
        assert mean.name == name or (name in dtypes.INTEGERS and mean.kind == "float")

    def test_gives_the_groups(self):
        assert dtypes.HALVES == ("float16", "bfloat16")
        assert dtypes.WIDE_INTEGERS == ("int64", "uint64")
        assert dtypes.REAL == {"complex64": "float32", "complex128": "float64"}
        assert len(dtypes.TRAVELLING) == 5
