"""The bodies of ranks in these tests, on whatever backend Keras has in their process."""

import contextlib
import hashlib
import os
from pathlib import Path

with contextlib.suppress(ImportError):
    import triton._C.libtriton  # noqa: F401 - before TensorFlow, as in the conftest of all tests

with contextlib.suppress(ImportError):
    import tensorflow as tf  # noqa: F401 - Keras imports it in any case, and would do so in every rank

import keras
import numpy as np
from rank_processes import told

import treefold.keras

#: All ranks together, in every step: 1, 2 and 3 ranks divide it.
GLOBAL_BATCH = 12
#: Keras and its backend keep threads; a compiled step keeps its group.
MAY_LEAVE = ("threads", "Python", "descriptors", "mappings")
_FEATURES = 6


def data(batches=4):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(batches * GLOBAL_BATCH, _FEATURES)).astype("float32")
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype("float32")


def exact_data():
    """Return x and y of which gradients of ``ExactLoss`` are exact: whole multiples of 3, of few bits."""
    draws = np.random.default_rng(0)
    x = draws.integers(-8, 8, (4 * GLOBAL_BATCH, _FEATURES))
    return x.astype("float32"), (3 * draws.integers(-8, 8, x.shape)).astype("float32")


def part_of(array, rank, size):
    own = GLOBAL_BATCH // size
    batches = array.reshape(-1, GLOBAL_BATCH, *array.shape[1:])
    return batches[:, rank * own : (rank + 1) * own].reshape(-1, *array.shape[1:])


class Scale(keras.layers.Layer):
    """A factor for each feature."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")

    def call(self, x):
        return x * self.scale


class Two(keras.Model):
    """Two layers, which two optimizers train on ``exact_loss``, the second on the reverse of it."""

    def __init__(self, *optimizers, compiled=0):
        """Build all; ``compiled``: how many of the optimizers ``compile`` will get."""
        super().__init__()
        self.parts = [Scale(), Scale()]
        self.first, self.others = optimizers[0], {"second": optimizers[1]}
        for part, optimizer in zip(self.parts, optimizers, strict=True):
            part.build((None, _FEATURES))
            optimizer.build(part.trainable_variables)
        if (
            keras.backend.backend() == "jax"
        ):  # a step gets what it changes, the state of the model's own optimizer apart
            self.states = [one for optimizer in optimizers[compiled:] for one in optimizer.variables]
        self.built, self._is_first_compiled = True, compiled > 0

    def train_step(self, *given):
        """Apply gradients of each part by its own optimizer; ``given``: data, behind the state on JAX."""
        x, y = given[-1][:2]
        grad = keras.ops.mean(x * y, axis=0)
        optimizers, grads, logs = (self.first, self.others["second"]), (grad, -grad), {"loss": grad[0]}
        if len(given) == 1:
            for part, optimizer, own in zip(self.parts, optimizers, grads, strict=True):
                optimizer.apply([own], part.trainable_variables)
            return logs
        trainable, held, compiled, metrics = given[0]
        half = len(self.first.variables)
        states = (compiled, held) if self._is_first_compiled else (held[:half], held[half:])
        of_parts = zip(optimizers, states, grads, trainable, strict=True)
        made = [optimizer.stateless_apply(state, [own], [one]) for optimizer, state, own, one in of_parts]
        (one,), (two,) = (weights for weights, _ in made)
        first, second = (state for _, state in made)
        kept = (second, first) if self._is_first_compiled else ([*first, *second], compiled)
        return logs, ([one, two], *kept, metrics)


class CallsOfSteps(keras.callbacks.Callback):
    """Counts the calls of a group in training steps."""

    def __init__(self, group):
        super().__init__()
        self.calls, self._link = 0, group.link

    def on_train_batch_begin(self, batch, logs=None):
        self.calls -= self._link._sequence

    def on_train_batch_end(self, batch, logs=None):
        self.calls += self._link._sequence


def exact_loss(y, predicted):
    """Return a loss that is linear: each sample's gradient is x times y."""
    return keras.ops.sum(y * predicted, axis=-1)


def dense_model(*layers, seed=3, **options):
    """Return a small model with products of matrices; ``layers`` stand in its middle."""
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((_FEATURES,)), dense(8, "tanh", **options), *layers, dense(1, **options)])


def fit(
    me,
    model,
    optimizer,
    given=None,
    *,
    callbacks=None,
    epochs=2,
    loss="mse",
    loss_weights=None,
    jit_compile="auto",
    **options,
):
    """Train a model on this rank's part of the data; return what ``fit`` returns."""
    x, y = (part_of(one, me.rank, me.size) for one in given or data())
    distributed = treefold.keras.distribute(optimizer, me.group)
    model.compile(distributed, loss, loss_weights, jit_compile=jit_compile)
    return model.fit(
        x,
        y,
        batch_size=GLOBAL_BATCH // me.size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=treefold.keras.callbacks(me.group) if callbacks is None else callbacks,
        **options,
    )


def weights_of(model):
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(one)).astype("float64") for one in model.weights])


def digest_of(model):
    """Return a digest of the bits of all weights and the optimizer's state."""
    digest = hashlib.sha256()
    for one in model.weights:
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(one)).tobytes())
    for one in model.optimizer.variables:  # PyTorch clears accumulators to 0 or -0, whatever their sign was
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(one) + 0).tobytes())
    return digest.hexdigest()


def trained(me, *, optimizer="Adam", **options):
    """Train the dense model; return its weights and the digest of its bits."""
    model = dense_model()
    fit(me, model, getattr(keras.optimizers, optimizer)(0.0078125, **options))
    return weights_of(model), digest_of(model)


def trained_exactly(me):
    """Train a model without a product of matrices on data that no order of sums rounds; return the digest of it."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((_FEATURES,)), Scale()])
    fit(me, model, keras.optimizers.Adam(0.01), exact_data(), loss=exact_loss)
    return digest_of(model)


def trained_by_two(me, *, compiled, distributed):
    """Train a model of two optimizers; return a digest of the bits of its weights and their states.

    With ``compiled``, ``compile`` gets the first one. The number given to ``distribute`` is ``distributed``.
    """
    optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.25, 0.5)]
    for one in optimizers[:distributed]:
        treefold.keras.distribute(one, me.group)
    model = Two(*optimizers, compiled=compiled)
    for part in model.parts:
        part.scale.assign(part.scale + me.rank)  # rank 0's holds
    model.compile(*optimizers[:compiled])
    x, y = (part_of(one, me.rank, me.size) for one in exact_data())
    callbacks = treefold.keras.callbacks(me.group)
    model.fit(x, y, batch_size=GLOBAL_BATCH // me.size, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    kept = [*model.trainable_weights, *(one for optimizer in optimizers for one in optimizer.variables)]
    return hashlib.sha256(b"".join(keras.ops.convert_to_numpy(one + 0).tobytes() for one in kept)).hexdigest()


def trained_on_sums(me):
    """Train on the sum of losses by its weight, and by Keras alone; return the weights, and what refuses "sum"."""
    loss, ours, plain = keras.losses.MeanSquaredError(reduction="sum"), dense_model(), dense_model()
    x, y = data()
    plain.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    plain.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
    fit(me, ours, keras.optimizers.SGD(0.01), epochs=1, loss_weights=float(GLOBAL_BATCH))
    assert np.abs(weights_of(ours) - weights_of(plain)).max() < 1e-4
    return told(fit, me, dense_model(), keras.optimizers.SGD(), loss=loss)


def trained_on_weighted_steps(me):
    """Train on sequences, of which sample weights hide a part in place of the mask; return weights and digest."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((_FEATURES,), dtype="int32")
    hidden = keras.layers.Embedding(16, 4, mask_zero=True)(ids)
    hidden = keras.layers.SimpleRNN(4, return_sequences=True)(hidden)
    model = keras.Model(ids, keras.layers.Dense(1)(hidden) * 1.0)
    x, _ = data()
    x = np.sort(np.abs(x * 5).astype("int32") % 16 * (x > 0), axis=1)[:, ::-1].copy()
    x[::2, 2:] = 0  # one rank of two has more to hide
    y = np.sin(x.astype("float32"))[..., None]
    seen = part_of((x != 0).astype("float32"), me.rank, me.size)
    fit(me, model, keras.optimizers.SGD(0.1), (x, y), sample_weight=seen)
    return weights_of(model), digest_of(model)


def trained_embedding(me):
    """Train an embedding, with gradients that are rows in TensorFlow; return its weights and the digest of its bits."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((_FEATURES,)), keras.layers.Embedding(16, 2), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    x, y = data()
    fit(me, model, keras.optimizers.SGD(0.1, 0.9), (np.abs(x * 5).astype("int32") % 16, y))
    return weights_of(model), digest_of(model)


def applied(me, *, kind):
    """Apply gradients of which rank r brings 2**r; return the variables' values, or what is refused."""
    one, two = (keras.Variable(np.zeros(3, "float32"), name=name) for name in ("one", "two"))
    mine = keras.ops.full((3,), 2.0**me.rank, "float32")
    options = {"global_clipnorm": 1.0} if kind == "clipped" else {}
    optimizer = treefold.keras.distribute(keras.optimizers.SGD(1.0, **options), me.group)
    if kind == "twice":
        optimizer = treefold.keras.distribute(optimizer, me.group)
    if kind == "overwritten":
        one.overwrite_with_gradient = True
        return told(optimizer.apply, [mine, mine], [one, two])
    if kind == "wrapped":
        keras.optimizers.LossScaleOptimizer(optimizer).apply([mine, mine], [one, two])
    is_none = kind == "none" and me.rank == 1
    optimizer.apply([None if is_none else mine, mine], [one, two])
    return [float(keras.ops.convert_to_numpy(variable)[0]) for variable in (one, two)]


def applied_all(me):
    """Apply gradients in every manner; return what each has come to."""
    return {kind: applied(me, kind=kind) for kind in ("plain", "none", "clipped", "twice", "overwritten")}


def applied_within(me):
    return told(applied, me, kind="wrapped")


def accumulated(me):
    """Accumulate gradients of 2 steps; return the weights, their digest, and how many calls 8 steps made."""
    model, optimizer = dense_model(), keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    fit(me, model, optimizer)  # the first call of a kind also agrees on a plan
    counted = CallsOfSteps(me.group)
    fit(me, model, optimizer, callbacks=treefold.keras.callbacks(me.group, [counted]))
    return weights_of(model), digest_of(model), counted.calls


def scaled(me, *, is_given):
    """Train with mixed_float16, where rank 1 has an infinite gradient in step 1; return scale, steps and digest.

    ``is_given``: distribute the loss scale optimizer; else ``compile`` makes it.
    """
    model = dense_model(dtype="mixed_float16")
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    x, y = data()
    own = GLOBAL_BATCH // me.size
    if me.size > 1:
        x[GLOBAL_BATCH + own] = np.inf  # the first sample of rank 1 in the second step
    optimizer = keras.optimizers.Adam(0.01)
    if is_given:
        fit(me, model, keras.optimizers.LossScaleOptimizer(optimizer, 256.0), (x, y), epochs=1)
    else:
        fit(me, model, optimizer, (x, y), epochs=1)
    assert np.isfinite(weights_of(model)).all()
    scale = model.optimizer.dynamic_scale / model.optimizer.initial_scale
    return float(scale), int(model.optimizer.iterations), digest_of(model)


def compiled_by_xla(me):
    """Train with ``jit_compile=True``; return what is refused."""
    return told(fit, me, dense_model(), keras.optimizers.SGD(), jit_compile=True)


def without_callbacks(me):
    """Train a distributed optimizer without the callbacks, also in ``mixed_float16``; return what is refused."""
    model = dense_model(dtype="mixed_float16")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    return [
        told(fit, me, dense_model(), keras.optimizers.SGD(), callbacks=[]),
        told(fit, me, model, scaled, callbacks=[]),
    ]


def saved(me, *, path):
    """Train, save on rank 0, and train on; return the weights that were saved, and those after one more epoch."""
    model = dense_model(keras.layers.BatchNormalization())
    fit(me, model, keras.optimizers.Adam(0.01))
    if me.rank == 0:
        model.save(Path(path))
    before = weights_of(model)
    x, y = data()
    if me.rank == 0:
        plain = keras.models.load_model(Path(path))
        assert type(plain.optimizer) is type(model.optimizer)
        assert keras.optimizers.serialize(plain.optimizer) == keras.optimizers.serialize(model.optimizer)
        plain.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
        return before, weights_of(plain)
    return before, None


def trained_on_one_core(me):
    """Train a model with gradients that JAX would copy on the thread of the step; return its number of steps."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model = keras.Sequential([keras.Input((784,)), *(keras.layers.Dense(1024, "relu") for _ in range(2))])
    model.add(keras.layers.Dense(10))
    x = np.zeros((4 * GLOBAL_BATCH, 784), "float32")
    fit(me, model, keras.optimizers.Adam(), (x, x[:, :10]), epochs=1)
    return int(model.optimizer.iterations)
