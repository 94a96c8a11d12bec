"""TensorFlow on eight logical CPU devices, and one reading of what both libraries return.

TensorFlow is required here: without it these tests fail, they do not skip.
"""

import numpy as np
import pytest
import tensorflow_devices
from tensorflow_devices import tf

import treefold


@pytest.fixture(scope="session")
def on_devices():
    return tensorflow_devices.on_devices


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
