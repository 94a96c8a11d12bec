"""TensorFlow: the ops of ``tf.distribute`` on one logical CPU device per replica.

The ops always return new tensors. On one host all replicas share one of them, but packed hierarchical copy returns one
for each replica. TensorFlow does not export ``PerReplica``, so it is made here as ``Strategy.run`` makes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# Read when TensorFlow is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica

from treefold.bench.arrays import Array, dtype_of
from treefold.bench.baselines import Baseline, Call
from treefold.errors import PeerError

_OPS = {"sum": tf.distribute.ReduceOp.SUM, "mean": tf.distribute.ReduceOp.MEAN}
_DEVICES = int(os.environ["TREEFOLD_BENCH_DEVICES"])
_THREADS = int(os.environ["TREEFOLD_BENCH_THREADS"])

tf.get_logger().setLevel("ERROR")
tf.config.threading.set_intra_op_parallelism_threads(_THREADS)
tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * _DEVICES
)


class TensorflowBaseline(Baseline):
    """All replicas in one process, each on a logical device of its own."""

    def load(self, *, is_zero: bool) -> None:
        """Put new contributions on the devices."""
        self._values = [_on_devices(column) for column in self.new_inputs(is_zero=is_zero)]
        self._compiled: dict[str, Any] = {}

    def forms(self) -> Mapping[str, Call]:
        """Return eager, compiled, and compiled packed hierarchical copy."""
        if self.work.op not in _OPS:
            raise PeerError.lacks("tf.distribute", self.work.op)
        forms: dict[str, Call] = {"eager": self._to_one_device, "in a function": self._in_a_function}
        if self.work.devices > 1:
            forms["packed hierarchical copy"] = self._packed
        return forms

    def _to_one_device(self) -> list[Any]:
        ops, op = tf.distribute.ReductionToOneDevice(), _OPS[self.work.op]
        return list(ops.batch_reduce(op, [(value, value) for value in self._values]))

    def _in_a_function(self) -> list[Any]:
        return self._run("one", lambda: [value.values for value in self._to_one_device()])

    def _packed(self) -> list[Any]:
        ops, op = tf.distribute.HierarchicalCopyAllReduce(num_packs=1), _OPS[self.work.op]
        # The public method falls back to another algorithm on CPUs.
        return self._run("packed", lambda: [value.values for value in ops._batch_all_reduce(op, self._values)])

    def _run(self, name: str, body: Call) -> list[Any]:
        """Run a function; inputs are captured, so it is traced once for the tensors that are loaded."""
        if name not in self._compiled:
            self._compiled[name] = tf.function(body)
        compiled: Any = self._compiled[name]
        return list(compiled())

    def read(self, result: Any) -> list[list[Array]]:
        """Return every replica's component."""
        return [[_to_numpy(tensor) for tensor in getattr(value, "values", value)] for value in result]


def _on_devices(column: list[Array]) -> Any:
    tensors = []
    for index, array in enumerate(column):
        with tf.device(f"/cpu:{index}"):
            tensors.append(tf.identity(tf.constant(array)))
    return PerReplica(tensors)


def _to_numpy(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array.view(dtype_of("bfloat16")) if array.dtype.name == "bfloat16" else array


make_baseline = TensorflowBaseline
