"""Behaviour of TensorFlow's classes on which programs rely: names, arguments, errors, subclasses, traces."""

import copy
import gc
import pickle
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.ops import script_ops

import treefold
from treefold.errors import ArgumentError, CallError, MismatchError
from treefold.execution import tensorflow_graphs as operation
from treefold.tensorflow import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    errors,
)

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
ALL = [ReductionToOneDevice, AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce]
WRAPPED = pytest.mark.parametrize("wrapped", [lambda function: function, tf.function], ids=["eager", "traced"])


def owned(count, shape=(3,), dtype="float32"):
    """Return one array per replica; replica r brings 2**r."""
    return [np.full(shape, 2**replica, dtype) for replica in range(count)]


class Unnamed(CrossDeviceOps):
    """Says nothing of how to reduce."""


class SumOnFirst(CrossDeviceOps):
    """Sums on the first replica's device, as a subclass of TensorFlow's class would be written."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        self.seen.append((reduce_op, type(per_replica_value), options))
        return self.broadcast(tf.add_n(per_replica_value.values), destinations)


class TestClasses:
    @pytest.mark.parametrize("ops", [HierarchicalCopyAllReduce, NcclAllReduce], ids=lambda ops: ops.__name__)
    def test_all_reduces_are_all_reduce_cross_device_ops(self, ops):
        assert isinstance(ops(), AllReduceCrossDeviceOps)

    def test_each_keeps_the_ops_of_its_own_name(self):
        made = [type(ops()._ops).__name__ for ops in ALL]
        assert made == ["ReductionToOneDevice", "AllReduceCrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce"]

    @pytest.mark.parametrize("ops", ALL, ids=lambda ops: ops.__name__)
    def test_hold_nothing_of_their_own_that_cannot_be_copied(self, ops):
        made = ops()
        own = {name: value for name, value in vars(made).items() if name != "_ops"}
        for copied in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):  # noqa: S301 - our own
            other = ops()
            vars(other).update(copied)
            result = tf.function(lambda value, other=other: other.reduce(SUM, value, "cpu:0"))(tf.constant(2.0))
            assert float(result) == 2.0

    @pytest.mark.parametrize("ops", [3, "nccl", treefold.HierarchicalCopyAllReduce], ids=repr)
    def test_base_takes_ops_of_treefold(self, ops):
        with pytest.raises(
            ArgumentError, match=r"^ops is .*\. It takes an ops object of treefold, such as treefold\.Hierarchical"
        ):
            CrossDeviceOps(ops)


class TestSubclasses:
    @WRAPPED
    def test_reduce_by_what_they_define(self, wrapped, on_devices):
        ops = SumOnFirst()
        result = wrapped(lambda value: ops.reduce(SUM, value, "cpu:1"))(on_devices(owned(3)))
        assert result.numpy().tolist() == [7.0] * 3
        assert ops.seen[0][0] is SUM

    def test_get_distributed_values_and_options(self):
        ops = SumOnFirst()
        assert float(ops.reduce(SUM, 5.0, "cpu:0")) == 5.0
        [(_, kind, options)] = ops.seen
        assert issubclass(kind, tf.distribute.DistributedValues)
        assert (options.bytes_per_pack, options.timeout_seconds) == (0, None)

    @WRAPPED
    def test_serve_a_strategy(self, wrapped, on_cpus):
        ops = SumOnFirst()
        strategy = on_cpus(3, ops)

        def total():
            context = tf.distribute.get_replica_context()
            x = tf.constant(2.0) ** tf.cast(context.replica_id_in_sync_group, "float32")
            return context.all_reduce("SUM", [x, 10 * x])

        one, ten = wrapped(lambda: strategy.run(total))()
        assert [[float(part) for part in value.values] for value in (one, ten)] == [[7.0] * 3, [70.0] * 3]
        assert len(ops.seen) == 2

    @WRAPPED
    def test_gather_and_broadcast_without_defining_it(self, wrapped, on_devices):
        value = on_devices(owned(2, (1,)))
        assert wrapped(lambda value: Unnamed()._gather(value, "cpu:1", 0))(value).numpy().tolist() == [1.0, 2.0]
        copies = wrapped(lambda value: list(Unnamed().broadcast(value.values[1], ["cpu:0", "cpu:2"]).values))(value)
        assert [part.numpy().tolist() for part in copies] == [[2.0], [2.0]]

    def test_that_define_nothing_say_so(self, on_devices):
        with pytest.raises(
            NotImplementedError,
            match=r"^Unnamed has no ops and no reduce_implementation\. Define reduce_implementation, or hand ops of ",
        ):
            Unnamed().batch_reduce(SUM, [(on_devices(owned(2)), "cpu:0")])

    def test_are_handed_no_destinations_that_are_none(self):
        ops = SumOnFirst()
        with pytest.raises(ArgumentError, match=r"^The destination is 7\. "):
            ops.reduce(SUM, 5.0, 7)
        assert ops.seen == []

    def test_may_add_to_what_a_class_of_ours_does(self, on_devices):
        class Doubled(HierarchicalCopyAllReduce):
            """Twice the sum."""

            def reduce_implementation(self, *arguments):
                return 2 * super().reduce_implementation(*arguments)

        assert Doubled().reduce(SUM, on_devices(owned(3)), "cpu:0").numpy().tolist() == [14.0] * 3

    def test_are_shown_by_their_name(self):
        assert repr(SumOnFirst()) == "SumOnFirst()"


class TestOptions:
    def test_may_come_as_experimental_hints(self, way, on_devices):
        """TensorFlow 2.2 and 2.3 call them that."""
        hints = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=4)
        value, ops = on_devices(owned(3)), HierarchicalCopyAllReduce()
        total = way(lambda value: ops.reduce(SUM, value, "cpu:0", experimental_hints=hints), value)
        [again] = way(lambda value: ops.batch_reduce(SUM, [(value, "cpu:0")], experimental_hints=hints), value)
        assert total.numpy().tolist() == again.numpy().tolist() == [7.0] * 3

    def test_under_both_names_are_refused(self, on_devices):
        hints = tf.distribute.experimental.CommunicationOptions()
        with pytest.raises(CallError, match=r"^options and experimental_hints are two names of one argument\."):
            HierarchicalCopyAllReduce().reduce(SUM, on_devices(owned(2)), "cpu:0", hints, experimental_hints=hints)

    @pytest.mark.parametrize(
        "options", [tf.distribute.experimental.CommunicationOptions, treefold.CommunicationOptions], ids=["tf", "ours"]
    )
    def test_with_a_timeout_reduce_and_warn_once(self, options, way, on_devices):
        """TensorFlow's own example of options has one, and its classes drop it."""
        errors.warn_without_timeouts.cache_clear()
        value, given = on_devices(owned(3)), options(timeout_seconds=120.0)
        with pytest.warns(RuntimeWarning, match=r"^timeout_seconds has no effect on treefold's reductions: "):
            total = way(lambda value: HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0", given), value)
        again = way(lambda value: HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0", given), value)
        assert total.numpy().tolist() == again.numpy().tolist() == [7.0] * 3


class TestMismatches:
    def test_are_errors_of_both_kinds(self, on_devices):
        value = on_devices([np.zeros(2, "float32"), np.zeros(3, "float32")])
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            HierarchicalCopyAllReduce().reduce(SUM, value, "cpu:0")
        error = caught.value
        assert isinstance(error, MismatchError)
        sentence = "Replica 1 has float32 (3,) where replica 0 has float32 (2,). "
        assert str(error).startswith(sentence)
        assert error.message == str(error)
        assert (error.op, error.node_def, error.error_code) == (None, None, tf.errors.INVALID_ARGUMENT)

    def test_survive_a_process_boundary(self):
        error = pickle.loads(pickle.dumps(errors.ReplicaMismatchError("Replica 1 differs.")))  # noqa: S301 - our own
        assert type(error) is errors.ReplicaMismatchError
        assert str(error) == "Replica 1 differs."

    def test_keep_their_class_inside_tf_function(self, on_devices):
        value = on_devices([np.zeros(2, "float32"), np.zeros(3, "float64")])
        with pytest.raises(errors.ReplicaMismatchError, match=r"Replica 1 has float64 \(3,\)"):
            tf.function(lambda value: ReductionToOneDevice(accumulation_fn=tf.add_n).reduce(SUM, value, "cpu:0"))(value)

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ((2, 4), r"Dimension 1 in both shapes must be equal"),
            ((2,), r"Ranks of all input tensors should match"),
        ],
        ids=str,
    )
    def test_of_a_gather_say_what_tensorflow_says(self, other, words, on_devices):
        """After treefold's sentence; programs look for these words."""
        value = on_devices([np.zeros((1, 3), "float32"), np.zeros(other, "float32")])
        sentence = r"^Replica 1 has float32 .* Shapes may differ along axis 0 only; reshape one of them\. "
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{sentence}\(TensorFlow: {words}\)$"):
            HierarchicalCopyAllReduce()._gather(value, "cpu:0", 0)

    def test_of_dtypes_in_a_gather_have_no_words_to_add(self, on_devices):
        value = on_devices([np.zeros(3, "float32"), np.zeros(3, "float64")])
        with pytest.raises(errors.ReplicaMismatchError, match=r"cast one of them\.$"):
            HierarchicalCopyAllReduce()._gather(value, "cpu:0", 0)


def quantized():
    return tf.raw_ops.QuantizeV2(input=[0.25, 0.5], min_range=-1.0, max_range=1.0, T=tf.qint8).output


class TestUnusualTensors:
    @pytest.mark.parametrize(
        ("dtype", "make"),
        [
            ("string", lambda: tf.constant(["a", "b"])),
            ("qint8", quantized),
            (
                "variant",
                lambda: tf.raw_ops.TensorListReserve(element_shape=[1], num_elements=2, element_dtype=tf.float32),
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_that_have_no_sum_are_refused_by_the_name_of_their_dtype(self, dtype, make, way):
        ops = HierarchicalCopyAllReduce()
        with pytest.raises(treefold.errors.DtypeError, match=rf"{dtype} cannot be reduced\. Reducible are float16, "):
            way(lambda value: ops.reduce(SUM, value, "cpu:0"), PerReplica([make(), make()]))

    @pytest.mark.parametrize(
        "value",
        [tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([1.0, 0.0])],
        ids=lambda value: type(value).__name__,
    )
    def test_of_several_parts_are_refused_in_words(self, value):
        name = type(value).__name__
        sentence = rf"is a {name}, which is made of several tensors\. It takes tensors and IndexedSlices: make it dense"
        for call in (
            lambda: HierarchicalCopyAllReduce().reduce(SUM, PerReplica([value, value]), "cpu:0"),
            lambda: HierarchicalCopyAllReduce()._gather(PerReplica([value, value]), "cpu:0", 0),
        ):
            with pytest.raises(ArgumentError, match=f"^per_replica_value {sentence}"):
                call()
        with pytest.raises(ArgumentError, match=f"^tensor {sentence}"):
            HierarchicalCopyAllReduce().broadcast(value, "cpu:0")

    def test_that_are_quantized_are_gathered(self, way):
        value = PerReplica([quantized(), quantized()])
        gathered = way(lambda value: HierarchicalCopyAllReduce()._gather(value, "cpu:0", 0), value)
        assert (gathered.dtype, gathered.shape) == (tf.qint8, (4,))


def registered():
    """Return how many functions TensorFlow keeps for its graphs to call."""
    gc.collect()
    return script_ops._py_funcs.size()


@pytest.mark.parametrize("dtype", ["float32", "int64"])
class TestRetraces:
    """Where TensorFlow's library has no interface for kernels, so that graphs call Python."""

    @pytest.fixture(autouse=True)
    def without_operation(self, monkeypatch):
        monkeypatch.setattr(operation, "ensure_registered", lambda: False)

    def test_share_one_function(self, dtype, on_devices):
        ops = HierarchicalCopyAllReduce()
        total = tf.function(lambda value: ops.reduce(SUM, value, "cpu:0"), reduce_retracing=False)
        before = registered()
        for length in range(1, 9):
            assert float(total(on_devices(owned(3, (length,), dtype)))[-1]) == 7.0
        assert total.experimental_get_tracing_count() == 8
        assert registered() == before + 1

    def test_leave_nothing_when_function_and_ops_are_gone(self, dtype, on_devices):
        value, before = on_devices(owned(2, dtype=dtype)), registered()
        for _ in range(4):
            ops = ReductionToOneDevice()
            assert float(tf.function(lambda value, ops=ops: ops.reduce(SUM, value, "cpu:0"))(value)[0]) == 3.0
        del ops
        assert registered() == before

    def test_call_functions_whose_ops_are_gone(self, dtype, on_devices):
        """Functions that a graph calls live as long as it does, in loops and in functions called by functions, too."""

        def inner(value):
            return tf.while_loop(
                lambda index, _: index < 2,
                lambda index, _: (index + 1, ReductionToOneDevice().reduce(SUM, value, "cpu:0")),
                [tf.constant(0), tf.zeros(3, dtype)],
            )[1]

        inner = tf.function(inner)
        outer = tf.function(lambda value: inner(value) + 1)
        value = on_devices(owned(3, dtype=dtype))
        assert outer(value).numpy().tolist() == [8.0] * 3
        gc.collect()
        assert outer(value).numpy().tolist() == [8.0] * 3
        del outer
        gc.collect()
        assert tf.function(lambda value: inner(value) + 2)(value).numpy().tolist() == [9.0] * 3

    def test_of_more_kinds_than_are_remembered_go_on(self, dtype, on_devices):
        ops = HierarchicalCopyAllReduce()
        totals = []
        for number in range(70):
            options = treefold.CommunicationOptions(bytes_per_pack=number + 1)
            totals.append(tf.function(lambda value, options=options: ops.reduce(SUM, value, "cpu:0", options)))
        value = on_devices(owned(2, dtype=dtype))
        assert [float(total(value)[0]) for total in totals + totals] == [3.0] * 140

    def test_are_called_by_a_saved_model_while_the_ops_live(self, dtype, tmp_path, on_devices):
        """A function that was traced before it is saved is gone, and its SavedModel calls on."""
        module, ops = tf.Module(), HierarchicalCopyAllReduce()
        module.total = tf.function(lambda *parts: ops.reduce(SUM, PerReplica(parts), "cpu:0"))
        parts = on_devices(owned(3, dtype=dtype)).values
        assert module.total(*parts).numpy().tolist() == [7.0] * 3
        tf.saved_model.save(module, str(tmp_path))
        del module
        gc.collect()
        assert tf.saved_model.load(str(tmp_path)).total(*parts).numpy().tolist() == [7.0] * 3

    def test_in_a_graph_of_sessions_live_as_long_as_the_graph(self, dtype):
        before = registered()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            with tf.device("cpu:0"):
                parts = [tf.constant(1, dtype), tf.constant(2, dtype)]
            total = HierarchicalCopyAllReduce().reduce(SUM, PerReplica(parts), "cpu:0")
            gc.collect()
            assert session.run(total) == 3.0
        del session, total, parts
        assert registered() == before


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = tf.function(lambda: HierarchicalCopyAllReduce().reduce(SUM, 1.0, "cpu:0"))()
    assert total == 1.0
