"""The effect of actions on arrays, beyond the executors' own tests."""

import numpy as np
import pytest

from treefold.backends.numpy import NumpyBackend
from treefold.execution import Operand
from treefold.execution.actions import FlatMemory, leaf_actions
from treefold.fold import Fold
from treefold.plan.ir import Buffer, Combine, Range, Role
from treefold.planners.method import one_array
from treefold.planners.star import star
from treefold.reduce_op import ReduceOp
from treefold.testing import assert_same_bits, mixed_values

COUNT = 3
BACKEND = NumpyBackend()


def leaf_of(held, dtype="float32", op=ReduceOp.MEAN):
    """Return what actions do to the one array of a movement of three replicas, of which this process holds some."""
    movement = star("gpu:0").movement(one_array([f"gpu:{r}" for r in range(COUNT)], 6, dtype))
    arrays = tuple(np.full(6, 2**replica, dtype) for replica in range(held))
    return leaf_actions(movement, [Operand(BACKEND, arrays, (6,))], Fold(op))[0]


class TestCount:
    @pytest.mark.parametrize("held", [0, 1, 3])
    def test_is_that_of_the_plan(self, held):
        """A process may hold some of the contributions only: the mean is that of all."""
        leaf = leaf_of(held)
        fold = Combine((Range(0, 0, 6), Range(1, 0, 6)), Range(2, 0, 6), pack=0, final=True)
        partial, own = np.full(6, 5, "float32"), np.full(6, 2, "float32")
        assert leaf.compute(fold, [partial, own]).tolist() == pytest.approx([7 / 3] * 6)


class TestFoldOnHost:
    @pytest.mark.parametrize("op", ReduceOp)
    @pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
    @pytest.mark.parametrize("is_final", [True, False])
    def test_gives_the_bits_of_the_backend(self, op, dtype, is_final):
        leaf = leaf_of(COUNT, dtype, op)
        action = Combine(tuple(Range(r, 0, 6) for r in range(COUNT)), Range(COUNT, 0, 6), pack=0, final=is_final)
        arrays = [mixed_values(replica, (6,), dtype) for replica in range(COUNT)]
        role = Role.OUTPUT if is_final else Role.PARTIAL
        end = np.zeros(6, leaf.dtype(role))
        buffers = [Buffer(f"in{r}", "gpu:0", 6, Role.INPUT, 0, r) for r in range(COUNT)]
        buffers.append(Buffer("end", "gpu:0", 6, role, 0))
        FlatMemory([leaf], buffers, [*arrays, end], BACKEND.assign).perform(action)
        assert_same_bits(end, leaf.compute(action, arrays))

    @pytest.mark.parametrize("num_parts", [1, 2])
    def test_leaves_a_mean_of_partial_folds_alone(self, num_parts):
        leaf = leaf_of(COUNT)
        action = Combine(tuple(Range(r, 0, 6) for r in range(num_parts)), Range(9, 0, 6), pack=0, final=True)
        end = np.zeros(6, "float32")
        assert not leaf.fold_on_host(action, [np.ones(6, "float32")] * num_parts, end)
        assert not end.any()
