"""TensorFlow on eight logical CPU devices, and values on them as ``Strategy.run`` hands them over.

TensorFlow is required here: without it these tests fail, they do not skip.
"""

import numpy as np
import pytest
import tensorflow_devices
from tensorflow_devices import tf


@pytest.fixture(scope="session")
def on_devices():
    return tensorflow_devices.on_devices


@pytest.fixture(scope="session")
def read():
    """Return a function that reads a result as one ``(device, array)`` per component."""

    def read_result(result):
        values = result.values if isinstance(result, tf.distribute.DistributedValues) else (result,)
        return [(value.device.rpartition("device:")[2].lower(), np.asarray(value.numpy())) for value in values]

    return read_result


@pytest.fixture(scope="session")
def on_cpus():
    """Return a function that makes a ``MirroredStrategy`` of this many CPU devices with given ops."""

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
