import math
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from treefold import (
    AllReduceCrossDeviceOps,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReduceOp,
    ReductionToOneDevice,
)
from treefold.backends import additional_backend
from treefold.dtypes import COMPLEX, REDUCIBLE
from treefold.errors import ArgumentError, OutputError
from treefold.testing import FakeBackend, FakeOutOfMemoryError, RecordingBackend, owned, owned_sum

OPS = (
    ReductionToOneDevice(),
    ReductionToOneDevice(reduce_to_device="gpu:1"),
    HierarchicalCopyAllReduce(),
    HierarchicalCopyAllReduce("auto"),
    AllReduceCrossDeviceOps("hierarchical_copy", num_packs=0),
    AllReduceCrossDeviceOps("nccl", num_packs=3),
    HierarchicalCopyAllReduce(accumulate="native"),
)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = pytest.mark.filterwarnings("ignore:NCCL is not used")


@pytest.fixture
def fake():
    with additional_backend(FakeBackend(9)) as backend:
        yield backend


def placed(fake, arrays):
    return PerReplica([fake.array(array, fake.devices[r]) for r, array in enumerate(arrays)])


def on_host(ops, op, arrays):
    """Return what the host executor makes of the same arrays with an all-reduce of the same accumulation."""
    value = PerReplica(arrays)
    return HierarchicalCopyAllReduce(accumulate=ops._accumulate).reduce(op, value, value)[0]


def random_float32(num_replicas, length=500):
    """Return values over many magnitudes, so that every other association of a sum gives other bits."""
    rng = np.random.default_rng(num_replicas)
    scale = 2.0 ** rng.integers(-9, 9, (num_replicas, length))
    return list((rng.normal(size=scale.shape) * scale).astype("float32"))


class TestResults:
    @pytest.mark.parametrize("ops", OPS, ids=repr)
    @pytest.mark.parametrize("num_replicas", [2, 3, 5, 8])
    def test_are_those_of_the_host_where_values_are_exact(self, fake, num_replicas, ops):
        is_native = ops is OPS[-1]  # where every addition rounds, so 16 bits do not hold these values
        for dtype in (*REDUCIBLE[2 if is_native else 0 :], "bool"):
            for op in ReduceOp:
                if (dtype in COMPLEX or dtype == "bool") and (op in {ReduceOp.MIN, ReduceOp.MAX}) == (dtype in COMPLEX):
                    continue
                factor = num_replicas if op is ReduceOp.MEAN and dtype != "bool" else 1
                arrays = [owned(r, (2, 5), dtype) * np.array(factor, dtype) for r in range(num_replicas)]
                value = placed(fake, arrays)
                expected = on_host(ops, op, arrays)
                for component in ops.reduce(op, value, value):
                    np.testing.assert_array_equal(component.data, expected, err_msg=f"{op} {dtype}", strict=True)

    @pytest.mark.parametrize("ops", OPS, ids=repr)
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    def test_are_the_same_bits_on_every_destination_and_run(self, fake, num_replicas, ops):
        value = placed(fake, random_float32(num_replicas))
        destinations = fake.devices[max(1, num_replicas - 1) :: -1]
        runs = [ops.reduce("mean", value, d) for d in (value, value, value, value)] + [
            ops.reduce("mean", value, list(destinations)) for _ in range(2)
        ]
        assert {component.data.tobytes() for component in runs[0]} == {runs[1][0].data.tobytes()}
        assert len({component.data.tobytes() for run in runs[:4] for component in run}) == 1
        assert len({component.data.tobytes() for run in runs[4:] for component in run}) == 1

    @pytest.mark.parametrize("ops", OPS[:6], ids=repr)
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    def test_keep_what_the_plan_guarantees(self, fake, num_replicas, ops):
        """'replica_order' gives the host's bits; 'per_plan' is said only where they may differ, and then they do."""
        arrays = random_float32(num_replicas)
        result = ops.reduce("mean", placed(fake, arrays), fake.devices[:num_replicas])
        is_the_same = result[0].data.tobytes() == on_host(ops, "mean", arrays).tobytes()
        assert (result.plan.guarantee == "replica_order") == is_the_same
        has_two_levels = num_replicas > 2 and "hier" in repr(ops).lower()
        assert result.plan.guarantee == ("per_plan" if has_two_levels else "replica_order")

    def test_never_alias_inputs_or_each_other(self, fake):
        value = placed(fake, [owned(0, (4,))])
        made = [
            ReductionToOneDevice().reduce("sum", value, "gpu:0"),
            ReductionToOneDevice().broadcast(value[0], ["gpu:0", "gpu:0"]),
            ReductionToOneDevice().gather(value, ["gpu:0", "gpu:0"], 0),
            ReductionToOneDevice(accumulation_fn=lambda arrays: arrays[0]).reduce("sum", value, "gpu:0"),
        ]
        arrays = [value[0].data, *(array.data for result in made for array in result)]
        pairs = [(i, k) for i in range(len(arrays)) for k in range(i)]
        assert [pair for pair in pairs if np.shares_memory(arrays[pair[0]], arrays[pair[1]])] == []

    def test_of_leaves_without_elements(self, fake):
        value = PerReplica(
            [{"a": fake.array(np.zeros((0, 2), "int8"), d), "b": fake.array(owned(r, (1,)), d)}
             for r, d in enumerate(fake.devices[:3])]
        )  # fmt: skip
        for weights in (None, (1, 2, 1)):
            for ops in OPS[2:4]:
                for component in ops.reduce("mean", value, value, weights=weights):
                    assert (component["a"].shape, component["a"].dtype.name) == ((0, 2), "float32")
                    np.testing.assert_allclose(component["b"].data, [9 / 4] if weights else [7 / 3], rtol=1e-6)


class TestPartialSums:
    @pytest.mark.parametrize(("dtype", "large"), [("float16", 2048), ("bfloat16", 256)])
    def test_of_16_bit_floats_travel_as_float32(self, fake, dtype, large):
        """They are rounded once, at the root: large + 1 + 1 + 0 is not rounded after its first half."""
        arrays = [np.array([value], dtype) for value in (large, 1, 1, 0)]
        result = HierarchicalCopyAllReduce().reduce("sum", placed(fake, arrays), fake.devices[:4])
        assert [component.data.item() for component in result] == [large + 2] * 4
        assert [(combine.dtypes, combine.result) for combine in fake.combines] == [
            ((dtype,) * 2, "float32"),
            ((dtype,) * 2, "float32"),
            (("float32",) * 2, dtype),
        ]
        across = [hop for hop in fake.hops if (hop.source, hop.target) == ("gpu:2", "gpu:0")]
        assert [hop.nbytes for hop in across] == [4]

    def test_of_native_accumulation_stay_in_their_dtype(self, fake):
        arrays = [np.array([value], "float16") for value in (2048, 1, 1, 0)]
        ops = HierarchicalCopyAllReduce(accumulate="native")
        assert ops.reduce("sum", placed(fake, arrays), "gpu:0")[0].data.item() == 2048
        ops.reduce("sum", placed(fake, arrays), fake.devices[:4])
        assert {combine.result for combine in fake.combines} == {"float16"}

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
    def test_of_an_integer_mean_do_not_wrap(self, fake, dtype):
        largest = np.iinfo(dtype).max
        value = placed(fake, [np.array([largest, 0], dtype)] * 8)
        for component in HierarchicalCopyAllReduce().reduce("mean", value, value):
            assert component.data.tolist() == [largest, 0]
        assert {combine.result for combine in fake.combines[:2]} <= {"int64", "uint64"}

    @pytest.mark.parametrize("dtype", ["int64", "uint64"])
    def test_of_a_64_bit_mean_do_not_travel(self, fake, dtype):
        """No 64 bits hold them, so all contributions meet on one device."""
        ends = [np.iinfo(dtype).max, np.iinfo(dtype).max - 1, np.iinfo(dtype).max, np.iinfo(dtype).min, 5]
        value = placed(fake, [np.array([end], dtype) for end in ends])
        result = HierarchicalCopyAllReduce().reduce("mean", value, value)
        assert {component.data.item() for component in result} == {sum(ends) / 5}
        assert [(len(combine.dtypes), combine.result) for combine in fake.combines] == [(5, "float64")]

    def test_of_a_sum_of_small_integers_wrap_as_the_dtype_does(self, fake):
        value = placed(fake, [np.array([100 + r], "int8") for r in range(5)])
        expected = (sum(range(100, 105)) + 128) % 256 - 128
        assert {c.data.item() for c in HierarchicalCopyAllReduce().reduce("sum", value, value)} == {expected}

    @pytest.mark.parametrize("dtype", ["float64", "complex128"])
    def test_of_a_float64_mean_are_not_taken_for_contributions(self, fake, dtype):
        """A mean lies between the contributions, which partial sums do not bound."""
        value = placed(fake, [np.array([2.0**r], dtype) for r in range(3)])
        assert {c.data.item() for c in HierarchicalCopyAllReduce().reduce("mean", value, value)} == {7 / 3}

    def test_of_weights_do_not_travel(self, fake):
        """Σwᵢxᵢ/Σwᵢ needs all contributions at once."""
        value = placed(fake, [np.array([2.0**r]) for r in range(4)])
        result = HierarchicalCopyAllReduce().reduce("mean", value, value, weights=[4, 2, 1, 0.5])
        assert {component.data.item() for component in result} == {16 / 7.5}
        assert [len(combine.dtypes) for combine in fake.combines] == [4]


class TestCopies:
    @pytest.mark.parametrize("ops", OPS, ids=repr)
    @pytest.mark.parametrize("num_replicas", range(1, 10))
    def test_are_the_hops_of_the_plan(self, fake, num_replicas, ops):
        shapes = ((3, 4), (), (7,))
        devices = fake.devices[:num_replicas]
        value = PerReplica([[fake.array(owned(r, s), d) for s in shapes] for r, d in enumerate(devices)])
        plan = ops.reduce("sum", value, value).plan
        done = Counter((copy.source, copy.target, copy.nbytes) for copy in fake.hops)
        assert done == Counter((hop.source, hop.target, hop.nbytes) for hop in plan.hops)
        assert len(fake.hops) == len(plan.hops)

    def test_are_those_of_the_plan_without_any_numbers(self):
        """A backend that computes nothing shows what 64 GiB would cost: every device sends and receives the same."""
        with additional_backend(RecordingBackend(4)) as recording:
            value = PerReplica([recording.empty((2**32,), "float32", device) for device in recording.devices])
            plan = HierarchicalCopyAllReduce("auto").reduce("mean", value, value, out=value).plan
        assert [copy.nbytes for copy in recording.hops] == [2**32] * 24
        assert Counter(copy.source for copy in recording.hops) == dict.fromkeys(recording.devices, 6)
        assert len(plan.hops) == 24


class TestOut:
    @pytest.mark.parametrize("ops", OPS[:6], ids=repr)
    def test_takes_the_results_in_place(self, fake, ops):
        value = placed(fake, [owned(r, (2, 3)) for r in range(5)])
        result = ops.reduce("sum", value, value, out=value)
        assert all(component is array for component, array in zip(result, value, strict=True))
        for component in result:
            np.testing.assert_array_equal(component.data, owned_sum(5, (2, 3)))

    @pytest.mark.parametrize("ops", OPS[:6], ids=repr)
    def test_is_untouched_when_a_copy_fails(self, ops):
        copies = math.inf
        number = 1
        while number <= copies:
            with additional_backend(FakeBackend(5)) as fake:
                values = [placed(fake, [owned(r, (4,)) + k for r in range(5)]) for k in range(2)]
                outs = [placed(fake, [np.full(4, -1, "float32")] * 5), values[1]]
                if number == 1:
                    ops.batch_reduce("sum", [(value, value) for value in values])
                    copies, fake.copies[:] = len(fake.copies), []
                fake.fail_at_copy = number
                with pytest.raises(FakeOutOfMemoryError, match=r"^gpu:\d$"):
                    ops.batch_reduce("sum", [(value, value) for value in values], out=outs)
            assert [array.data.tolist() for array in outs[0]] == [[-1] * 4] * 5
            for k, value in enumerate(values):
                for r, array in enumerate(value):
                    np.testing.assert_array_equal(array.data, owned(r, (4,)) + k)
            number += 1
        assert copies > 8

    def test_that_cannot_be_written_is_refused(self):
        with additional_backend(FakeBackend(2, is_mutable=False)) as fake:
            value = placed(fake, [owned(r, (4,)) for r in range(2)])
            with pytest.raises(OutputError, match=r"an array that cannot be written"):
                ReductionToOneDevice().reduce("sum", value, value, out=value)
            assert ReductionToOneDevice().reduce("sum", value, value)[1].data.tolist() == [3, 6, 9, 12]
        assert len(fake.hops) == 2


class TestAccumulationFn:
    def test_is_called_once_per_leaf_with_all_arrays_on_one_device(self, fake):
        calls = []

        def largest(arrays):
            calls.append([(array.device, array.shape, array.data.flat[0]) for array in arrays])
            return fake.array(np.max([array.data for array in arrays], axis=0), "gpu:2")

        shapes = ((2, 2), (3,))
        value = PerReplica([[fake.array(owned(r, s), d) for s in shapes] for r, d in enumerate(fake.devices[:3])])
        result = ReductionToOneDevice("gpu:2", accumulation_fn=largest).reduce("mean", value, value)
        assert calls == [[("gpu:2", shape, 2**r) for r in range(3)] for shape in ((2, 2), (3,))]
        assert result.plan.guarantee == "replica_order"
        for component, device in zip(result, fake.devices, strict=False):
            assert {array.device for array in component} == {device}
            np.testing.assert_allclose(component[0].data, owned(2, (2, 2)) / 3, rtol=1e-7)

    def test_may_write_into_what_it_is_given(self, fake):
        def add_up(arrays):
            for array in arrays[1:]:
                arrays[0].data += array.data
            return arrays[0]

        value = placed(fake, [owned(r, (4,)) for r in range(3)])
        result = ReductionToOneDevice(accumulation_fn=add_up).reduce("sum", value, value)
        assert [array.data.tolist() for array in result] == [owned_sum(3, (4,)).tolist()] * 3
        assert [array.data.tolist() for array in value] == [owned(r, (4,)).tolist() for r in range(3)]

    def test_may_return_an_array_that_lies_elsewhere(self, fake):
        kept = fake.array(owned(5, (4,)), "gpu:8")
        value = placed(fake, [owned(r, (4,)) for r in range(2)])
        result = ReductionToOneDevice(accumulation_fn=lambda _: kept).reduce("sum", value, "gpu:1")
        assert (result[0].device, result[0].data.tolist()) == ("gpu:1", kept.data.tolist())
        assert not np.shares_memory(result[0].data, kept.data)

    @pytest.mark.parametrize("returned", [None, np.zeros(4, "float32"), "shape", "dtype"])
    def test_must_return_one_array_like_its_inputs(self, fake, returned):
        made = {"shape": fake.array(np.zeros((2, 2), "float32"), "gpu:0"), "dtype": fake.array(np.zeros(4), "gpu:0")}
        result = made[returned] if isinstance(returned, str) else returned
        value, out = (placed(fake, [owned(r + k, (4,)) for r in range(2)]) for k in (0, 5))
        with pytest.raises(ArgumentError, match=r"accumulation_fn"):
            ReductionToOneDevice(accumulation_fn=lambda _: result).reduce("sum", value, value, out=out)
        assert [array.data.tolist() for array in out] == [owned(r, (4,)).tolist() for r in (5, 6)]


class TestOtherCollectives:
    @pytest.mark.parametrize("ops", [ReductionToOneDevice(), HierarchicalCopyAllReduce(), NcclAllReduce()], ids=repr)
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_sparse_rows_are_laid_behind_each_other(self, fake, ops, op):
        rows = [
            IndexedSlices(fake.array(owned(r, (r, 2)), d), fake.array(np.arange(r), d), (4, 2))
            for r, d in enumerate(fake.devices[:4])
        ]
        value = PerReplica(rows)
        expected = np.concatenate([owned(r, (r, 2)) for r in range(4)]) / (4 if op == "mean" else 1)
        for component, device in zip(ops.reduce(op, value, value), fake.devices, strict=False):
            assert (component.values.device, component.indices.device) == (device, device)
            np.testing.assert_array_equal(component.values.data, expected.astype("float32"), strict=True)
            assert component.indices.data.tolist() == [0, 0, 1, 0, 1, 2]
            assert component.dense_shape == (4, 2)

    def test_sparse_beside_dense_is_made_dense(self, fake):
        ones, indices = (fake.array(a, "gpu:0") for a in (np.ones((3, 2), "float32"), np.array([1, 3, 1])))
        value = PerReplica([IndexedSlices(ones, indices, (4, 2)), fake.array(owned(3, (4, 2)), "gpu:1")])
        for component in HierarchicalCopyAllReduce().reduce("sum", value, value):
            np.testing.assert_array_equal(component.data, np.add(owned(3, (4, 2)), [[0], [2], [0], [1]]))

    @pytest.mark.parametrize("axis", [0, 1, 2, -1])
    def test_gather_joins_along_any_axis(self, fake, axis):
        parts = [owned(r, tuple(r if a == axis % 3 else 2 for a in range(3)), "int32") for r in range(4)]
        result = HierarchicalCopyAllReduce().gather(placed(fake, parts), ["gpu:5", "gpu:0"], axis)
        for component, device in zip(result, ("gpu:5", "gpu:0"), strict=True):
            assert component.device == device
            np.testing.assert_array_equal(component.data, np.concatenate(parts, axis), strict=True)

    def test_broadcast_copies_structures_to_every_destination(self, fake):
        flag, empty = (fake.array(array, "gpu:1") for array in (np.array([True, False]), np.zeros((0, 3))))
        tree = {"flag": flag, "none": None, "w": empty}
        result = ReductionToOneDevice().broadcast(tree, ["gpu:0", "gpu:1", "gpu:1"])
        for component, device in zip(result, ("gpu:0", "gpu:1", "gpu:1"), strict=True):
            assert (component["flag"].data.tolist(), component["flag"].device) == ([True, False], device)
            assert (component["w"].shape, component["w"].device, component["none"]) == ((0, 3), device, None)
            assert component["flag"] is not flag
