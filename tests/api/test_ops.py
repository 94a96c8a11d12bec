import threading
import warnings

import numpy as np
import pytest

import treefold
from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReduceOp,
    ReductionToOneDevice,
)
from treefold.errors import OutputError

OPS = {
    "one device": ReductionToOneDevice,
    "hierarchical": HierarchicalCopyAllReduce,
    "nccl": NcclAllReduce,
    "all-reduce": AllReduceCrossDeviceOps,
}


def owned(count, shape=(5,), dtype=np.float32):
    """Return one array per replica; replica r brings 2**r times a position-dependent value."""
    positions = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    return PerReplica([(2**r * positions).astype(dtype) for r in range(count)])


@pytest.fixture(params=OPS.values(), ids=OPS.keys())
def ops(request):
    return request.param()


class TestReduce:
    @pytest.mark.parametrize("count", range(1, 10))
    def test_adds_every_replica_exactly_once(self, ops, count):
        value = owned(count)
        total = ops.reduce(ReduceOp.SUM, value, value)
        assert len(total) == count
        for component in total:
            assert np.array_equal(component, (2**count - 1) * np.arange(1, 6))

    @pytest.mark.parametrize(
        ("op", "expected"), [("sum", 7), ("mean", 7 / 3), ("min", 1), ("max", 4), ("product", 8), (ReduceOp.MAX, 4)]
    )
    def test_takes_every_op(self, ops, op, expected):
        assert ops.reduce(op, PerReplica([1.0, 2.0, 4.0]), "cpu:0")[0] == expected

    @pytest.mark.parametrize(
        ("destinations", "devices"),
        [
            ("cpu:2", ("cpu:2",)),
            ("/job:localhost/replica:0/task:0/device:CPU:2", ("cpu:2",)),
            (["cpu:1", "cpu:0"], ("cpu:1", "cpu:0")),
            (("cpu:7",), ("cpu:7",)),
            (np.zeros(9), ("cpu:0",)),
            (IndexedSlices(np.zeros((1, 1)), np.array([0])), ("cpu:0",)),
            (PerReplica([1, 2], ["cpu:2", "cpu:0"]), ("cpu:2", "cpu:0")),
            (treefold.Mirrored([1.0], ["cpu:5"]), ("cpu:5",)),
        ],
    )
    def test_takes_every_form_of_destination(self, ops, destinations, devices):
        total = ops.reduce("sum", owned(3), destinations)
        assert total.devices == devices
        assert all(np.array_equal(component, 7 * np.arange(1, 6)) for component in total)

    def test_always_gives_mirrored(self, ops):
        assert isinstance(ops.reduce("sum", owned(2), "cpu:0"), treefold.Mirrored)

    def test_counts_a_bare_array_as_one_replica(self, ops):
        array = np.array([1.0, 2.0])
        total = ops.reduce("mean", array, ["cpu:0", "cpu:1"])
        assert np.array_equal(total[1], array)
        assert not np.shares_memory(total[0], array)

    def test_gives_every_destination_its_own_memory(self, ops):
        value = owned(1)
        total = ops.reduce("sum", value, ["cpu:0", "cpu:1"])
        assert not np.shares_memory(total[0], total[1])
        assert not np.shares_memory(total[0], value[0])

    def test_tells_which_plan_ran(self, ops):
        value = owned(3)
        assert ops.reduce("sum", value, value).plan == ops.plan(value, value)

    def test_weighs_the_replicas_of_a_mean(self, ops):
        """Σwᵢxᵢ/Σwᵢ; a replica of weight 0 is left out."""
        value = PerReplica([1.0, 2.0, np.nan])
        assert ops.reduce("mean", value, "cpu:0", weights=[1, 3, 0])[0] == 1.75

    def test_is_safe_to_call_from_many_threads(self, ops):
        wrong = []

        def work(seed):
            for size in range(1, 40):
                value = owned(3, (size + seed,))
                total = ops.reduce("sum", value, value)
                if not np.array_equal(total[2], 7 * np.arange(1, 1 + size + seed)):
                    wrong.append((seed, size))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestOut:
    def test_in_place_gives_what_new_arrays_would(self, ops):
        value, same = owned(3), owned(3)
        expected = ops.reduce("mean", same, same)
        result = ops.reduce("mean", value, value, out=value)
        assert all(component is array for component, array in zip(result, value, strict=True))
        assert all(np.array_equal(component, e) for component, e in zip(value, expected, strict=True))

    def test_takes_given_arrays(self, ops):
        value, given = owned(2), PerReplica([np.zeros(10, np.float32)[::2], np.zeros(5, np.float32)])
        ops.reduce("sum", value, value, out=given)
        assert all(np.array_equal(component, 3 * np.arange(1, 6)) for component in given)

    def test_takes_one_array_for_one_destination(self, ops):
        given = np.zeros(5, np.float32)
        ops.reduce("sum", owned(2), "cpu:4", out=given)
        assert np.array_equal(given, 3 * np.arange(1, 6))

    def test_of_a_batch_has_one_entry_per_pair(self, ops):
        a, b = owned(2), owned(2, (3,), np.int32)
        ops.batch_reduce("sum", [(a, a), (b, b)], out=[a, b])
        assert np.array_equal(a[1], 3 * np.arange(1, 6))
        assert np.array_equal(b[0], 3 * np.arange(1, 4))

    def test_in_a_list_is_refused_whatever_the_number_of_destinations(self, ops):
        for destinations, count in (("cpu:0", 1), (["cpu:0", "cpu:1"], 2)):
            out = [np.zeros(5, np.float32) for _ in range(count)]
            with pytest.raises(
                OutputError, match=r"^out is a list\. It takes a PerReplica or Mirrored with a component"
            ):
                ops.reduce("sum", owned(2), destinations, out=out)

    def test_as_one_array_is_refused_for_several_destinations(self, ops):
        with pytest.raises(
            OutputError, match=r"^out is an ndarray\. It takes a PerReplica or Mirrored with a component"
        ):
            ops.reduce("sum", owned(2), ["cpu:0", "cpu:1"], out=np.zeros(5, np.float32))

    @pytest.mark.parametrize("out", [np.zeros((2, 5), np.float32), PerReplica([np.zeros(5, np.float32)] * 2), {}])
    def test_of_a_batch_that_is_no_list_is_refused(self, ops, out):
        value = owned(2)
        with pytest.raises(OutputError, match=r"^out is .+\. It takes a list with one entry per pair, 2 here\."):
            ops.batch_reduce("sum", [(value, "cpu:0"), (value, "cpu:0")], out=out)

    @pytest.mark.parametrize(("entries", "got"), [(0, "0 entries"), (1, "1 entry"), (3, "3 entries")])
    def test_of_a_batch_with_another_number_of_entries_is_refused(self, ops, entries, got):
        value, out = owned(2), [np.zeros(5, np.float32) for _ in range(entries)]
        with pytest.raises(OutputError, match=f"^out has {got} for 2 pairs. Give one entry for each. Nothing was"):
            ops.batch_reduce("sum", [(value, "cpu:0"), (value, "cpu:0")], out=out)
        assert not any(array.any() for array in out)

    def test_is_untouched_when_a_callback_fails(self):
        value = PerReplica([{"a": np.ones(2), "b": np.ones(3)}, {"a": np.ones(2), "b": np.ones(3)}])

        def fails_on_b(arrays):
            if arrays[0].size == 3:
                raise ZeroDivisionError
            return arrays[0]

        with pytest.raises(ZeroDivisionError):
            ReductionToOneDevice(accumulation_fn=fails_on_b).reduce("sum", value, value, out=value)
        assert all((component["a"] == 1).all() and (component["b"] == 1).all() for component in value)


class TestBatchReduce:
    def test_of_nothing_is_nothing(self, ops):
        """TensorFlow raises IndexError; an empty batch is an empty list."""
        assert ops.batch_reduce("sum", []) == []

    @pytest.mark.parametrize("kind", [list, tuple, iter, lambda pairs: (pair for pair in pairs)])
    def test_takes_any_iterable_of_pairs(self, ops, kind):
        value = owned(2)
        assert len(ops.batch_reduce("sum", kind([(value, value), (value, "cpu:0")]))) == 2

    @pytest.mark.parametrize("num_packs", [0, 1, 2, 3, 20, "auto"])
    def test_mixes_dtypes_sparse_and_empty_values_in_order(self, num_packs):
        ops = HierarchicalCopyAllReduce(num_packs)
        rows = PerReplica([IndexedSlices(np.full((1, 2), 2.0**r), np.array([r])) for r in range(3)])
        batch = [
            owned(3),
            rows,
            owned(3, (2,), np.int32),
            owned(3, (0, 4)),
            owned(3, (7,), np.float16),
            owned(3, (2, 2)),
        ]
        results = ops.batch_reduce("sum", [(value, value) for value in batch])
        for value, result in zip(batch, results, strict=True):
            if value is rows:
                assert np.array_equal(result[2].values, [[1, 1], [2, 2], [4, 4]])
            else:
                assert result[1].dtype == value[1].dtype
                assert np.array_equal(result[1], 7 * value[0])

    def test_takes_other_destinations_for_each_pair(self, ops):
        value = owned(3)
        all_of_them, one, two = ops.batch_reduce("sum", [(value, value), (value, "cpu:8"), (value, ["cpu:2", "cpu:8"])])
        assert (all_of_them.devices, one.devices, two.devices) == (value.devices, ("cpu:8",), ("cpu:2", "cpu:8"))
        assert all(np.array_equal(m[0], 7 * np.arange(1, 6)) for m in (all_of_them, one, two))

    def test_takes_values_with_different_numbers_of_replicas(self, ops):
        two, three = owned(2), owned(3)
        means = ops.batch_reduce("mean", [(two, "cpu:0"), (three, "cpu:0")])
        assert (means[0][0][0], means[1][0][0]) == (np.float32(1.5), np.float32(7 / 3))


class TestBroadcastAndGather:
    def test_broadcast_copies_any_structure(self, ops):
        tree = {"a": np.array(["x", "y"]), "b": IndexedSlices(np.ones((1, 2)), np.array([3])), "c": None, "d": 4}
        copies = ops.broadcast(tree, ["cpu:0", "cpu:3"])
        assert copies.devices == ("cpu:0", "cpu:3")
        assert np.array_equal(copies[1]["a"], tree["a"])
        assert not np.shares_memory(copies[0]["a"], tree["a"])
        assert (copies[1]["b"].indices[0], copies[0]["c"], int(copies[1]["d"])) == (3, None, 4)

    @pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
    def test_gather_lays_values_behind_each_other(self, ops, axis):
        shapes = [[2, 3, 4] for _ in range(3)]
        for replica, shape in enumerate(shapes):
            shape[axis] = replica
        arrays = [np.full(shape, 2**r) for r, shape in enumerate(shapes)]
        gathered = ops.gather(PerReplica(arrays), ["cpu:0", "cpu:1"], axis)
        assert len(gathered) == 2
        assert np.array_equal(gathered[1], np.concatenate(arrays, axis))

    def test_gather_takes_any_dtype(self, ops):
        gathered = ops.gather(PerReplica([np.array([True]), np.array([False])]), "cpu:0", 0)
        assert gathered[0].tolist() == [True, False]


class TestPlan:
    def test_takes_shapes_for_arrays(self, ops):
        class Shape:
            shape, dtype = (5,), np.dtype("float32")

        shapes = PerReplica([Shape(), Shape(), Shape()])
        assert ops.plan(shapes, shapes) == ops.plan(owned(3), owned(3))

    def test_takes_a_list_of_pairs(self, ops):
        pairs = [(owned(3), owned(3)), (owned(2), "cpu:0")]
        assert ops.plan(pairs) == ops.batch_reduce("sum", pairs)[0].plan

    def test_serves_every_op_and_bool(self, ops):
        flags = PerReplica([np.array([True]), np.array([False])])
        assert ops.plan(flags, flags) == ops.reduce("max", flags, flags).plan


class TestReductionToOneDevice:
    def test_reduces_where_it_is_told(self):
        value = owned(3)
        told = ReductionToOneDevice("cpu:7").plan(value, ["cpu:1", "cpu:2"], walked=True)
        assert {hop.target for hop in told.hops if hop.step == 1} == {"cpu:7"}
        first = ReductionToOneDevice().plan(value, ["cpu:1", "cpu:2"], walked=True)
        assert {hop.target for hop in first.hops if hop.step == 1} == {"cpu:1"}

    def test_calls_accumulation_fn_once_per_array(self):
        calls = []

        def keep_first(arrays):
            calls.append([(array.tolist(), array.flags.writeable) for array in arrays])
            return arrays[0]

        value = PerReplica([{"a": np.array([2.0, 4.0])}, {"a": np.array([6.0, 8.0])}])
        mean = ReductionToOneDevice(accumulation_fn=keep_first).reduce("mean", value, value)
        assert calls == [[([2.0, 4.0], False), ([6.0, 8.0], False)]]
        assert np.array_equal(mean[1]["a"], [1.0, 2.0])
        assert mean.plan.guarantee == "replica_order"
        assert not np.shares_memory(mean[0]["a"], value[0]["a"])

    def test_concatenates_sparse_rows_without_accumulation_fn(self):
        rows = PerReplica([IndexedSlices(np.full((1, 2), 2.0**r), np.array([r])) for r in range(2)])
        ops = ReductionToOneDevice(accumulation_fn=pytest.fail)
        assert np.array_equal(ops.reduce("sum", rows, "cpu:0")[0].values, [[1, 1], [2, 2]])


class TestNcclAllReduce:
    def test_says_that_it_falls_back(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = NcclAllReduce().reduce("sum", owned(2), owned(2)).plan
        assert plan.notes == (
            "NCCL is not used, because NCCL reduces between GPUs only: each pack is reduced on one device, "
            "the documented fallback",
        )


class TestOptions:
    def test_bytes_per_pack_overrides_num_packs(self):
        batch = [(owned(2), owned(2)) for _ in range(3)]
        assert HierarchicalCopyAllReduce(1).plan(batch, walked=True).num_packs == 1
        few, more = (CommunicationOptions(bytes_per_pack=nbytes) for nbytes in (20, 40))
        assert HierarchicalCopyAllReduce(1).plan(batch, options=few, walked=True).num_packs == 3
        assert ReductionToOneDevice().plan(batch, options=more, walked=True).num_packs == 2

    def test_hints_are_their_older_name(self, ops):
        hints = treefold.CollectiveHints(bytes_per_pack=8)
        assert ops.reduce("sum", owned(2), "cpu:0", experimental_hints=hints)[0][0] == 3
