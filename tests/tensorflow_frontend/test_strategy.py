"""``MirroredStrategy`` with treefold's ops: custom loops, embeddings, mixed precision, nests; what is TensorFlow's."""

import importlib
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica

import treefold.tensorflow
from treefold.errors import FrameworkError
from treefold.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import keras

MODES = pytest.mark.parametrize("wrapped", [lambda function: function, tf.function], ids=["eager", "traced"])


class Counting(HierarchicalCopyAllReduce):
    """Counts the calls that reach these ops."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def _reduce(self, *args, **kinds):
        self.calls += 1
        return super()._reduce(*args, **kinds)


def contribution(dtype="float32"):
    return tf.cast(2 ** tf.distribute.get_replica_context().replica_id_in_sync_group, dtype)


def trained(strategy, make_variables, loss_of, wrapped, steps=3):
    """Return the variables after some steps of a custom loop, gradients averaged over the replicas."""
    with strategy.scope():
        variables = make_variables()

    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(variables)
        gradients = tape.gradient(loss, variables)
        means = tf.distribute.get_replica_context().all_reduce("MEAN", gradients)
        for variable, mean in zip(variables, means, strict=True):
            if isinstance(mean, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(0.5 * mean.values, mean.indices))
            else:
                variable.assign_sub(0.5 * mean)

    run = wrapped(lambda: strategy.run(step))
    for _ in range(steps):
        run()
    return variables


class TestAllReduce:
    @MODES
    def test_takes_nests(self, wrapped, on_cpus):
        strategy = on_cpus(3, HierarchicalCopyAllReduce())

        def step():
            nest = {"a": contribution(), "b": (tf.fill([2], contribution("float16")), [contribution("float64")])}
            return tf.distribute.get_replica_context().all_reduce("SUM", nest)

        result = wrapped(lambda: strategy.run(step))()
        assert [float(part) for part in result["a"].values] == [7.0] * 3
        assert [part.numpy().tolist() for part in result["b"][0].values] == [[7.0, 7.0]] * 3
        assert {part.dtype for part in result["b"][1][0].values} == {tf.float64}

    @MODES
    def test_reaches_these_ops(self, wrapped, on_cpus):
        ops = Counting()
        strategy = on_cpus(2, ops)
        value = wrapped(
            lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", contribution()))
        )
        assert [float(part) for part in value().values] == [3.0, 3.0]
        assert ops.calls == 1

    def test_of_int32_is_tensorflows_own(self, on_cpus):
        """MirroredStrategy reduces int32 by ops of its own, whatever it was given."""
        ops = Counting()
        strategy = on_cpus(3, ops)
        total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", contribution("int32")))
        assert [int(part) for part in total.values] == [7] * 3
        assert ops.calls == 0

    def test_takes_options(self, on_cpus):
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=50 * 1024 * 1024)
        strategy = on_cpus(3, HierarchicalCopyAllReduce())

        def step():
            return tf.distribute.get_replica_context().all_reduce("MEAN", contribution(), options=options)

        assert [float(part) for part in strategy.run(step).values] == [float(np.float32(7 / 3))] * 3


class TestStrategyReduce:
    def test_to_a_cpu_is_tensorflows_own(self, on_cpus):
        """The host takes the sum of a loss by ops of TensorFlow's, whatever it was given; the result is right."""
        ops = Counting()
        strategy = on_cpus(3, ops)
        losses = strategy.run(contribution)
        assert float(strategy.reduce("SUM", losses, axis=None)) == 7.0
        assert ops.calls == 0

    def test_batch_reduce_to_reaches_these_ops(self, on_cpus):
        ops = Counting()
        strategy = on_cpus(3, ops)
        with strategy.scope():
            variable = tf.Variable(100.0)
        gradients = strategy.run(contribution)
        [total] = strategy.extended.batch_reduce_to("SUM", [(gradients, variable)])
        assert [float(part) for part in total.values] == [7.0] * 3
        assert [float(part) for part in variable.values] == [100.0] * 3
        assert ops.calls == 1


class TestCustomLoop:
    @MODES
    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_with_float16_and_float32_variables(self, count, wrapped, on_cpus):
        """A batch of two dtypes crashes TensorFlow's packing; every gradient is 2**r, of mean (2**n - 1)/n."""
        variables = trained(
            on_cpus(count, HierarchicalCopyAllReduce()),
            lambda: [tf.Variable(tf.zeros([4], "float16")), tf.Variable(tf.zeros([2, 2]))],
            lambda variables: (
                sum(tf.reduce_sum(v * contribution(v.dtype)) for v in variables if v.dtype == tf.float32)
                + tf.cast(tf.reduce_sum(variables[0] * contribution("float16")), "float32")
            ),
            wrapped,
        )
        for variable in variables:
            dtype = variable.dtype.as_numpy_dtype
            expected = dtype(0)
            for _ in range(3):
                expected -= dtype(0.5) * dtype((2**count - 1) / count)
            for component in variable.values:
                assert np.array_equal(component.numpy(), np.full(component.shape, expected, dtype))

    @MODES
    def test_with_an_embedding(self, wrapped, on_cpus):
        def loss_of(variables):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.reduce_sum(tf.gather(variables[0], tf.range(replica + 1)) * contribution())

        table = trained(
            on_cpus(3, HierarchicalCopyAllReduce()), lambda: [tf.Variable(tf.zeros([4, 2]))], loss_of, wrapped, steps=1
        )[0]
        thirds = [-0.5 * sum(float(np.float32(x / 3)) for x in rows) for rows in ((1, 2, 4), (2, 4), (4,), ())]
        for component in table.values:
            assert np.allclose(component.numpy(), np.repeat(np.array(thirds)[:, None], 2, 1), atol=1e-6)

    def test_keras_fits_an_embedding(self, on_cpus):
        words = np.random.default_rng(5).integers(0, 20, (48, 6))
        labels = (words.sum(axis=1) > 57).astype("float64")

        def fitted(strategy):
            keras.utils.set_random_seed(3)
            with strategy.scope():
                layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
                for layer in layers:
                    layer.dtype_policy = keras.DTypePolicy("float64")
                model = keras.Sequential([keras.Input((6,), dtype="int64"), *layers])
                model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
            model.fit(words, labels, 24, 2, shuffle=False, verbose=0)
            return model.get_weights()

        ours, plain = fitted(on_cpus(3, ReductionToOneDevice())), fitted(tf.distribute.get_strategy())
        assert max(float(np.max(np.abs(one - two))) for one, two in zip(ours, plain, strict=True)) <= 1e-6


class TestSavedModel:
    def test_holds_the_plan_as_ops(self, tmp_path):
        """Graphs traced while a model is saved run in any process: they do not call into Python."""

        class Module(tf.Module):
            """Reduces three tensors."""

            @tf.function(input_signature=[tf.TensorSpec([2])] * 3)
            def total(self, *parts):
                return HierarchicalCopyAllReduce().reduce("SUM", PerReplica(parts), "cpu:0")

        tf.saved_model.save(Module(), str(tmp_path))
        loaded = tf.saved_model.load(str(tmp_path))
        parts = [tf.fill([2], 2.0**replica) for replica in range(3)]
        assert loaded.total(*parts).numpy().tolist() == [7.0, 7.0]
        graph = loaded.total.get_concrete_function(*[tf.TensorSpec([2])] * 3).graph.as_graph_def()
        names = {node.op for function in graph.library.function for node in function.node_def}
        assert "AddV2" in names
        assert not [name for name in names if name.startswith(("PyFunc", "EagerPyFunc", "Treefold"))]

    def test_of_what_was_traced_before_holds_the_operation(self, tmp_path):
        """If it is attached as it was traced; it loads where treefold has registered that, as in this process."""
        module, parts = tf.Module(), [tf.fill([2], 2.0**replica) for replica in range(3)]
        total = tf.function(lambda *parts: HierarchicalCopyAllReduce().reduce("SUM", PerReplica(parts), "cpu:0"))
        module.total = total.get_concrete_function(*parts)
        assert "TreefoldFold" in {operation.type for operation in module.total.graph.get_operations()}
        tf.saved_model.save(module, str(tmp_path))
        assert tf.saved_model.load(str(tmp_path)).total(*parts).numpy().tolist() == [7.0] * 2


class TestPublicNames:
    def test_are_what_dir_shows(self):
        assert sorted(dir(treefold.tensorflow)) == sorted(treefold.tensorflow.__all__)


class TestVersions:
    def test_a_tensorflow_that_is_too_old_is_refused(self, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(tf, "__version__", "2.15.1")
            with pytest.raises(
                FrameworkError, match=r"^treefold\.tensorflow found TensorFlow 2\.15\.1\. It takes 2\.16 or "
            ):
                importlib.reload(treefold.tensorflow)
        importlib.reload(treefold.tensorflow)
