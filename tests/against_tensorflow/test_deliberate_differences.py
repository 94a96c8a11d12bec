"""Where treefold differs from TensorFlow on purpose: both sides of each difference, as they are today.

TensorFlow's side is that of the release these tests run with; where only an older one shows it, the test says which.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops

import treefold
from treefold.plan.ir import Combine

THEIR_SUM, THEIR_MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def named(count, length=1, dtype=np.float32):
    """Return one array per replica that names its owner: 2**replica."""
    return [np.full(length, 2**replica, dtype) for replica in range(count)]


def pack_nbytes(plan):
    return list({hop.pack: hop.nbytes for hop in plan.hops}.values())


def their_folds(on_devices, count):
    """Return, for each of ``count`` + 1 values, on which devices TensorFlow adds up how many tensors."""
    with tf.Graph().as_default() as graph:
        value = on_devices(named(count))
        tf.distribute.HierarchicalCopyAllReduce(0).batch_reduce(THEIR_SUM, [(value, value)] * (count + 1))
    sums = [node for node in graph.get_operations() if node.type == "AddN"]
    places = [(node.device.rpartition("device:")[2].lower(), len(node.inputs)) for node in sums]
    return [sorted(places[start : start + 3]) for start in range(0, len(places), 3)]


def our_folds(count):
    value = treefold.PerReplica(named(count))
    plan = treefold.HierarchicalCopyAllReduce(0).plan([(value, value)] * (count + 1), walked=True)
    folds = [action for step in plan.steps for action in step.actions if isinstance(action, Combine)]
    places = [(fold.pack, plan.buffers[fold.target.buffer].device, len(fold.sources)) for fold in folds]
    return [sorted(place[1:] for place in places if place[0] == pack) for pack in range(plan.num_packs)]


class TestOneDestination:
    def test_gives_a_mirrored_of_one_and_not_a_bare_tensor(self, on_devices):
        theirs = tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(named(2)), "/cpu:1")
        assert isinstance(theirs, tf.Tensor)
        ours = treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(named(2)), "/cpu:1")
        assert isinstance(ours, treefold.Mirrored)
        assert (ours.devices, ours[0].tolist(), theirs.numpy().tolist()) == (("cpu:1",), [3.0], [3.0])


class TestOddDeviceCounts:
    @pytest.mark.parametrize("num_packs", [0, 1, 2])
    @pytest.mark.parametrize("count", [3, 5, 7])
    def test_lose_no_replica(self, on_devices, count, num_packs):
        value = on_devices(named(count))
        theirs = tf.distribute.HierarchicalCopyAllReduce(num_packs).batch_reduce(THEIR_SUM, [(value, value)])[0]
        assert [component.numpy().tolist() for component in theirs.values] == [[2 ** (count - 1) - 1]] * count
        value = treefold.PerReplica(named(count))
        ours = treefold.HierarchicalCopyAllReduce(num_packs).batch_reduce("sum", [(value, value)])[0]
        assert [component.tolist() for component in ours.values] == [[2**count - 1]] * count

    @pytest.mark.parametrize("count", [3, 5, 7])
    def test_divide_a_mean_by_what_was_added(self, on_devices, count):
        """TensorFlow divides the sum without the last replica by the number with it, treefold gives the mean."""
        value = on_devices(named(count))
        theirs = tf.distribute.HierarchicalCopyAllReduce().batch_reduce(THEIR_MEAN, [(value, value)])[0]
        assert theirs.values[0].numpy().tolist() == [np.float32(2 ** (count - 1) - 1) / np.float32(count)]
        ours = treefold.all_reduce(named(count), "mean")
        assert ours[0].tolist() == [np.float32(2**count - 1) / np.float32(count)]

    @pytest.mark.parametrize(("count", "theirs", "ours"), [(5, [2, 2], [2, 3]), (7, [3, 3], [3, 4])])
    def test_fall_into_groups_that_hold_everyone(self, on_devices, count, theirs, ours):
        """TensorFlow makes two groups of ⌊n/2⌋, treefold groups of ⌈n/2⌉ and ⌊n/2⌋; the last fold joins the two."""
        for folds, groups in ((their_folds(on_devices, count), theirs), (our_folds(count), ours)):
            assert len(folds) == count + 1
            assert [sorted(size for _, size in pack) for pack in folds] == [sorted([2, *groups])] * (count + 1)


class TestEvenDeviceCounts:
    @pytest.mark.parametrize("count", [4, 6, 8])
    def test_keep_the_trees_of_tensorflow(self, on_devices, count):
        assert our_folds(count) == their_folds(on_devices, count)


class TestTheLastPack:
    @pytest.mark.parametrize(
        ("length", "num_packs", "theirs", "ours"),
        [
            (10, 3, [3, 3, 4], [4, 3, 3]),
            (10, 4, [2, 2, 2, 4], [3, 3, 2, 2]),
            (15, 8, [1, 1, 1, 1, 1, 1, 1, 8], [2, 2, 2, 2, 2, 2, 2, 1]),
            (3, 5, [0, 0, 0, 0, 3], [1, 1, 1]),
        ],
    )
    def test_does_not_take_the_whole_remainder(self, length, num_packs, theirs, ours):
        """TensorFlow's last pack takes all that is left, treefold's differ by one element and none is empty."""
        packer = cross_device_ops._ConcatAndSplitPacker(num_packs)
        [packs] = packer.pack([[(tf.zeros([length]), None)]])
        assert [int(pack.shape[0]) for pack, _ in packs] == theirs
        value = treefold.PerReplica(named(2, length))
        plan = treefold.HierarchicalCopyAllReduce(num_packs).plan(value, value, walked=True)
        assert [nbytes // 4 for nbytes in pack_nbytes(plan)] == ours


class TestSmallGradients:
    def test_are_still_grouped(self):
        limits = {"agg_small_grads_max_bytes": 4, "agg_small_grads_max_group": 10}
        with pytest.raises(TypeError, match="unexpected keyword argument 'agg_small_grads_max_bytes'"):
            cross_device_ops.AllReduceCrossDeviceOps("hierarchical_copy", 0, **limits)
        ops = treefold.AllReduceCrossDeviceOps("hierarchical_copy", 0, **limits)
        value = treefold.PerReplica(named(2))
        assert ops.plan([(value, value)] * 3, walked=True).num_packs == 1

    @pytest.mark.parametrize(("count", "groups"), [(12, [10, 2]), (15, [10, 5]), (30, [10, 10, 10])])
    def test_do_not_exceed_the_maximum_of_their_group(self, count, groups):
        """Groups of at most 10 hold up to 12 values in TensorFlow 2.1 (30 give 12, 12, 6), and 10 in treefold."""
        ops = treefold.AllReduceCrossDeviceOps("hierarchical_copy", 0, agg_small_grads_max_bytes=4)
        value = treefold.PerReplica(named(2))
        assert [nbytes // 4 for nbytes in pack_nbytes(ops.plan([(value, value)] * count, walked=True))] == groups

    def test_are_grouped_per_dtype_wherever_they_stand(self):
        """TensorFlow 2.1 groups neighbours of float32 only, treefold every dtype and across larger values."""
        ops = treefold.AllReduceCrossDeviceOps("hierarchical_copy", 0, agg_small_grads_max_bytes=8)
        arrays = [named(2, 2), named(2, 2, np.float16), named(2, 100), named(2, 2), named(2, 4, np.float16)]
        pairs = [(treefold.PerReplica(a), treefold.PerReplica(a)) for a in arrays]
        assert pack_nbytes(ops.plan(pairs, walked=True)) == [16, 400, 12]


class TestAnEmptyBatch:
    def test_is_an_empty_list(self):
        with pytest.raises(IndexError, match="list index out of range"):
            tf.distribute.ReductionToOneDevice().batch_reduce(THEIR_SUM, [])
        assert treefold.ReductionToOneDevice().batch_reduce("sum", []) == []


class TestNumPacks:
    @pytest.mark.parametrize("name", ["HierarchicalCopyAllReduce", "NcclAllReduce"])
    def test_of_zero_means_no_packing(self, name):
        """TensorFlow 2.0 refused 0; this release and treefold take it, and treefold's values then travel alone."""
        assert getattr(tf.distribute, name)(0)._num_packs == 0
        value = treefold.PerReplica(named(2))
        assert getattr(treefold, name)(0).plan([(value, value)] * 3, walked=True).num_packs == 3
        assert getattr(treefold, name)(1).plan([(value, value)] * 3, walked=True).num_packs == 1

    @pytest.mark.parametrize(
        ("name", "theirs"),
        [
            ("HierarchicalCopyAllReduce", "HierarchicalCopy requires num_packs >= 0, but -1 is specified"),
            ("NcclAllReduce", "NCCL all-reduce requires num_packs >= 0, but -1 is specified"),
        ],
    )
    def test_below_zero_is_refused_by_both(self, name, theirs):
        with pytest.raises(ValueError, match=rf"^{theirs}$"):
            getattr(tf.distribute, name)(-1)
        with pytest.raises(ValueError, match=rf"^{name} got num_packs=-1\. It takes 0 \(no packing\), a positive"):
            getattr(treefold, name)(-1)


class TestMixedDtypes:
    @pytest.mark.parametrize("num_packs", [1, 2])
    def test_are_packed_per_dtype(self, on_devices, num_packs):
        """TensorFlow cannot lay two dtypes behind each other, treefold makes packs of each."""
        arrays = [named(2, 4), named(2, 4, np.float16), named(2, 4)]
        values = [on_devices(replicas) for replicas in arrays]
        with pytest.raises(tf.errors.InvalidArgumentError, match="was expected to be a float tensor but is a half"):
            tf.distribute.HierarchicalCopyAllReduce(num_packs).batch_reduce(THEIR_SUM, [(v, v) for v in values])
        values = [treefold.PerReplica(replicas) for replicas in arrays]
        ops = treefold.HierarchicalCopyAllReduce(num_packs)
        ours = ops.batch_reduce("sum", [(v, v) for v in values])
        assert [mirrored[1].dtype.name for mirrored in ours] == ["float32", "float16", "float32"]
        assert [mirrored[1].tolist() for mirrored in ours] == [[3.0] * 4] * 3
        assert ops.plan([(v, v) for v in values], walked=True).num_packs == 2 * num_packs


class TestAListOfDevices:
    def test_is_a_destination(self, on_devices):
        devices = ["/cpu:1", "/cpu:0"]
        with pytest.raises(ValueError, match=r"^destinations must be one of a `DistributedValues` object"):
            tf.distribute.ReductionToOneDevice().reduce(THEIR_SUM, on_devices(named(2)), devices)
        ours = treefold.ReductionToOneDevice().reduce("sum", treefold.PerReplica(named(2)), devices)
        assert ours.devices == ("cpu:1", "cpu:0")
        assert [component.tolist() for component in ours] == [[3.0], [3.0]]


class TestOneReplica:
    def test_is_validated_like_several(self, on_devices):
        """TensorFlow returns a value already in place before it looks at ``reduce_op``, treefold looks first."""
        value = on_devices(named(1))
        theirs = tf.distribute.ReductionToOneDevice().reduce("nonsense", value, value)
        assert theirs.numpy().tolist() == [1.0]
        value = treefold.PerReplica(named(1))
        with pytest.raises(ValueError, match=r"^The reduce op is 'nonsense'\. It takes \"SUM\", \"MEAN\""):
            treefold.ReductionToOneDevice().reduce("nonsense", value, value)

    def test_is_copied(self, on_devices):
        """A batch of TensorFlow returns the very tensor that came in, treefold a copy of it."""
        value = on_devices(named(1))
        [theirs] = tf.distribute.ReductionToOneDevice().batch_reduce(THEIR_SUM, [(value, value)])
        assert theirs is value.values[0]
        array = named(1)[0]
        [ours] = treefold.ReductionToOneDevice().batch_reduce("sum", [(array, array)])
        assert ours[0].tolist() == [1.0]
        assert not np.shares_memory(ours[0], array)

    def test_is_written_where_out_says(self):
        array = named(1)[0]
        value = treefold.PerReplica([array])
        ours = treefold.ReductionToOneDevice().reduce("sum", value, value, out=value)
        assert ours[0] is array

    def test_has_the_mean_of_its_dtype_like_several(self, on_devices):
        """The MEAN of one int32 is int32 in TensorFlow where it lies, float64 elsewhere; in treefold always float64."""
        value = on_devices(named(1, dtype=np.int32))
        ops = tf.distribute.ReductionToOneDevice()
        assert [ops.reduce(THEIR_MEAN, value, where).dtype.name for where in ("/cpu:0", "/cpu:1")] == [
            "int32",
            "float64",
        ]
        ops, value = treefold.ReductionToOneDevice(), treefold.PerReplica(named(1, dtype=np.int32))
        assert [ops.reduce("mean", value, where)[0].dtype.name for where in ("/cpu:0", "/cpu:1")] == ["float64"] * 2


class TestReduceOp:
    @pytest.mark.parametrize("op", [None, "MAXIMUM", 3])
    def test_is_checked_on_the_all_reduce_path(self, on_devices, op):
        """TensorFlow takes whatever is not MEAN for SUM there, treefold refuses what names no op."""
        value = on_devices(named(2))
        [theirs] = tf.distribute.HierarchicalCopyAllReduce().batch_reduce(op, [(value, value)])
        assert theirs.values[0].numpy().tolist() == [3.0]
        value = treefold.PerReplica(named(2))
        with pytest.raises(
            ValueError, match=rf"^The reduce op is {op!r}\. It takes \"SUM\", \"MEAN\", \"MIN\", \"MAX\""
        ):
            treefold.HierarchicalCopyAllReduce().batch_reduce(op, [(value, value)])

    def test_of_tensorflow_is_taken_by_treefold(self):
        value = treefold.PerReplica(named(2))
        ours = treefold.HierarchicalCopyAllReduce().reduce(THEIR_MEAN, value, value)
        assert ours[0].tolist() == [1.5]


class TestIntegerMean:
    @pytest.mark.parametrize(
        ("dtype", "numbers", "theirs", "ours"),
        [
            ("uint8", (200, 100), 22.0, 150.0),
            ("int8", (100, 100), -28.0, 100.0),
            ("int32", (2**31 - 1, 1), -(2.0**30), 2.0**30),
            ("int64", (2**62, 2**62), -(2.0**62), 2.0**62),
        ],
    )
    def test_is_that_of_the_true_sum(self, on_devices, dtype, numbers, theirs, ours):
        """TensorFlow divides a sum that has wrapped, treefold the true one; the dtype of the quotient is the same."""
        arrays = [np.array([number], dtype) for number in numbers]
        quotient = tf.distribute.ReductionToOneDevice().reduce(THEIR_MEAN, on_devices(arrays), "/cpu:0").numpy()
        assert quotient.tolist() == [theirs]
        mean = treefold.ReductionToOneDevice().reduce("mean", treefold.PerReplica(arrays), "/cpu:0")[0]
        assert (mean.tolist(), mean.dtype) == ([ours], quotient.dtype)


class TestAMissingNccl:
    def test_falls_back_as_documented(self, on_devices):
        """TensorFlow's batch fails with "No OpKernel", treefold's is reduced on one device, as the plan says."""
        value = on_devices(named(3))
        with pytest.raises(tf.errors.InvalidArgumentError, match="No OpKernel was registered to support Op 'NcclAll"):
            tf.distribute.NcclAllReduce().batch_reduce(THEIR_SUM, [(value, value)])
        value = treefold.PerReplica(named(3))
        [ours] = treefold.NcclAllReduce().batch_reduce("sum", [(value, value)])
        assert [component.tolist() for component in ours] == [[7.0]] * 3
        assert ours.plan.notes[0].endswith(": each pack is reduced on one device, the documented fallback")
