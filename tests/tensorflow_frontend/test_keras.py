"""Keras trains the same model on any number of devices, with treefold's ops: swap one import."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from treefold.tensorflow import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, ReductionToOneDevice

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import keras

# Divisible by 2, 3, 4 and 8: every replica gets as much of every batch.
BATCH, NUM_IMAGES, EPOCHS = 48, 384, 2


@functools.cache
def digits(dtype):
    data = load_digits()
    return (data.images[:NUM_IMAGES, ..., None] / 16.0).astype(dtype), data.target[:NUM_IMAGES]


class WeightsPerEpoch(keras.callbacks.Callback):
    """Keeps the weights after every epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        assert np.isfinite(logs["loss"]), epoch
        self.seen.append([np.array(weight) for weight in self.model.get_weights()])


def net(dtype):
    """Return a small convolutional net, the same at every call."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1), dtype=dtype),
            layers.Conv2D(6, 3, activation="relu", dtype=dtype),
            layers.MaxPooling2D(2, dtype=dtype),
            layers.Flatten(dtype=dtype),
            layers.Dense(10, dtype=dtype),
        ]
    )


def fitted(strategy, dtype):
    """Return the weights after each epoch of training under a strategy."""
    with strategy.scope():
        model = net(dtype)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss, jit_compile=False)
    weights = WeightsPerEpoch()
    images, labels = digits(dtype)
    model.fit(images, labels, BATCH, EPOCHS, shuffle=False, verbose=0, callbacks=[weights])
    return weights.seen


@functools.cache
def fitted_on_one_device(dtype):
    return fitted(tf.distribute.get_strategy(), dtype)


def farthest(weights, others):
    return max(float(np.max(np.abs(one - two))) for one, two in zip(weights, others, strict=True))


class TestFit:
    @pytest.mark.parametrize("count", [2, 3, 8])
    def test_gives_the_weights_of_one_device(self, count, on_cpus):
        ops = HierarchicalCopyAllReduce(num_packs=2)
        epochs = zip(fitted(on_cpus(count, ops), "float64"), fitted_on_one_device("float64"), strict=True)
        assert max(farthest(ours, theirs) for ours, theirs in epochs) <= 1e-6

    @pytest.mark.parametrize("ops", [ReductionToOneDevice, AllReduceCrossDeviceOps], ids=lambda ops: ops.__name__)
    def test_in_float32_stays_within_rounding(self, ops, on_cpus):
        """Single precision rounds differently from batch to batch; after an epoch the weights are still the same."""
        first, _ = fitted(on_cpus(3, ops()), "float32")
        assert farthest(first, fitted_on_one_device("float32")[0]) <= 2e-5

    def test_moves_the_weights(self):
        first, second = fitted_on_one_device("float64")
        assert farthest(first, second) > 1e-2


class TestTensorflowsOwnOps:
    def test_lose_a_replica_of_three(self, on_cpus):
        theirs, _ = fitted(on_cpus(3, tf.distribute.HierarchicalCopyAllReduce()), "float64")
        assert farthest(theirs, fitted_on_one_device("float64")[0]) > 1e-2

    def test_sum_two_replicas_of_three(self, on_cpus):
        """The lost replica, by name: it brings 4, and 3 comes out; with treefold's ops 7."""

        def total():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", tf.constant(2.0) ** tf.cast(context.replica_id_in_sync_group, "float32"))

        theirs = on_cpus(3, tf.distribute.HierarchicalCopyAllReduce())
        ours = on_cpus(3, HierarchicalCopyAllReduce())
        assert [float(part) for part in theirs.run(total).values] == [3.0, 3.0, 3.0]
        assert [float(part) for part in ours.run(total).values] == [7.0, 7.0, 7.0]
