import re

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice, all_reduce
from treefold.backends import additional_backend
from treefold.errors import OutputError
from treefold.testing import FakeBackend, owned

OPS = ReductionToOneDevice()
REFUSAL = (
    "Component 0 of out has an array whose elements share memory. "
    "To take the result it needs a writable NumPy array of float32 {}. "
    "Nothing was written."
)


def memory(length=64):
    return np.arange(length, dtype=np.float32)


def broadcast():
    """Return one element in the place of three, which NumPy only warns about before it is written."""
    return np.lib.stride_tricks.as_strided(memory(), (3,), (0,))


OVERLAPPING = {
    "rows that begin in one another": lambda: as_strided(memory(), (5, 4), (4, 4)),
    "one element for all": broadcast,
    "one row for all": lambda: as_strided(memory(), (3, 4), (0, 4)),
    "windows": lambda: sliding_window_view(memory(), 3, writeable=True),
    "elements that begin in one another": lambda: as_strided(memory(), (6,), (2,)),
    "rows backwards": lambda: as_strided(memory()[20:], (3, 4), (-12, 4)),
    "two axes that meet": lambda: as_strided(memory(), (4, 3), (8, 12)),
}
APART = {
    "transposed": lambda: memory(20).reshape(5, 4).T,
    "every other": lambda: memory(24)[::2],
    "backwards": lambda: memory(20)[::-1],
    "a block": lambda: memory(60).reshape(5, 4, 3)[1:4, ::2, ::-1],
    "permuted": lambda: memory(60).reshape(5, 4, 3).transpose(1, 2, 0),
    "a diagonal": lambda: as_strided(memory(25), (5,), (24,)),
    "two axes that never meet": lambda: as_strided(memory(), (2, 2), (8, 12)),
    "one of each": lambda: as_strided(memory(), (1, 3, 1), (0, 4, 4)),
    "nothing": lambda: as_strided(memory(), (3, 0), (0, 4)),
    "a scalar": lambda: np.array(3.0, np.float32),
}


class TestOut:
    @pytest.mark.parametrize("make", OVERLAPPING.values(), ids=OVERLAPPING)
    @pytest.mark.parametrize("ops", [HierarchicalCopyAllReduce(), OPS], ids=str)
    def test_whose_elements_share_memory_is_refused(self, make, ops):
        out = make()
        before = out.copy()
        with pytest.raises(OutputError, match=f"^{re.escape(REFUSAL.format(out.shape))}$"):
            ops.reduce("sum", PerReplica([owned(r, out.shape) for r in range(3)]), "cpu:0", out=out)
        assert np.array_equal(out, before)

    @pytest.mark.parametrize("make", APART.values(), ids=APART)
    def test_whose_elements_lie_apart_takes_the_result(self, make):
        out = make()
        value = PerReplica([owned(r, out.shape) for r in range(3)])
        expected = OPS.reduce("sum", value, "cpu:0")[0]
        assert OPS.reduce("sum", value, "cpu:0", out=out)[0] is out
        assert np.array_equal(out, expected)

    def test_is_looked_at_on_every_call(self):
        shape = (5, 4)
        value, other = (PerReplica([owned(r, shape) for r in range(2)]) for _ in range(2))
        wrong = PerReplica([np.zeros(shape, np.float32), as_strided(memory(), shape, (4, 4))])
        with pytest.raises(OutputError, match=r"^Replica 1 has an array whose elements share memory\."):
            all_reduce(wrong, out=wrong)
        for _ in range(2):
            OPS.reduce("sum", value, value, out=other)
            with pytest.raises(OutputError, match=r"^Component 1 of out has an array whose elements share memory\."):
                OPS.reduce("sum", value, value, out=wrong)
            with pytest.raises(OutputError, match=r"^Component 1 of out has an array whose elements share memory\."):
                OPS.batch_reduce("sum", [(value, value), (value, value)], out=[other, wrong])

    def test_on_a_device_is_refused_as_well(self):
        with additional_backend(FakeBackend(2)) as fake:
            value = PerReplica([fake.array(owned(r, (3,)), device) for r, device in enumerate(fake.devices)])
            out = fake.array(np.zeros(3, np.float32), "gpu:0")
            out.data = broadcast()
            with pytest.raises(OutputError, match=r"^Component 0 of out has an array whose elements share memory\."):
                OPS.reduce("sum", value, "gpu:0", out=out)

    def test_on_a_device_may_not_share_memory_with_another_component(self):
        with additional_backend(FakeBackend(1)) as fake:
            value = PerReplica([fake.array(owned(r, (4,)), "gpu:0") for r in range(2)])
            both = memory()
            out = [fake.array(np.zeros(4, np.float32), "gpu:0") for _ in range(2)]
            out[0].data, out[1].data = both[:4], both[2:6]
            with pytest.raises(OutputError, match=r"^Component 1 of out overlaps component 0's array\."):
                OPS.reduce("sum", value, ["gpu:0", "gpu:0"], out=PerReplica(out))
            np.testing.assert_array_equal(both, memory())

    def test_on_a_device_may_not_share_memory_with_part_of_a_contribution(self):
        with additional_backend(FakeBackend(1)) as fake:
            value = PerReplica([fake.array(owned(r, (4,)), "gpu:0") for r in range(2)])
            out, both = fake.array(np.zeros(4, np.float32), "gpu:0"), memory()
            value[1].data, out.data = both[:4], both[2:6]
            with pytest.raises(OutputError, match=r"^Component 0 of out overlaps replica 1's array\."):
                OPS.reduce("sum", value, "gpu:0", out=out)
            np.testing.assert_array_equal(both, memory())


class TestTurned:
    @pytest.mark.parametrize("turn", [lambda square: (square, square.T), lambda square: (square.T, square)])
    def test_memory_of_a_contribution_is_refused(self, turn):
        """Its elements lie where those of the contribution lie, and in another order: they would be read too late."""
        value, out = turn(memory(16).reshape(4, 4))
        before = value.copy()
        with pytest.raises(OutputError):
            OPS.reduce("sum", PerReplica([value, np.ones((4, 4), np.float32)]), "cpu:0", out=out)
        np.testing.assert_array_equal(value, before)
