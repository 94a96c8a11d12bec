import numpy as np
import pytest

from treefold import CommunicationOptions, HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.errors import ArgumentError, OutputError


def arrays(count, length=6):
    """Return one array per replica; replica r holds 2**r."""
    return [np.full(length, 2.0**r) for r in range(count)]


@pytest.fixture
def ops():
    """Return ops that have reduced three such replicas before, into new arrays and in place."""
    made = HierarchicalCopyAllReduce()
    for _ in range(2):
        value = PerReplica(arrays(3))
        made.reduce("sum", value, value)
        made.reduce("sum", value, value, out=value)
    return made


class TestRepeatedCalls:
    """The second call of its kind skips the validation that cannot turn out differently, and nothing else."""

    def test_give_the_same_results_and_plan(self, ops):
        value = PerReplica(arrays(3))
        first = HierarchicalCopyAllReduce().reduce("sum", value, value)
        again = ops.reduce("sum", value, value)
        assert again.plan == first.plan
        assert again.devices == first.devices
        assert all(np.array_equal(component, np.full(6, 7.0)) for component in again)
        assert not any(np.shares_memory(component, array) for component in again for array in value)

    def test_refuse_what_out_lacks(self, ops):
        value, out = PerReplica(arrays(3)), PerReplica(arrays(3))
        ops.batch_reduce("sum", [(value, value), (value, value)])
        for given in ([out, None], [None, out], [None, None]):
            with pytest.raises(OutputError, match=r"^out.* is None\."):
                ops.batch_reduce("sum", [(value, value), (value, value)], out=given)
        assert all(np.array_equal(array, fresh) for array, fresh in zip(out, arrays(3), strict=True))

    @pytest.mark.parametrize("op", [[], {}, None, b"sum"])
    def test_refuse_what_is_no_op(self, ops, op):
        value = PerReplica(arrays(3))
        ops.reduce("sum", value, value)
        with pytest.raises(ArgumentError, match=r"^The reduce op is "):
            ops.reduce(op, value, value)
        with pytest.raises(ArgumentError, match=r"^The reduce op is "):
            ops.batch_reduce(op, [(value, value)])

    def test_see_what_is_given(self, ops):
        """Memory that overlaps, cannot be written or is a value's own is seen every time, and nothing is written."""
        value = PerReplica(arrays(3))
        ops.reduce("sum", value, value, out=PerReplica([np.zeros(6) for _ in range(3)]))
        shared = np.zeros(9)
        locked = np.zeros(6)
        locked.flags.writeable = False
        for out, words in (
            (PerReplica([shared[:6], shared[3:], np.zeros(6)]), "overlaps"),
            (PerReplica([np.zeros(6), np.zeros(6), locked]), "cannot be written"),
            (PerReplica([np.zeros(6), np.zeros(6), np.zeros(6, "float32")]), "float32"),
            (PerReplica([np.zeros(6), np.zeros(6)]), "2 components"),
        ):
            with pytest.raises(ValueError, match=words):
                ops.reduce("sum", value, value, out=out)
            assert all((array <= 0).all() for array in out)
        own = PerReplica([np.zeros(6), value[1], np.zeros(6)])
        ops.reduce("sum", value, value, out=own)
        assert [array[0] for array in value] == [1, 7, 4]

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "int8"])
    def test_in_place_is_another_kind_of_call(self, dtype):
        """Means of integers are floats: that they went well into new arrays says nothing of the integers themselves."""
        ops, value = ReductionToOneDevice(), PerReplica([np.full(4, r, dtype) for r in range(3)])
        ops.reduce("mean", value, value)
        with pytest.raises(ValueError, match="it needs a writable NumPy array of float"):
            ops.reduce("mean", value, value, out=value)
        assert [int(array[0]) for array in value] == [0, 1, 2]

    @pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
    def test_keep_ops_apart(self, ops, op):
        expected = {"sum": 7, "mean": 7 / 3, "min": 1, "max": 4, "product": 8}[op]
        for _ in range(2):
            assert (ops.reduce(op, PerReplica(arrays(3)), "cpu:0")[0] == expected).all()

    def test_keep_destinations_apart(self, ops):
        value = PerReplica(arrays(3))
        for destinations in ("cpu:5", ("cpu:1", "cpu:7"), "cpu:5", ["cpu:1"], value, np.zeros(2)) * 2:
            devices = ops.reduce("sum", value, destinations).devices
            expected = {str: ("cpu:5",), tuple: ("cpu:1", "cpu:7"), list: ("cpu:1",), np.ndarray: ("cpu:0",)}
            assert devices == expected.get(type(destinations), value.devices)

    @pytest.mark.parametrize("layout", [lambda a: np.repeat(a, 2)[::2], lambda a: a[::-1], lambda a: a.astype(">f8")])
    def test_take_any_layout(self, ops, layout):
        value = PerReplica([layout(array) for array in arrays(3)])
        assert (ops.reduce("sum", value, value)[1] == 7).all()
        ops.reduce("sum", value, value, out=value)
        assert all((array == 7).all() for array in value)

    def test_look_at_options(self, ops):
        for _ in range(2):
            with pytest.raises(ValueError, match="timeout_seconds=1 cannot be honoured"):
                ops.reduce("sum", PerReplica(arrays(3)), "cpu:0", CommunicationOptions(timeout_seconds=1))

    def test_weights_and_callbacks_take_the_slow_path(self):
        calls = []
        ops = ReductionToOneDevice(accumulation_fn=lambda parts: calls.append(len(parts)) or parts[0])
        for _ in range(3):
            ops.reduce("sum", PerReplica(arrays(2)), "cpu:0")
        assert calls == [2, 2, 2]
        plain = ReductionToOneDevice()
        for weights, expected in (([1, 0], 1), ([0, 1], 2), ([1, 1], 1.5)):
            assert plain.reduce("mean", PerReplica(arrays(2)), "cpu:0", weights=weights)[0][0] == expected
