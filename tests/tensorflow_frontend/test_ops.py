"""The ops for ``tf.distribute`` on its own values: eagerly, inside ``tf.function``, and as TensorFlow ops."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import treefold
import treefold.tensorflow
from treefold.errors import ArgumentError, CallError, DeviceError, MismatchError
from treefold.tensorflow import (
    AllReduceCrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
ALL = [ReductionToOneDevice, AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce]

DTYPES = ("float16", BFLOAT16, "float32", "float64", "int8", "int64", "uint64")
# Complex numbers have no order.
OPS_AND_DTYPES = [(op, dtype) for op in ("sum", "mean", "min", "max") for dtype in DTYPES]
OPS_AND_DTYPES += [("sum", "complex64"), ("mean", "complex64")]


def owned(count, shape=(3, 5), dtype="float32"):
    """Return one array per replica; replica r brings 2**r."""
    return [np.full(shape, 2**replica, dtype) for replica in range(count)]


class TestReduce:
    @pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("ops", ALL, ids=lambda ops: ops.__name__)
    def test_counts_every_replica_once(self, ops, count, way, on_devices):
        value = on_devices(owned(count))
        result = way(lambda value: ops().reduce(SUM, value, "cpu:0"), value)
        assert np.array_equal(result.numpy(), np.full((3, 5), 2**count - 1, "float32"))

    @pytest.mark.parametrize(("op", "dtype"), OPS_AND_DTYPES, ids=str)
    def test_gives_the_bits_of_numpy(self, op, dtype, way, on_devices):
        """Where sums are exact in the accumulator, TensorFlow's ops and the kernel round alike."""
        numbers = np.round(np.random.default_rng(3).normal(scale=50, size=(5, 64)) * 64) / 64
        arrays = [np.abs(row).astype(dtype) if np.dtype(dtype).kind == "u" else row.astype(dtype) for row in numbers]
        expected = treefold.ReductionToOneDevice().reduce(op, treefold.PerReplica(arrays), "cpu:0")[0]
        found = way(lambda value: ReductionToOneDevice().reduce(op, value, "cpu:0"), on_devices(arrays)).numpy()
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()

    def test_mean_of_finite_values_is_finite(self, way, on_devices):
        value = on_devices([np.full(4, factor * 2.0**1022) for factor in (2, 3, 1)])
        result = way(lambda value: ReductionToOneDevice().reduce(MEAN, value, "cpu:0"), value)
        assert result.numpy().tolist() == [2.0**1023] * 4

    def test_one_destination_gives_a_tensor_there(self, on_devices, read):
        [(device, array)] = read(ReductionToOneDevice().reduce(MEAN, on_devices(owned(3)), "/cpu:5"))
        assert device == "cpu:5"
        assert np.array_equal(array, np.full((3, 5), np.float32(7 / 3)))

    def test_devices_may_be_given_as_tensorflow_has_them(self, on_devices, read):
        fifth, spec = tf.config.list_logical_devices("CPU")[5], tf.DeviceSpec(device_type="CPU", device_index=3)
        value = on_devices(owned(2))
        for destinations, expected in ((fifth, ["cpu:5"]), (spec, ["cpu:3"]), ([fifth, "cpu:1"], ["cpu:5", "cpu:1"])):
            assert [device for device, _ in read(ReductionToOneDevice().reduce(SUM, value, destinations))] == expected

    def test_several_destinations_give_mirrored_in_their_order(self, on_devices, read):
        result = HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(3)), ["cpu:4", "cpu:0"])
        assert isinstance(result, tf.distribute.DistributedValues)
        assert [(device, array[0, 0]) for device, array in read(result)] == [("cpu:4", 7.0), ("cpu:0", 7.0)]

    def test_a_variable_is_a_destination_and_stays_as_it_is(self, on_cpus, on_devices, read):
        with on_cpus(3, None).scope():
            variable = tf.Variable(tf.fill([3, 5], 100.0))
        result = HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(3)), variable)
        assert [(device, array[0, 0]) for device, array in read(result)] == [
            (f"cpu:{index}", 7.0) for index in range(3)
        ]
        assert [float(component[0, 0]) for component in variable.values] == [100.0] * 3

    def test_a_mirrored_variable_is_a_value(self, on_cpus, way):
        with on_cpus(3, None).scope():
            variable = tf.Variable(2.0)
        assert float(way(lambda: HierarchicalCopyAllReduce().reduce(SUM, variable, "cpu:0"))) == 6.0

    def test_a_number_is_one_replica(self):
        assert float(HierarchicalCopyAllReduce().reduce(SUM, 5.0, "cpu:1")) == 5.0

    def test_mean_of_integers_is_float(self, way, on_devices):
        value = on_devices([np.array([200], "uint8"), np.array([250], "uint8")])
        result = way(lambda value: HierarchicalCopyAllReduce().reduce(MEAN, value, "cpu:0"), value)
        assert (result.dtype, result.numpy().tolist()) == (tf.float32, [225.0])

    def test_shape_is_known_while_tracing(self, on_devices):
        result = tf.function(lambda value: HierarchicalCopyAllReduce().reduce(MEAN, value, "cpu:0"))
        assert result.get_concrete_function(on_devices(owned(2))).output_shapes == (3, 5)

    def test_takes_shapes_that_are_not_known_while_tracing(self, way, on_devices):
        value = on_devices(owned(3, (4,)))

        def reduce_longer(value):
            # tf.where gives as many rows as there are, which no trace knows.
            longer = [tf.gather(part, tf.where(part > 0)[:, 0]) for part in value.values]
            return HierarchicalCopyAllReduce().reduce(MEAN, type(value)(longer), "cpu:0")

        assert np.array_equal(way(reduce_longer, value).numpy(), np.full(4, np.float32(7 / 3)))

    def test_runs_inside_xla(self, on_devices):
        value = on_devices(owned(5))
        compiled = tf.function(lambda value: HierarchicalCopyAllReduce(2).reduce(SUM, value, "cpu:0"), jit_compile=True)
        assert np.array_equal(compiled(value).numpy(), np.full((3, 5), 31, "float32"))

    def test_accumulation_fn_takes_tensors(self, way, on_devices):
        ops = ReductionToOneDevice(accumulation_fn=tf.add_n)
        result = way(lambda value: ops.reduce(MEAN, value, "cpu:1"), on_devices(owned(3)))
        assert np.array_equal(result.numpy(), np.full((3, 5), np.float32(7 / 3)))

    def test_accumulation_fn_gets_contributions_in_order(self, way, on_devices):
        """Permutations are composed, which no other order gives."""
        permutations = [np.random.default_rng(r).permutation(11) for r in range(4)]
        right = functools.reduce(lambda first, then: then[first], permutations)
        ops = ReductionToOneDevice(
            accumulation_fn=lambda parts: functools.reduce(lambda first, then: tf.gather(then, first), parts)
        )
        result = way(lambda value: ops.reduce(SUM, value, "cpu:0"), on_devices(permutations))
        assert result.numpy().tolist() == right.tolist()

    def test_follows_a_topology(self, way, on_devices):
        machine = treefold.load_topology(
            '{"devices": ["cpu:0", "cpu:1", "cpu:2"], "links": [{"between": ["cpu:0", "cpu:1"], "gb_per_s": 10},'
            '{"between": ["cpu:1", "cpu:2"], "gb_per_s": 10}]}'
        )
        value = on_devices(owned(3))
        for ops in (
            HierarchicalCopyAllReduce("auto", topology=machine),
            AllReduceCrossDeviceOps("hierarchical_copy", 2, topology=machine),
        ):
            tensors = way(lambda value, ops=ops: list(ops.reduce(SUM, value, value).values), value)
            assert all((tensor.numpy() == 7).all() for tensor in tensors)

    def test_says_what_made_it(self):
        assert (
            repr(HierarchicalCopyAllReduce(num_packs=2)) == "treefold.tensorflow.HierarchicalCopyAllReduce(num_packs=2)"
        )


class TestBatchReduce:
    def test_mixes_dtypes_shapes_and_destinations(self, way, on_devices):
        kinds = [("float32", (3,)), ("float16", (2, 2)), ("float64", ()), ("float16", (1,)), ("float32", (0, 2))]
        values = [on_devices(owned(3, shape, dtype)) for dtype, shape in kinds]

        def reduce_all(*values):
            return HierarchicalCopyAllReduce(num_packs=2).batch_reduce(SUM, [(value, "cpu:0") for value in values])

        for result, (dtype, shape) in zip(way(reduce_all, *values), kinds, strict=True):
            assert result.dtype == dtype
            assert np.array_equal(result.numpy(), np.full(shape, 7, dtype))

    def test_reduces_every_pair(self, on_devices):
        """TensorFlow looks at the first pair only, and returns two values of one device as they are."""
        one, two = on_devices([np.float32(1)]), on_devices([np.float32(1), np.float32(2)], devices=[0, 0])
        results = HierarchicalCopyAllReduce().batch_reduce(SUM, [(one, one), (two, "cpu:0")])
        assert [float(result) for result in results] == [1.0, 3.0]

    def test_of_nothing_is_nothing(self, way):
        assert way(lambda: HierarchicalCopyAllReduce().batch_reduce(SUM, [])) == []

    def test_errors_name_the_pair(self, on_devices):
        good, bad = on_devices(owned(2)), on_devices([np.zeros(2, "float32"), np.zeros(3, "float32")])
        with pytest.raises(
            MismatchError, match=r"^Pair 1: Replica 1 has float32 \(3,\) where replica 0 has float32 \(2,\)"
        ):
            HierarchicalCopyAllReduce().batch_reduce(SUM, [(good, good), (bad, bad)])

    def test_takes_tensorflows_options(self, on_devices):
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=64, implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        value = on_devices(owned(3))
        [result] = HierarchicalCopyAllReduce().batch_reduce(SUM, [(value, "cpu:0")], options)
        assert float(result[0, 0]) == 7.0


def rows(replica, count=None):
    count = replica + 1 if count is None else count
    return tf.IndexedSlices(tf.fill([count, 2], 2.0**replica), tf.range(count), tf.constant([4, 2]))


class TestIndexedSlices:
    def test_are_laid_behind_each_other(self, way, on_devices):
        value = on_devices([rows(0), rows(1), rows(2)])
        result = way(lambda value: HierarchicalCopyAllReduce().reduce(MEAN, value, "cpu:0"), value)
        assert result.indices.numpy().tolist() == [0, 0, 1, 0, 1, 2]
        assert result.values.numpy()[:, 0].tolist() == [float(np.float32(x / 3)) for x in (1, 2, 2, 4, 4, 4)]
        assert result.dense_shape.numpy().tolist() == [4, 2]

    def test_mixed_with_dense_values_become_dense(self, way, on_devices):
        value = on_devices([rows(0), np.full((4, 2), 2, "float32"), rows(2)])
        result = way(lambda value: ReductionToOneDevice().reduce(SUM, value, "cpu:0"), value)
        assert result.numpy()[:, 0].tolist() == [7.0, 6.0, 6.0, 2.0]

    def test_stay_sparse_when_broadcast(self):
        result = HierarchicalCopyAllReduce().broadcast(rows(1), ["cpu:0", "cpu:3"])
        assert [component.indices.numpy().tolist() for component in result.values] == [[0, 1], [0, 1]]


class TestBroadcastAndGather:
    def test_broadcast_copies_to_every_device(self, way, read):
        result = HierarchicalCopyAllReduce().broadcast(tf.constant([1.0, 2.0]), ["cpu:2", "cpu:1"])
        assert [(device, array.tolist()) for device, array in read(result)] == [("cpu:2", [1, 2]), ("cpu:1", [1, 2])]
        traced_one = way(lambda: HierarchicalCopyAllReduce().broadcast(tf.constant([1.0, 2.0]), "cpu:2"))
        assert traced_one.numpy().tolist() == [1.0, 2.0]

    def test_strategy_gather_lays_behind_each_other(self, on_cpus, way):
        strategy = on_cpus(3, HierarchicalCopyAllReduce())

        def gather():
            context = tf.distribute.get_replica_context
            return strategy.gather(strategy.run(lambda: tf.fill([1, 2], context().replica_id_in_sync_group)), axis=0)

        assert way(gather).numpy().tolist() == [[0, 0], [1, 1], [2, 2]]


class TestRefusals:
    def test_a_list_of_tensors(self):
        with pytest.raises(ArgumentError, match=r"^per_replica_value is a list, which may mean one value per replica"):
            HierarchicalCopyAllReduce().reduce(SUM, [tf.constant(1.0)], "cpu:0")

    @pytest.mark.parametrize("value", [None, "text", dict], ids=repr)
    def test_no_value_at_all(self, value):
        with pytest.raises(ArgumentError, match=r"^per_replica_value is .*, which is no array of a loaded framework"):
            HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0")

    @pytest.mark.parametrize("destinations", ["cpu:99", "gpu:0"])
    def test_devices_that_are_not_there(self, destinations, way, on_devices):
        with pytest.raises(
            DeviceError,
            match=rf"TensorFlow has no device {destinations} here\. It has cpu:0, cpu:1, .+\. Name one of these;",
        ):
            way(lambda value: HierarchicalCopyAllReduce().reduce(SUM, value, destinations), on_devices(owned(2)))

    @pytest.mark.parametrize("destinations", [7, None, ["cpu:0", 1]], ids=repr)
    def test_destinations_of_no_form(self, destinations, on_devices):
        with pytest.raises(ArgumentError, match=r"^The destination is "):
            HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(2)), destinations)

    @pytest.mark.parametrize("destinations", ["", []], ids=repr)
    def test_no_destinations(self, destinations, on_devices):
        with pytest.raises(ArgumentError, match=r"^The destination is empty\. "):
            HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(2)), destinations)

    def test_dtypes_without_a_sum(self, way, on_devices):
        with pytest.raises(ValueError, match="bool"):
            way(lambda value: HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0"), on_devices([True, False]))

    def test_options_of_no_kind(self, on_devices):
        with pytest.raises(ArgumentError, match=r"^options "):
            HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(2)), "cpu:0", 3)

    def test_shapes_that_differ_when_the_graph_runs(self, on_devices):
        """Shapes that tracing cannot know are refused by the kernel."""

        def reduce_some(value):
            longer = [tf.gather(part, tf.where(part > 1)[:, 0]) for part in value.values]
            return HierarchicalCopyAllReduce().reduce(SUM, type(value)(longer), "cpu:0")

        with pytest.raises(tf.errors.OpError, match=r"Replica 1 has float32 \(3,\) where replica 0 has float32 \(0,\)"):
            tf.function(reduce_some)(on_devices(owned(2, (3,))))

    def test_a_hostile_component(self, on_devices):
        class Liar:
            """Pretends to be a tensor."""

            device, dtype, shape = "/job:localhost/replica:0/task:0/device:CPU:1", tf.float32, tf.TensorShape([3, 5])

        value = on_devices(owned(2))
        with pytest.raises(
            ArgumentError, match=r"^per_replica_value is a Liar, which is no array of a loaded framework"
        ):
            HierarchicalCopyAllReduce().reduce(SUM, type(value)([value.values[0], Liar()]), "cpu:0")


class TestGradients:
    def test_are_refused_in_words(self, on_devices):
        value = on_devices(owned(2))
        with tf.GradientTape() as tape:
            tape.watch(value.values[0])
            total = HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0")
        with pytest.raises(
            CallError, match=r"^treefold's reductions have no gradient\. Reduce outside of the tape, or call "
        ):
            tape.gradient(total, value.values[0])

    @pytest.mark.parametrize("wrapped", [tf.function, lambda function: function], ids=["traced", "eager"])
    def test_of_all_reduce_are_tensorflows(self, on_cpus, wrapped):
        """The gradient of a sum over replicas is the sum of the gradients."""
        strategy = on_cpus(3, HierarchicalCopyAllReduce())

        def gradient():
            context = tf.distribute.get_replica_context()
            x = tf.constant(2.0) ** tf.cast(context.replica_id_in_sync_group, "float32")
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x * context.all_reduce("SUM", x)
            return tape.gradient(y, x)

        # y_r = x_r · Σx, so dΣy/dx_r = Σx + Σx.
        assert [float(part) for part in wrapped(lambda: strategy.run(gradient))().values] == [14.0] * 3


class TestMemory:
    def test_is_shared_by_all_devices_and_returns_to_the_cache(self, on_devices):
        value = on_devices(owned(3, (1 << 18,)))
        before = treefold.host_memory_info()["used_bytes"]
        result = HierarchicalCopyAllReduce().reduce(SUM, value, value)
        assert treefold.host_memory_info()["used_bytes"] - before == 1 << 20
        last = result.values[2]
        del result
        assert treefold.host_memory_info()["used_bytes"] - before == 1 << 20
        assert float(last[-1]) == 7.0
        del last
        assert treefold.host_memory_info()["used_bytes"] == before

    def test_of_a_result_is_not_written_by_a_variable_made_of_it(self, on_devices):
        value = on_devices(owned(2, (1 << 16,)))
        result = HierarchicalCopyAllReduce().reduce(SUM, value, value)
        variable = tf.Variable(result.values[0])
        variable.assign_add(result.values[1])
        assert [float(part[0]) for part in (*result.values, variable)] == [3.0, 3.0, 6.0]
