"""Train one Keras model on several processes: on Keras' TensorFlow, JAX or PyTorch backend, whichever it has.

Run it: treefold run -n 2 examples/keras_training.py
(or: torchrun --nproc-per-node 2 examples/keras_training.py, or: mpiexec -n 2 python examples/keras_training.py)
"""

import keras
import numpy as np

import treefold
import treefold.keras

BATCH = 48  # of all ranks together

rng = np.random.default_rng(0)
inputs = rng.standard_normal((2411, 8)).astype("float32")
targets = inputs[:, :1] * inputs[:, 1:2]

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.05), keras.layers.Dense(1)]
)

with treefold.connect() as group:
    mine = slice(group.rank, None, group.size)  # every rank trains on its share of the data
    x, y = inputs[mine], targets[mine]
    batch = BATCH // group.size
    whole = batch * treefold.keras.steps(group, len(x) // batch)  # the same on all ranks; the rest is left out
    model.compile(treefold.keras.distribute(keras.optimizers.Adam(0.01), group), "mse")
    history = model.fit(
        x[:whole],
        y[:whole],
        batch_size=batch,
        epochs=10,
        verbose=0,
        callbacks=treefold.keras.callbacks(group, [keras.callbacks.EarlyStopping("loss", patience=3)]),
    )
    flat = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    everyone = group.all_gather(flat[None])
    if group.rank == 0:
        losses = history.history["loss"]
        print(
            f"{group.size} ranks, {keras.backend.backend()}: loss {losses[0]:.3f} in epoch 1, {losses[-1]:.3f} at last"
        )
        print("all ranks hold the same bits:", all(np.array_equal(one, flat) for one in everyone))
