"""TensorFlow on eight logical CPU devices, as all tests of a process share it."""

import os
import warnings

# Both are read when TensorFlow is imported: its C++ side is to log errors only, and without oneDNN it does not announce
# that results may depend on it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

with warnings.catch_warnings():
    # TensorFlow's generated bindings and its dependencies use what Python and NumPy have deprecated. That is theirs to
    # mend, and of no account to what is tested; all else stays an error.
    warnings.simplefilter("ignore", DeprecationWarning)
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica

tf.get_logger().setLevel("ERROR")
# Before anything runs on a device; every process imports this once.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)


def on_devices(arrays, devices=None):
    """Return TensorFlow's ``PerReplica`` of one array, or one of either library's ``IndexedSlices``, per ``cpu:k``.

    TensorFlow makes such objects inside ``Strategy.run`` only and does not export the class; here it is called
    directly, as ``Strategy.run`` does.
    """
    where = range(len(arrays)) if devices is None else devices
    return PerReplica([_placed(array, device) for array, device in zip(arrays, where, strict=True)])


def _placed(array, device):
    with tf.device(f"/cpu:{device}"):
        if not hasattr(array, "indices"):
            return tf.constant(array)
        shape = None if array.dense_shape is None else tf.cast(array.dense_shape, tf.int64)
        return tf.IndexedSlices(tf.identity(array.values), tf.identity(array.indices), shape)
