"""Train with TensorFlow's MirroredStrategy on three devices, with treefold's ops in place of TensorFlow's.

Three logical CPU devices stand for three GPUs; TensorFlow's own hierarchical copy would lose the third.
Run it: python examples/tensorflow_mirrored.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only; read when TensorFlow is imported
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from treefold.tensorflow import HierarchicalCopyAllReduce

DEVICES = 3


def main() -> None:
    """Sum one number per device, to see that none is lost, then fit a line."""
    tf.keras.utils.set_random_seed(0)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    names = [f"cpu:{index}" for index in range(DEVICES)]
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=HierarchicalCopyAllReduce())

    @tf.function
    def sum_of_owners() -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        mine = 2.0 ** tf.cast(replica.replica_id_in_sync_group, tf.float32)
        return replica.all_reduce("sum", mine)

    totals = [float(total) for total in strategy.run(sum_of_owners).values]
    print(f"replicas bring 1, 2 and 4, and every one of them gets {totals}")

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.3), "mse")
    x = tf.random.uniform([48, 1], -1, 1)
    losses = model.fit(x, 3.0 * x - 1.0, batch_size=24, epochs=20, verbose=0).history["loss"]
    slope, offset = (float(tf.reshape(variable, [])) for variable in model.trainable_variables)
    print(f"the loss fell from {losses[0]:.3f} to {losses[-1]:.6f}")
    print(f"the line y = 3x - 1 was found as y = {slope:.3f}x + {offset:.3f}")


if __name__ == "__main__":
    main()
