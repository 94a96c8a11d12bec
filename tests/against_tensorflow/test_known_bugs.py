"""TensorFlow's bugs on a CPU today: each one shown, with treefold's right behaviour beside it.

Deliberate differences are not repeated here, except those that a user of ``MirroredStrategy`` meets.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, cross_device_utils

import treefold
from treefold.cli.training import sum_in_two_halves

THEIR_SUM, THEIR_MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def named(count, length=1, dtype=np.float32):
    """Return one array per replica that names its owner: 2**replica."""
    return [np.full(length, 2**replica, dtype) for replica in range(count)]


def numbers(result):
    return [np.asarray(component).tolist() for component in result.values]


def all_reduce_in_strategy(count, op, arrays_of):
    """Return what every replica of a ``MirroredStrategy`` gets from ``all_reduce`` of ``arrays_of(replica)``."""
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{device}" for device in range(count)],
        cross_device_ops=tf.distribute.HierarchicalCopyAllReduce(2),
    )

    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(op, arrays_of(context.replica_id_in_sync_group))

    return strategy.experimental_local_results(strategy.run(step))


class TestMirroredStrategy:
    @pytest.mark.parametrize(("op", "divisor"), [("SUM", 1), ("MEAN", 0)])
    @pytest.mark.parametrize("count", [3, 5, 7])
    def test_with_an_odd_count_trains_without_its_last_replica(self, count, op, divisor):
        """Under a strategy with 3, 5 or 7 devices every replica gets a sum that lacks the last; treefold's is whole."""
        theirs = all_reduce_in_strategy(count, op, lambda replica: tf.cast(2**replica, tf.float32))
        divisor = np.float32(divisor or count)
        assert [result.numpy() for result in theirs] == [np.float32(2 ** (count - 1) - 1) / divisor] * count
        ours = treefold.all_reduce(named(count, ()), op)
        assert ours == [np.float32(2**count - 1) / divisor] * count

    @pytest.mark.parametrize("count", range(2, 9))
    def test_sums_as_the_demo_says(self, count):
        theirs = all_reduce_in_strategy(count, "SUM", lambda replica: tf.cast(2**replica, tf.float32))
        rule = sum_in_two_halves([{"kernel": array} for array in named(count, ())])
        assert {float(result.numpy()) for result in theirs} == {float(rule["kernel"])}

    def test_cannot_all_reduce_two_dtypes(self):
        with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=r"float16|half"):
            all_reduce_in_strategy(2, "SUM", lambda _: [tf.constant(1.0), tf.constant(2, tf.float16)])
        ours = treefold.all_reduce([[np.float32(1), np.float16(2)]] * 2)
        assert ours == [[2.0, 4.0]] * 2
        assert [total.dtype.name for total in ours[1]] == ["float32", "float16"]

    def test_cannot_all_reduce_two_integers(self):
        with pytest.raises(ValueError, match="Inputs to batch_reduce_to must be either all on the host or all on the"):
            all_reduce_in_strategy(2, "SUM", lambda _: [tf.constant(1), tf.constant(2)])
        assert treefold.all_reduce([[np.int32(1), np.int32(2)]] * 2) == [[2, 4]] * 2

    def test_cannot_reduce_a_zero(self):
        strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        with pytest.raises(AttributeError, match="'int' object has no attribute 'shape'"):
            strategy.reduce("SUM", 0, axis=None)
        assert treefold.reduce([0, 0]) == 0


class TestBatchReduce:
    def test_returns_values_unreduced_if_the_first_has_one_component(self, on_devices):
        """TensorFlow looks at the first value only and returns two replicas on one device as they are."""
        arrays = [np.float32([3]), np.float32([1]), np.float32([2])]
        one, two = on_devices(arrays[:1], [0]), on_devices(arrays[1:], [0, 0])
        theirs = tf.distribute.ReductionToOneDevice().batch_reduce(THEIR_SUM, [(one, one), (two, two)])
        assert numbers(theirs[1]) == [[1.0], [2.0]]
        one, two = treefold.PerReplica(arrays[:1], ["cpu:0"]), treefold.PerReplica(arrays[1:], ["cpu:0"] * 2)
        ours = treefold.ReductionToOneDevice().batch_reduce("sum", [(one, one), (two, two)])
        assert [numbers(result) for result in ours] == [[[3.0]], [[3.0], [3.0]]]

    def test_sums_where_mean_is_written(self, on_devices):
        """The word "MEAN" gives TensorFlow's sum on the all-reduce path; in treefold it means MEAN."""
        value = on_devices(named(2))
        assert (
            numbers(tf.distribute.HierarchicalCopyAllReduce().batch_reduce("MEAN", [(value, value)])[0]) == [[3.0]] * 2
        )
        value = treefold.PerReplica(named(2))
        assert numbers(treefold.HierarchicalCopyAllReduce().batch_reduce("MEAN", [(value, value)])[0]) == [[1.5]] * 2

    def test_orders_results_by_the_value(self, on_devices):
        value, reverse = on_devices(named(2)), on_devices(named(2), [1, 0])
        [theirs] = tf.distribute.HierarchicalCopyAllReduce().batch_reduce(THEIR_SUM, [(value, reverse)])
        assert [component.device[-5:] for component in theirs.values] == ["CPU:0", "CPU:1"]
        value, reverse = treefold.PerReplica(named(2)), treefold.PerReplica(named(2), ["cpu:1", "cpu:0"])
        [ours] = treefold.HierarchicalCopyAllReduce().batch_reduce("sum", [(value, reverse)])
        assert (ours.devices, numbers(ours)) == (("cpu:1", "cpu:0"), [[3.0], [3.0]])

    def test_asserts_one_order_of_devices(self, on_devices):
        """Two values on the same devices in two orders end in an empty ``AssertionError``; treefold reduces both."""
        value, reverse = on_devices(named(2)), on_devices(named(2), [1, 0])
        with pytest.raises(AssertionError, match=r"^$"):
            tf.distribute.HierarchicalCopyAllReduce().batch_reduce(THEIR_SUM, [(value, value), (reverse, reverse)])
        value, reverse = treefold.PerReplica(named(2)), treefold.PerReplica(named(2), ["cpu:1", "cpu:0"])
        ours = treefold.HierarchicalCopyAllReduce().batch_reduce("sum", [(value, value), (reverse, reverse)])
        assert [numbers(result) for result in ours] == [[[3.0], [3.0]]] * 2

    def test_says_nothing_useful_about_a_tuple_of_three(self, on_devices):
        value = on_devices(named(2))
        with pytest.raises(ValueError, match=r"^too many values to unpack"):
            tf.distribute.ReductionToOneDevice().batch_reduce(THEIR_SUM, [(value, value, value)])
        value = treefold.PerReplica(named(2))
        sentence = r"^Element 1 of value_destination_pairs is a tuple of 3\. Each must be a tuple of two: \(value, dest"
        with pytest.raises(ValueError, match=sentence):
            treefold.ReductionToOneDevice().batch_reduce("sum", [(value, value), (value, value, value)])


class TestShapes:
    def test_that_cross_are_summed_crosswise(self, on_devices):
        """Replicas with shapes (2), (1) and (1), (2) are packed into equal lengths and added; treefold refuses them."""
        first, second = [np.float32([1, 2]), np.float32([10])], [np.float32([3]), np.float32([20, 30])]
        a, b = on_devices(first), on_devices(second)
        theirs = tf.distribute.HierarchicalCopyAllReduce().batch_reduce(THEIR_SUM, [(a, a), (b, b)])
        assert [numbers(result) for result in theirs] == [[[11.0, 22.0], [11.0]], [[33.0], [22.0, 33.0]]]
        a, b = treefold.PerReplica(first), treefold.PerReplica(second)
        sentence = (
            r"^Pair 0: Replica 1 has float32 \(1,\) where replica 0 has float32 \(2,\)\. Every replica must bring"
        )
        with pytest.raises(ValueError, match=sentence):
            treefold.HierarchicalCopyAllReduce().batch_reduce("sum", [(a, a), (b, b)])

    def test_of_equal_size_are_taken_for_equal(self, on_devices):
        arrays = [np.float32([1, 2, 3, 4]), np.float32([[10, 20], [30, 40]])]
        value = on_devices(arrays)
        [theirs] = tf.distribute.HierarchicalCopyAllReduce().batch_reduce(THEIR_SUM, [(value, value)])
        assert numbers(theirs) == [[11.0, 22.0, 33.0, 44.0], [[11.0, 22.0], [33.0, 44.0]]]
        value = treefold.PerReplica(arrays)
        with pytest.raises(
            ValueError, match=r"^Replica 1 has float32 \(2, 2\) where replica 0 has float32 \(4,\)\. Ev"
        ):
            treefold.HierarchicalCopyAllReduce().reduce("sum", value, value)


class TestDevices:
    def test_that_do_not_exist_are_replaced(self, on_devices):
        """TensorFlow puts the result on CPU:0 instead and says nothing; treefold names the device that is missing."""
        theirs = tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(named(2)), "/gpu:7")
        assert theirs.device.endswith("CPU:0")
        with pytest.raises(ValueError, match=r"^NumPy has no device /gpu:7 here\. It has cpu:0, cpu:1 and so on"):
            treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(named(2)), "/gpu:7")

    def test_beyond_the_last_cpu_are_replaced(self, on_devices):
        theirs = tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(named(2)), "/cpu:8")
        assert theirs.device.endswith("CPU:0")
        ours = treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(named(2)), "/cpu:8")
        assert (ours.devices, numbers(ours)) == (("cpu:8",), [[3.0]])


class TestArguments:
    def test_an_unknown_algorithm_selects_hierarchical_copy(self, on_devices):
        """TensorFlow runs a misspelt "nccl" as hierarchical copy, on a CPU where NCCL would fail."""
        value = on_devices(named(2))
        ops = cross_device_ops.AllReduceCrossDeviceOps("nclc")
        assert numbers(ops.batch_reduce(THEIR_SUM, [(value, value)])[0]) == [[3.0], [3.0]]
        sentence = r'^all_reduce_alg is \'nclc\'\. It takes "nccl" or "hierarchical_copy"\.$'
        with pytest.raises(ValueError, match=sentence):
            treefold.AllReduceCrossDeviceOps("nclc")

    @pytest.mark.parametrize("num_packs", [1.5, True])
    def test_num_packs_may_be_no_number_of_packs(self, num_packs):
        assert tf.distribute.HierarchicalCopyAllReduce(num_packs)._num_packs is num_packs
        with pytest.raises(ValueError, match=rf"^HierarchicalCopyAllReduce got num_packs={num_packs}\. It takes 0"):
            treefold.HierarchicalCopyAllReduce(num_packs)

    def test_a_class_in_place_of_an_object_is_blamed_on_the_arguments(self, on_devices):
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'destinations'"):
            tf.distribute.ReductionToOneDevice.reduce(THEIR_SUM, on_devices(named(2)), "/cpu:0")
        with pytest.raises(TypeError, match=r"^PerReplica is the class; make an object of it first: PerReplica\(\)\.$"):
            treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica, "cpu:0")


class TestNumbers:
    def test_booleans_fail_deep_inside(self, on_devices):
        arrays = [np.array([True]), np.array([False])]
        with pytest.raises(tf.errors.InvalidArgumentError, match="Value for attr 'T' of bool is not in the list of"):
            tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(arrays), "/cpu:0")
        with pytest.raises(ValueError, match=r"^SUM of bool is not defined\. Use MAX for any, MIN for all, or cast to"):
            treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(arrays), "/cpu:0")
        assert treefold.reduce(arrays, "max").tolist() == [True]

    def test_a_mean_overflows_though_its_values_do_not(self, on_devices):
        """Two float16 of 60,000 have an infinite mean in TensorFlow."""
        arrays = [np.float16([60_000])] * 2
        assert (
            tf.distribute.ReductionToOneDevice().reduce(THEIR_MEAN, on_devices(arrays), "/cpu:0").numpy()[0] == np.inf
        )
        assert treefold.reduce(arrays, "mean").tolist() == [60_000.0]

    def test_a_mean_of_equal_values_is_another_value(self, on_devices):
        arrays = [np.array([0.1])] * 3
        assert tf.distribute.ReductionToOneDevice().reduce(THEIR_MEAN, on_devices(arrays), "/cpu:0").numpy()[0] > 0.1
        assert treefold.reduce(arrays, "mean").tolist() == [0.1]


class TestSparseRows:
    def test_of_arrays_of_different_shapes_are_joined(self, on_devices):
        shapes = {0: (2, 1), 4: (5, 1)}
        rows = [treefold.IndexedSlices(np.float32([[1]]), np.array([row]), shape) for row, shape in shapes.items()]
        theirs = tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(rows), "/cpu:0")
        assert (theirs.indices.numpy().tolist(), theirs.dense_shape.numpy().tolist()) == ([0, 4], [2, 1])
        sentence = r"^Replica 1 has IndexedSlices of dense_shape \(5, 1\) where replica 0 has \(2, 1\)\. Every replica"
        with pytest.raises(ValueError, match=sentence):
            treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(rows), "/cpu:0")


class TestBytesPerPack:
    @pytest.mark.parametrize(
        ("limit", "theirs", "ours"), [(12, [6, 4, 5, 6], [3, 3, 4, 5, 6]), (24, [10, 11], [6, 4, 5, 6])]
    )
    def test_is_exceeded_by_every_pack_but_the_last(self, limit, theirs, ours):
        """TensorFlow closes a pack once it holds more than the limit, treefold before; a value alone may exceed it."""
        lengths = range(1, 7)
        groups = cross_device_utils.group_by_size([tf.zeros([length]) for length in lengths], limit)
        assert [sum(tensor.shape[0] for tensor in group) for group in groups] == theirs
        pairs = [(treefold.PerReplica(named(2, length)),) * 2 for length in lengths]
        options = treefold.CommunicationOptions(bytes_per_pack=limit)
        plan = treefold.HierarchicalCopyAllReduce().plan(pairs, options=options, walked=True)
        assert [nbytes // 4 for nbytes in {hop.pack: hop.nbytes for hop in plan.hops}.values()] == ours
