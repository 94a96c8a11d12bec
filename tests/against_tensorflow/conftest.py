"""TensorFlow on eight logical CPU devices, and one reading of what both libraries return.

TensorFlow is required here: without it these tests fail, they do not skip.
"""

import os
import warnings

import numpy as np
import pytest

import treefold

# Both are read when TensorFlow is imported: its C++ side is to log errors only, and without oneDNN it does not announce
# that results may depend on it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

with warnings.catch_warnings():
    # TensorFlow's generated bindings and its dependencies use what Python and NumPy have deprecated (SWIG's types on
    # Python 3.12, for one). That is theirs to mend, and of no account to what is tested here; all else stays an error.
    warnings.simplefilter("ignore", DeprecationWarning)
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica

NUM_DEVICES = 8

tf.get_logger().setLevel("ERROR")
# Before anything runs on a device, hence here and not in a fixture; every pytest process imports this file once.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES
)


@pytest.fixture(scope="session")
def on_devices():
    """Return a function that makes TensorFlow's ``PerReplica`` of one array per device ``cpu:k``.

    TensorFlow makes ``PerReplica`` objects inside ``Strategy.run`` only and does not export the class; here it is
    called directly, as ``Strategy.run`` does, with one tensor or ``tf.IndexedSlices`` on each device.
    """

    def place(array, device):
        with tf.device(f"/cpu:{device}"):
            if isinstance(array, treefold.IndexedSlices):
                shape = None if array.dense_shape is None else tf.constant(array.dense_shape, tf.int64)
                return tf.IndexedSlices(tf.constant(array.values), tf.constant(array.indices), shape)
            return tf.constant(array)

    def per_replica(arrays, devices=None):
        where = range(len(arrays)) if devices is None else devices
        return PerReplica([place(array, device) for array, device in zip(arrays, where, strict=True)])

    return per_replica


@pytest.fixture(scope="session")
def read():
    """Return a function that reads a result of either library as plain data, one ``(device, value)`` per component.

    An array reads as ``(dtype, shape, numbers)``, with the numbers as text: exact, and -0.0 is not 0.0. Sparse rows
    read as ``(values, indices, dense_shape)``.
    """

    def read_array(array):
        array = np.asarray(array.numpy() if isinstance(array, tf.Tensor) else array)
        return array.dtype.name, array.shape, str(array.tolist())

    def read_value(value):
        if not hasattr(value, "indices"):
            return read_array(value)
        shape = None if value.dense_shape is None else tuple(int(length) for length in value.dense_shape)
        return read_array(value.values), read_array(value.indices), shape

    def read_result(result):
        if isinstance(result, treefold.Mirrored):
            return [(device, read_value(v)) for device, v in zip(result.devices, result.values, strict=True)]
        values = result.values if isinstance(result, tf.distribute.DistributedValues) else (result,)
        return [(value.device.rpartition("device:")[2].lower(), read_value(value)) for value in values]

    return read_result
