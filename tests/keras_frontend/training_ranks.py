"""The bodies of ranks in tests of callbacks, steps and errors."""

import os
import signal
import warnings
from pathlib import Path

import numpy as np

# Keras from there, because it has to be loaded behind Triton.
from keras_ranks import GLOBAL_BATCH, Two, data, dense_model, digest_of, exact_data, fit, keras, part_of, weights_of
from rank_processes import told

import treefold.keras
from treefold.errors import CallMismatchError

_LAYERS = keras.layers


class Noted(keras.callbacks.Callback):
    """Notes the learning rate and the logs of every epoch."""

    def __init__(self):
        super().__init__()
        self.rates, self.logs = [], []

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))


class Fault(keras.callbacks.Callback):
    """Does something on one rank in the middle of the second epoch."""

    def __init__(self, action):
        super().__init__()
        self._action, self._epoch = action, 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self._epoch, batch) == (1, 2):
            self._action()


class StopsAt(keras.callbacks.Callback):
    """Stops in the middle of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self._at, self._epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch) == self._at:
            self.model.stop_training = True


def started(me):
    """Train with weights, an optimizer's state and a data order of this rank's own; return the digest."""
    model = dense_model(seed=me.rank)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(me.rank + 5)
    fit(me, model, optimizer)
    return digest_of(model), int(optimizer.iterations)


def dropped(me):
    """Train with dropout, from the same seed on all ranks; return what it drops now, and the digest of weights."""
    dropout = _LAYERS.Dropout(0.5)
    model = dense_model(dropout)
    fit(me, model, keras.optimizers.SGD(0.01), epochs=1)
    mask = keras.ops.convert_to_numpy(dropout(keras.ops.ones((64,)), training=True))
    return (mask != 0).tolist(), weights_of(model).tobytes()


def logged(me):
    """Train and validate, on parts of unequal length; return the logs that callbacks and the history have."""
    model = dense_model()
    x, y = data()
    cut = {1: slice(None), 2: (slice(0, 8), slice(8, None))[me.rank]}[me.size]
    noted = Noted()
    history = fit(
        me,
        model,
        keras.optimizers.SGD(0.1),
        callbacks=treefold.keras.callbacks(me.group, [noted]),
        validation_data=(x[:20][cut], y[:20][cut]),
        validation_batch_size=4,
    )
    assert [log["val_loss"] for log in noted.logs] == history.history["val_loss"]
    return noted.logs


def normalized(me):
    """Train with a normalisation that remembers its last batch only; return its statistics, and how it validates."""
    layer = _LAYERS.BatchNormalization(momentum=0.0)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), layer, _LAYERS.Dense(1)])
    x, y = data()
    history = fit(me, model, keras.optimizers.SGD(0.0), validation_data=(x, y), validation_batch_size=48)
    parts = [part_of(x, rank, me.size)[-GLOBAL_BATCH // me.size :] for rank in range(me.size)]
    mean, variance = (np.mean([call(part, 0) for part in parts], 0) for call in (np.mean, np.var))
    kept = [keras.ops.convert_to_numpy(one) for one in (layer.moving_mean, layer.moving_variance)]
    assert np.allclose(kept[0], mean, atol=1e-6)
    assert np.allclose(kept[1], variance, atol=1e-6)
    return [array.tobytes() for array in kept], history.history["val_loss"]


def decided(me, *, path):
    """Rank 0 alone stops early, lowers the rate and writes; return epochs, rates, and the ranks that wrote."""
    noted = Noted()
    own = [
        keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=100.0, patience=2, factor=0.5),
        keras.callbacks.ModelCheckpoint(str(Path(path, f"{me.rank}.weights.h5")), save_weights_only=True),
    ]
    callbacks = treefold.keras.callbacks(me.group, [noted], on_rank_0=own)
    model = dense_model()
    history = fit(me, model, keras.optimizers.SGD(0.25), epochs=9, callbacks=callbacks)
    written = sorted(path.name for path in Path(path).iterdir())
    return len(history.epoch), noted.rates, written, weights_of(model).tobytes()


def resumed(me, *, path):
    """Train 2 of 4 epochs, and start anew with rank 0's backup; return the epochs and the digest."""
    for epochs in (2, 4):
        model = dense_model(seed=me.rank)
        backup = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        callbacks = treefold.keras.callbacks(me.group, on_rank_0=[backup])
        history = fit(me, model, keras.optimizers.Adam(0.01), epochs=epochs, callbacks=callbacks)
    return history.epoch, digest_of(model)


def warmed_up(me):
    """Warm up for 2 of 4 epochs, and 1 of two optimizers; return the rates, and what is refused of a schedule."""
    noted = Noted()
    callbacks = treefold.keras.callbacks(me.group, [noted], warm_up_epochs=2)
    fit(me, dense_model(), keras.optimizers.SGD(0.5), epochs=4, callbacks=callbacks)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    callbacks = treefold.keras.callbacks(me.group, warm_up_epochs=2)
    optimizers = [treefold.keras.distribute(keras.optimizers.SGD(rate), me.group) for rate in (0.25, 1.0)]
    model = Two(*optimizers)
    model.compile()
    model.fit(*exact_data(), verbose=0, callbacks=callbacks)
    rates = [*noted.rates, *(float(one.learning_rate) for one in optimizers)]
    return rates, told(fit, me, dense_model(), keras.optimizers.SGD(schedule), callbacks=callbacks)


def not_distributed(me):
    """Train with the callbacks alone; return what is refused."""
    model = dense_model()
    model.compile("sgd", "mse")
    return told(model.fit, *data(), verbose=0, callbacks=treefold.keras.callbacks(me.group))


def refused(me, *, kind):
    """Rank 1 alone does something that is refused; return what each rank is told, and whether the group goes on."""
    model, is_other = dense_model(), me.rank == 1
    callbacks = treefold.keras.callbacks(me.group, warm_up_epochs=2 if kind == "warm up" and is_other else 0)
    optimizer = treefold.keras.distribute(keras.optimizers.SGD(), me.group)
    if kind == "warm up" and is_other:
        optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9)
    model.compile("sgd" if kind == "optimizer" and is_other else optimizer, "mse")
    if kind == "steps":
        said = told(treefold.keras.steps, me.group, 1 - me.rank)
    else:
        said = told(model.fit, *data(), verbose=0, callbacks=[] if kind == "callbacks" and is_other else callbacks)
    return said, float(me.group.all_reduce(2.0**me.rank))


def stopped(me, *, kind):
    """Stop one rank in the third step of the second epoch; return epochs, steps, and weights.

    The ``kind`` is a loss on rank 1 that is not a number, or a callback that only rank 0 has.
    """
    model, (x, y) = dense_model(), data()
    own, on_rank_0 = [keras.callbacks.TerminateOnNaN()], []
    if kind == "nan":
        own.append(Fault(lambda: me.rank == 1 and model.layers[-1].bias.assign([np.nan])))
    else:
        on_rank_0.append(StopsAt(1, 2))
    callbacks = treefold.keras.callbacks(me.group, own, on_rank_0=on_rank_0)
    history = fit(me, model, keras.optimizers.SGD(0.1), (x, y), epochs=4, callbacks=callbacks, validation_data=(x, y))
    return history.epoch, int(model.optimizer.iterations), digest_of(model)


def unbuilt(me):
    """Train a model that has no weights when ``fit`` begins; return what is refused, or whether ranks are alike."""
    keras.utils.set_random_seed(me.rank)
    model = keras.Sequential([_LAYERS.Dense(1)])
    said = told(fit, me, model, keras.optimizers.SGD(0.1))
    return said if said != "done" else digest_of(model)


def counted(me, *, counts):
    return [told_value(treefold.keras.steps, me.group, count) for count in counts[me.rank]]


def counted_datasets(me):
    """Return the steps of datasets of all kinds that this rank alone has."""
    import tensorflow as tf  # noqa: PLC0415 - for its datasets
    import torch  # noqa: PLC0415 - as above

    numbers = tf.data.Dataset.range(10)
    tensors = torch.utils.data.TensorDataset(torch.zeros(10))
    loader = torch.utils.data.DataLoader
    given = {
        "whole": numbers.batch(3, drop_remainder=True),
        "partial": numbers.batch(3),
        "endless": numbers.batch(3, drop_remainder=True).repeat(),
        "generator": (one for one in range(3)),
        "filtered": numbers.filter(lambda _: True).batch(3, drop_remainder=True),
        "loader": loader(tensors, 3, drop_last=True),
        "partial loader": loader(tensors, 3),
        "whole loader": loader(tensors, 5),
        "list": [1, 2],
        "number of NumPy's": np.int64(4),
        "array": np.zeros((10, 3)),
    }
    return {name: told_value(treefold.keras.steps, me.group, batches) for name, batches in given.items()}


def told_value(action, *arguments):
    made = []
    return made[0] if told(lambda: made.append(action(*arguments))) == "done" else told(action, *arguments)


def broken(me, *, kind, **options):
    """The last rank fails in the middle of an epoch; return what ``fit`` raises on the others."""

    def act():
        if me.rank == me.size - 1:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])

    callbacks = treefold.keras.callbacks(me.group, [Fault(act)])
    return told(fit, me, dense_model(), keras.optimizers.SGD(), callbacks=callbacks, **options)


def uneven(me):
    """Rank 1 has one step more; return what ``fit`` raises with its note, and whether the group goes on."""
    x, y = data(5)
    if me.rank == 0:
        x, y = x[: 4 * GLOBAL_BATCH], y[: 4 * GLOBAL_BATCH]
    try:
        fit(me, dense_model(), keras.optimizers.SGD(), (x, y))
    except CallMismatchError as error:
        return str(error), error.__notes__, float(me.group.all_reduce(2.0**me.rank))


def unlike(me):
    """Ranks have models of other widths; return the note of what ``fit`` raises."""
    model = keras.Sequential([keras.Input((6,)), _LAYERS.Dense(1 + me.rank)])
    try:
        fit(me, model, keras.optimizers.SGD())
    except CallMismatchError as error:
        return error.__notes__


def smaller(me):
    """The last batch of rank 1 is smaller, in both epochs; return the warnings."""
    x, y = data()
    rest = x[: len(x) - 2 * me.rank], y[: len(x) - 2 * me.rank]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        distributed = treefold.keras.distribute(keras.optimizers.SGD(), me.group)
        model = dense_model()
        model.compile(distributed, "mse")
        model.fit(*rest, batch_size=12, epochs=2, verbose=0, callbacks=treefold.keras.callbacks(me.group))
    return [str(one.message) for one in warned if "unequal" in str(one.message)]
