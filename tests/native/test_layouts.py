import numpy as np
import pytest
from hostile_arrays import INPUT_LAYOUTS, LAYOUTS, Hostile
from native_cases import bits, reference

import treefold
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.testing import mixed_values

SHAPE = (3, 5, 67)
DTYPES = ("float16", "bfloat16", "float32", "complex128", "int32", "uint8")
OPS = ("sum", "mean")


def replicas_of(dtype):
    return [mixed_values(r, SHAPE, dtype) for r in range(4)]


def expected_of(values, op, dtype):
    return reference([value.reshape(-1) for value in values], Fold(ReduceOp[op.upper()]), dtype)


class TestAllReduce:
    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("op", OPS)
    def test_takes_arrays_as_they_lie(self, op, dtype, layout):
        hostile = [Hostile(value, layout) for value in replicas_of(dtype)]
        seen = [np.ascontiguousarray(h.array, h.array.dtype.newbyteorder("=")) for h in hostile]
        results = treefold.all_reduce([h.array for h in hostile], op)
        expected = bits(expected_of(seen, op, dtype))
        assert [bits(np.ascontiguousarray(result).reshape(-1)) == expected for result in results] == [True] * 4
        assert not any(h.anything_changed() for h in hostile)

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
    @pytest.mark.parametrize("is_in_place", [True, False], ids=["in place", "beside"])
    def test_writes_out_as_it_lies(self, dtype, layout, is_in_place):
        values = replicas_of(dtype)
        sources = [Hostile(value, layout) for value in values]
        targets = sources if is_in_place else [Hostile(np.zeros(SHAPE, dtype), layout) for _ in values]
        treefold.all_reduce([s.array for s in sources], "mean", out=[t.array for t in targets])
        expected = bits(expected_of(values, "mean", dtype))
        got = [np.ascontiguousarray(t.array, t.array.dtype.newbyteorder("=")).reshape(-1) for t in targets]
        assert [bits(array) == expected for array in got] == [True] * 4
        assert not any(hostile.guards_changed() for hostile in (*sources, *targets))
