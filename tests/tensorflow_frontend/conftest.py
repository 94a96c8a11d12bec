"""TensorFlow on eight logical CPU devices, and values on them as ``Strategy.run`` hands them over.

TensorFlow is required here: without it these tests fail, they do not skip.
"""

import os
import warnings

import numpy as np
import pytest

# Both are read when TensorFlow is imported: its C++ side is to log errors only, and without oneDNN it does not announce
# that results may depend on it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

with warnings.catch_warnings():
    # TensorFlow's generated bindings and its dependencies use what Python and NumPy have deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica

tf.get_logger().setLevel("ERROR")
# Before anything runs on a device; the same for all tests, as a process can say it once.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)


@pytest.fixture(scope="session")
def on_devices():
    """Return a function that makes TensorFlow's ``PerReplica`` of one array or ``tf.IndexedSlices`` per device."""

    def place(array, device):
        with tf.device(f"/cpu:{device}"):
            if isinstance(array, tf.IndexedSlices):
                return tf.nest.map_structure(tf.identity, array, expand_composites=True)
            return tf.constant(array)

    def per_replica(arrays, devices=None):
        where = range(len(arrays)) if devices is None else devices
        return PerReplica([place(array, device) for array, device in zip(arrays, where, strict=True)])

    return per_replica


@pytest.fixture(scope="session")
def read():
    """Return a function that reads a result as one ``(device, array)`` per component."""

    def read_result(result):
        values = result.values if isinstance(result, tf.distribute.DistributedValues) else (result,)
        return [(value.device.rpartition("device:")[2].lower(), np.asarray(value.numpy())) for value in values]

    return read_result


@pytest.fixture(scope="session")
def on_cpus():
    """Return a function that makes a ``MirroredStrategy`` of so many CPU devices with given ops."""

    def strategy(count, ops):
        return tf.distribute.MirroredStrategy([f"cpu:{index}" for index in range(count)], cross_device_ops=ops)

    return strategy


@pytest.fixture(params=["eager", "traced", "as ops"])
def way(request, monkeypatch):
    """Return a function that calls another one on distributed values in one of three ways."""
    if request.param == "as ops":
        from treefold.backends import tensorflow_calls  # noqa: PLC0415 - some of these tests are about the import of both
        from treefold.tensorflow import traced  # noqa: PLC0415

        for module in (traced, tensorflow_calls):
            monkeypatch.setattr(module, "runs_on_host", lambda: False)
    if request.param == "eager":
        return lambda function, *values: function(*values)
    return lambda function, *values: tf.function(function)(*values)
