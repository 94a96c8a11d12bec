"""The processes of a cluster, and which devices belong to each."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica

from treefold.backends import tensorflow
from treefold.errors import TreefoldError
from treefold.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.tensorflow.values import device_name

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def owned(count):
    """Return one array per replica; replica r brings 2**r."""
    return [np.full(3, 2**replica, "float32") for replica in range(count)]


class TestClusters:
    def test_values_of_other_tasks_are_reduced_in_their_graph(self):
        devices = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(3)]
        with tf.Graph().as_default() as graph:
            parts = []
            for device, array in zip(devices, owned(3), strict=True):
                with tf.device(device):
                    parts.append(tf.constant(array))
            value = PerReplica(parts)
            result = HierarchicalCopyAllReduce().reduce(MEAN, value, value)
            assert [part.device for part in result.values] == devices
            # All on one task: the same graph, run here.
            definition = graph.as_graph_def()
            names = [part.name for part in result.values]
        for node in definition.node:
            node.device = ""
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.import_graph_def(definition, name="")
            assert [part.tolist() for part in session.run(names)] == [[float(np.float32(7 / 3))] * 3] * 3

    def test_values_of_other_tasks_are_refused_in_functions(self):
        with pytest.raises(TreefoldError, match="is a device of rank 1, and ranks need a group"):
            tf.function(lambda: HierarchicalCopyAllReduce().reduce(SUM, 1.0, "/job:worker/task:1/device:CPU:0"))()

    @pytest.mark.parametrize("task", ["/job:worker/replica:0/task:1", "/job:worker/task:1"])
    def test_names_of_the_own_task_are_those_of_this_process(self, task, monkeypatch):
        monkeypatch.setattr(tensorflow, "_own_task", lambda: "/job:worker/replica:0/task:1")
        ops = ReductionToOneDevice(f"{task}/device:CPU:1")
        assert device_name(f"{task}/device:CPU:1") == "cpu:1"
        assert "'cpu:1'" in repr(ops)
        with pytest.raises(TreefoldError, match="is a device of rank 10, and ranks need a group"):
            device_name(f"{task}0/device:CPU:1")
