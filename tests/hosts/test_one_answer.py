"""One right answer: the same contributions have one digest, in any order, on any number of ranks and hosts."""

import hashlib
import itertools
import os

import fake_groups
import ml_dtypes  # noqa: F401 - gives NumPy bfloat16
import numpy as np
import pytest

import treefold
from treefold.testing import mixed_values

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
COUNT, LENGTH = 16, 700
ORDERS = 1000 if IS_FULL else 100


def contributions(dtype):
    """Return arrays of finite numbers of every size, in which huge ones cancel and others decide."""
    made = [mixed_values(replica, (LENGTH,), dtype, is_finite=True) for replica in range(COUNT)]
    for replica in range(0, COUNT - 2, 2):
        made[replica][replica::5] = -made[replica + 1][replica::5]
    return made


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_in_any_order(op, dtype):
    """Of one process; and what is folded wide, one after the other, has many."""
    arrays, rng = contributions(dtype), np.random.default_rng(7)
    orders = [rng.permutation(COUNT) for _ in range(ORDERS)]
    found = {digest(treefold.all_reduce([arrays[index] for index in order], op)[0]) for order in orders}
    assert len(found) == 1
    native = treefold.ReductionToOneDevice(accumulate="native")
    values = [treefold.PerReplica([arrays[index] for index in order]) for order in orders[:20]]
    assert len({digest(native.reduce(op, value, "cpu:0")[0]) for value in values}) > 1


@pytest.mark.filterwarnings("ignore:Between hosts travel:RuntimeWarning")
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_on_any_number_of_hosts(op, dtype):
    arrays, rng = contributions(dtype), np.random.default_rng(11)
    found = {digest(treefold.all_reduce(arrays, op)[0])}
    for size in (1, 2, 3, 4, 5):
        order = rng.permutation(COUNT)
        ends = [0, *sorted(rng.choice(np.arange(1, COUNT), size - 1, replace=False).tolist()), COUNT]
        brought = [[arrays[index] for index in order[begin:end]] for begin, end in itertools.pairwise(ends)]

        def call(group, brought=brought):
            return digest(group.all_reduce(treefold.PerReplica(brought[group.rank]), op))

        found |= set(fake_groups.run(size, call)[1])
    assert len(found) == 1
