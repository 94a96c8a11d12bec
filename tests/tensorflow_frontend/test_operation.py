"""The operation that folds in TensorFlow's graphs."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.framework import op_def_library

from treefold.dtypes import FOLDABLE
from treefold.execution import native
from treefold.execution import tensorflow_graphs as operation
from treefold.tensorflow import HierarchicalCopyAllReduce

LARGE = 1 << 17


class TestRegistration:
    def test_happens_once_whoever_asks(self, programs, tmp_path):
        """TensorFlow ends the process on a second one; threads and modules that are loaded again may ask."""
        script = tmp_path / "script.py"
        script.write_text(
            "import importlib, sys, threading\n"
            "from treefold.execution import tensorflow_graphs as operation\n"
            "sys.setswitchinterval(1e-6)\n"
            "threads = [threading.Thread(target=operation.ensure_registered) for _ in range(8)]\n"
            "[one.start() for one in threads], [one.join() for one in threads]\n"
            "print(importlib.reload(operation).ensure_registered())"
        )
        done = programs.run([script])
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr

    @pytest.mark.parametrize("dtype", FOLDABLE)
    def test_takes_every_dtype(self, dtype):
        parts = [tf.cast(tf.constant([0, 1]), dtype)] * 2
        op = "max" if dtype == "bool" else "product"
        made = tf.function(lambda parts: HierarchicalCopyAllReduce().reduce(op, PerReplica(parts), "cpu:0"))
        assert "TreefoldFold" in {one.type for one in made.get_concrete_function(parts).graph.get_operations()}
        assert made(parts).numpy().tolist() == parts[0].numpy().tolist()

    def test_a_library_without_the_interface_is_none_to_ask(self, monkeypatch):
        """Such as TensorFlow's on Windows: it is found to be absent, and graphs call Python instead."""
        monkeypatch.setattr(operation, "TENSORFLOW_FUNCTIONS", ("TF_NoSuchFunction",))
        assert not operation.ensure_registered.__wrapped__()
        monkeypatch.setattr(operation, "_LIBRARIES", ())
        assert not operation.ensure_registered.__wrapped__()


class TestAttributes:
    """Graphs come from files, too."""

    @pytest.mark.parametrize(
        ("words", "given"),
        [
            (r"The attributes T, R and dtype of a fold do not fit together\.", {"dtype": native.DTYPES["float64"]}),
            (r"The attributes T, R and dtype of a fold do not fit together\.", {"R": tf.int8}),
            (r"fold knows no op 77\.", {"op": 77}),
            (r"fold knows no accumulation -1\.", {"accumulate": -1}),
            (r"fold knows no dtype 99\.", {"dtype": 99}),
            (r"fold has no meaning for this op and dtype", {"dtype": native.DTYPES["complex64"], "op": 2}),
        ],
    )
    def test_that_contradict_each_other_are_refused(self, words, given):
        assert operation.ensure_registered()
        plain = {"R": tf.float32, "dtype": native.DTYPES["float32"], "op": 0, "accumulate": 0}
        parts = [tf.ones(1001), tf.ones(1001)]

        @tf.function
        def fold(parts):
            return op_def_library.apply_op("TreefoldFold", contributions=parts, **plain | given)

        with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnknownError), match=words):
            fold(parts)

    @pytest.mark.parametrize("shapes", [([3], [4]), ([4], [3]), ([2, 3], [3, 2]), ([6], [6, 1])], ids=str)
    def test_shapes_that_differ_are_refused(self, shapes):
        assert operation.ensure_registered()

        @tf.function(input_signature=[[tf.TensorSpec(None)] * 2])
        def fold(parts):
            return op_def_library.apply_op(
                "TreefoldFold", contributions=parts, R=tf.float32, dtype=native.DTYPES["float32"], op=0, accumulate=0
            )

        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Replica 1 has another shape than replica 0\."):
            fold([tf.ones(shape) for shape in shapes])

    def test_texts_cannot_be_folded(self):
        assert operation.ensure_registered()
        with tf.Graph().as_default(), pytest.raises(TypeError, match=r"not in list of allowed values"):
            op_def_library.apply_op(
                "TreefoldFold", contributions=[tf.constant(["a"])], R=tf.float32, dtype=2, op=0, accumulate=0
            )


class TestGradients:
    """There are none, and they are asked for of whatever a function returns."""

    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_what_stands_beside_a_reduction_are_as_without(self, op):
        ops = HierarchicalCopyAllReduce()

        @tf.function
        def step(value):
            return tf.reduce_sum(value * value), ops.reduce(op, PerReplica([value, value]), "cpu:0")

        value = tf.constant([1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss, _ = step(value)
        assert tape.gradient(loss, value).numpy().tolist() == [2.0, 4.0]


class TestContributions:
    def test_stay_as_they_are(self, on_devices):
        variables = [tf.Variable(tf.fill([LARGE], 2.0**replica)) for replica in range(3)]

        @tf.function
        def reduce(value):
            ops = HierarchicalCopyAllReduce()
            given = type(value)([part * 1.0 for part in value.values])
            first = ops.reduce("sum", given, "cpu:0")
            second = ops.reduce("mean", given, "cpu:0")
            read = ops.reduce("sum", type(value)([variable.read_value() for variable in variables]), "cpu:0")
            return first, second, read, ops.reduce("sum", given, "cpu:0")

        for _ in range(2):
            first, second, read, third = reduce(on_devices([np.full(LARGE, 2.0**r, "float32") for r in range(3)]))
            assert [set(one.numpy().tolist()) for one in (first, read, third)] == [{7.0}] * 3
            assert set(second.numpy().tolist()) == {float(np.float32(7 / 3))}
            assert [set(variable.numpy().tolist()) for variable in variables] == [{1.0}, {2.0}, {4.0}]
