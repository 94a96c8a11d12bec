"""``callbacks``: what ``fit`` needs on every rank beside its steps, so that ranks start equal and stay equal.

``steps``: the number of batches per epoch that every rank has.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from treefold.errors import CallMismatchError, KerasError
from treefold.errors.arguments import place_in_fit, unequal_samples
from treefold.errors.words import short
from treefold.group import Group
from treefold.keras.optimizers import attach_all, optimizers_of, refusing

#: The distance of two ranks' seeds. Odd, and large, because some generators add a counter to the seed.
_SEED_DISTANCE, _SEEDS = 0x4F1BBCDD, 2**31


def callbacks(
    group: Group,
    on_all_ranks: Sequence[keras.callbacks.Callback] = (),
    *,
    on_rank_0: Sequence[keras.callbacks.Callback] = (),
    warm_up_epochs: int = 0,
) -> list[keras.callbacks.Callback]:
    """Return the callbacks that ``fit`` needs on every rank, around your own.

    At the start, all ranks take rank 0's weights and optimizer state. Seeds of dropout differ from rank to rank. At the
    end of an epoch, metrics and validation are averaged over ranks, weighted by samples. So are the moving statistics
    of ``BatchNormalization``. Rank 0 decides whether to stop and sets learning rates; within an epoch, a callback that
    stops any rank stops all. At the end, all ranks take rank 0's weights.

    If one optimizer of the model averages over the group, all of them do from then on. An error of the group ends
    ``fit`` as treefold's own error, which names the rank.

    Args:
        group: the ranks that train together, as for ``distribute``.
        on_all_ranks: callbacks that see the averages, such as ``EarlyStopping`` and ``ReduceLROnPlateau``.
        on_rank_0: callbacks that write, such as ``ModelCheckpoint`` and ``CSVLogger``; other ranks leave them out.
        warm_up_epochs: the number of epochs in which the learning rate rises to its value, from that over the number of
            ranks; 0 by default.

    Returns:
        A list for ``fit(callbacks=...)``.

    """
    own = [*on_all_ranks, *(on_rank_0 if group.rank == 0 else ())]
    return [Averages(group), *own, RankAgreement(group, warm_up_epochs, may_stop=any(map(_sees_batches, own)))]


class Averages(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped here
    """The first callback: later ones see the averages of all ranks, and errors are the group's own."""

    def __init__(self, group: Group) -> None:
        """Average over a group."""
        super().__init__()
        self.group = group
        self._is_fitting = self._has_warned = False
        self._epoch = self._steps = 0
        self._trained_samples: float | None = None
        self._tested_samples = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        """Attach averaging to all optimizers, and let steps raise the group's own errors.

        Raises:
            KerasError: no optimizer of the model averages gradients over this group, or a loss is a sum.

        """
        with refusing(self.group):
            averagings = attach_all(self.model, self.group)
            for loss in keras.tree.flatten(self.model.loss):
                sums = ("sum", "none", None) if isinstance(loss, keras.losses.Loss) else ("sum",)
                if getattr(loss, "reduction", "mean") in sums:  # TensorFlow's gradient of an array is that of its sum
                    raise KerasError(
                        f"The loss {type(loss).__name__} has reduction={loss.reduction!r}, and ranks average "
                        "gradients: they would be those of one process, divided by the number of ranks. Leave "
                        "reduction out; for the sum, pass loss_weights=float(batch * group.size) to compile, where "
                        "batch is the batch size of one rank."
                    )
        for averaging in averagings:
            averaging.alike = frozenset(map(id, self.model.weights))
        step = self.model.train_function
        if getattr(step, "func", None) is _step:  # of a fit before
            step = step.args[0]
        self.model.train_function = functools.partial(_step, step, self)
        self._is_fitting, self._has_warned = True, False

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """End the averaging of validations: later evaluations are the rank's own."""
        self._is_fitting = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Reset the counts of steps and samples."""
        self._epoch, self._steps = epoch, 0
        self._trained_samples, self._tested_samples = None, 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Count steps."""
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average moving statistics before validation; the metrics still hold those of the training."""
        if self._is_fitting:
            self._end_training()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Store the number of samples that this rank has validated."""
        self._tested_samples = _samples(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average the logs in place, so that later callbacks see the averages."""
        trained = self._end_training()
        logs = {} if logs is None else logs
        for is_test, samples in ((False, trained), (True, self._tested_samples)):
            names = [name for name in logs if name.startswith("val_") is is_test and np.isscalar(logs[name])]
            if names:
                values = np.array([logs[name] for name in names], np.float64)
                means = self.group.all_reduce(values, "mean", weights=samples or 1.0)
                logs.update(zip(names, map(float, means), strict=True))

    def step_place(self) -> str:
        """Return the place of the next step in ``fit``, in words."""
        return f"in step {self._steps + 1} of epoch {self._epoch + 1}"

    def _end_training(self) -> float:
        """Average the moving statistics once per epoch; return the number of samples that this rank trained on."""
        if self._trained_samples is not None:
            return self._trained_samples
        samples = self._trained_samples = _samples(self.model)
        with _located(f"at the end of epoch {self._epoch + 1}, after {self._steps} steps"):
            everyone = self.group.all_gather(np.array([samples]))
        if self.group.rank == 0 and not self._has_warned and everyone.min() < everyone.max():
            self._has_warned = True
            warnings.warn(unequal_samples(everyone.min(), everyone.max()), RuntimeWarning, stacklevel=1)
        self._average_statistics()
        return samples

    def _average_statistics(self) -> None:
        layers = self.model._flatten_layers()  # noqa: SLF001 - layers within layers, too
        normalizations = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        variables = [one for layer in normalizations for one in (layer.moving_mean, layer.moving_variance)]
        _replace(variables, lambda arrays: self.group.all_reduce(arrays, "mean", out=arrays))


class RankAgreement(keras.callbacks.Callback):  # type: ignore[misc] # Keras is untyped here
    """The last callback: weights and decisions of rank 0's callbacks hold for all ranks."""

    def __init__(self, group: Group, warm_up_epochs: int = 0, *, may_stop: bool = False) -> None:
        """Follow rank 0 of a group. ``may_stop``: callbacks of this rank may stop it within an epoch."""
        super().__init__()
        self._group = group
        self._warm_up_epochs = warm_up_epochs
        self._may_stop = may_stop
        self._optimizers: list[Any] = []
        self._full_rates: list[float] = []

    def set_model(self, model: keras.Model) -> None:
        """Store the learning rates to warm up to, before a callback restores lower ones.

        Raises:
            KerasError: one is a schedule.

        """
        super().set_model(model)
        held = optimizers_of(model)
        self._optimizers = [one for one in held if _has_settable_rate(one)]
        self._full_rates = [float(one.learning_rate) for one in self._optimizers]
        with refusing(self._group):
            if self._warm_up_epochs and len(self._optimizers) < len(held):
                raise KerasError(
                    "warm_up_epochs sets the learning rate, and this optimizer has a schedule. "
                    "Leave warm_up_epochs out, and let the schedule begin low."
                )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002 - Keras' signature
        """Take rank 0's weights, state of optimizers and first epoch, and give each rank its own seeds."""
        model, group = self.model, self._group
        trainable, weights = model.trainable_variables, model.weights
        if trainable and model.optimizer and not model.optimizer.built:
            model.optimizer.build(trainable)
        known = {id(one) for one in weights}
        seeds = [one for one in model.variables if id(one) not in known]
        states = [one for optimizer in optimizers_of(model) for one in optimizer.variables if id(one) not in known]
        with _located("at the start of fit"):
            self._take([*weights, *seeds, *states])
            self._may_stop = bool(group.all_reduce(int(self._may_stop), "max"))
        _replace(seeds, lambda arrays: [_seed_of(array, group.rank) for array in arrays])
        _seed_torch(group.rank)
        first = group.broadcast(np.array(model._initial_epoch or 0))  # noqa: SLF001 - where BackupAndRestore puts it
        model._initial_epoch = int(first) or model._initial_epoch  # noqa: SLF001

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Set the learning rate of an epoch of the warm-up."""
        if epoch <= self._warm_up_epochs and self._warm_up_epochs:
            least = 1.0 / self._group.size
            for optimizer, full_rate in zip(self._optimizers, self._full_rates, strict=True):
                optimizer.learning_rate = full_rate * (least + (1.0 - least) * epoch / self._warm_up_epochs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Stop if a callback stops any rank, as ``TerminateOnNaN`` does: every step needs all ranks."""
        if self._may_stop:
            self.model.stop_training = bool(self._group.all_reduce(int(self.model.stop_training), "max"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Stop if rank 0 stops, and take its learning rates."""
        rates = [float(one.learning_rate) for one in self._optimizers]
        must_stop, *decided = self._group.broadcast(np.array([self.model.stop_training, *rates], np.float64))
        self.model.stop_training = bool(must_stop)
        for optimizer, rate, new in zip(self._optimizers, rates, decided, strict=True):
            if new != rate:
                optimizer.learning_rate = float(new)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take rank 0's weights, which a callback may have restored on rank 0 alone."""
        self._take(self.model.weights)

    def _take(self, variables: Sequence[Any]) -> None:
        """Assign rank 0's values to variables."""
        _replace(variables, lambda arrays: self._group.broadcast(arrays, out=arrays))


def _step(step: Callable[..., Any], averages: Averages, *given: Any) -> Any:
    """Make a step. If the group fails inside its graph, raise the group's error in place of the framework's."""
    link = averages.group.link
    with _located(averages.step_place()):
        try:
            made = step(*given)
            if keras.backend.backend() == "jax":
                import jax  # noqa: PLC0415 - Keras' backend, and loaded

                jax.block_until_ready(made)  # until then the group is in use, and errors are not known
        except Exception as error:
            kept, link.error_in_graph = link.error_in_graph, None
            if kept is None:
                raise
            raise kept from error
    return made


@contextlib.contextmanager
def _located(place: str) -> Iterator[None]:
    """Add the place in ``fit`` to an error about calls that differ."""
    try:
        yield
    except CallMismatchError as error:
        error.add_note(place_in_fit(place))
        raise


def _samples(model: keras.Model) -> float:
    """Return the number of samples in a model's metrics, or 0 if its steps do not track the loss."""
    return next((float(one.count) for one in model.metrics if one.name == "loss"), 0.0)


def _seed_of(state: Any, rank: int) -> Any:
    """Return a rank's state of a random generator (a seed, and how often it was used), derived from rank 0's."""
    seed = (int(state[0]) + rank * _SEED_DISTANCE) % _SEEDS if rank else state[0]
    return np.array([seed, *state[1:]], state.dtype)


def _seed_torch(rank: int) -> None:
    """Give PyTorch a seed of its own on every rank but 0: Keras' dropout without a seed uses PyTorch's generator."""
    if rank and keras.backend.backend() == "torch":
        import torch  # noqa: PLC0415 - Keras' backend, and loaded

        torch.manual_seed((torch.initial_seed() + rank * _SEED_DISTANCE) % _SEEDS)


def _sees_batches(callback: keras.callbacks.Callback) -> bool:
    """Tell whether a callback has a method for the end of a batch, so that it may stop training there."""
    names = ("on_batch_end", "on_train_batch_end")
    plain = keras.callbacks.Callback
    return any(getattr(getattr(callback, name), "__func__", None) is not getattr(plain, name) for name in names)


def _has_settable_rate(optimizer: keras.optimizers.Optimizer) -> bool:
    return isinstance(optimizer.learning_rate, keras.Variable)


def _replace(variables: Sequence[Any], change: Callable[[list[Any]], list[Any]]) -> None:
    """Apply ``change`` to copies of the variables' values, which it may modify, and assign the results."""
    if not variables:
        return
    arrays = [np.array(keras.ops.convert_to_numpy(one)) for one in variables]
    for variable, array in zip(variables, change(arrays), strict=True):
        variable.assign(array)


def steps(group: Group, batches: Any) -> int:
    """Return the number of batches that every rank has: the least of all.

    All ranks call this, and leave out further batches, by ``dataset.take`` or by cutting arrays, because every step
    needs all ranks. Setting ``steps_per_epoch`` is not enough: Keras keeps the rest for the next epoch.

    Args:
        group: the ranks that train together.
        batches: the number of this rank's batches in an epoch; or its ``tf.data.Dataset``, ``keras.utils.PyDataset`` or
            PyTorch ``DataLoader``, with batches of one size.

    Returns:
        A number of batches, the same on all ranks.

    Raises:
        KerasError: there is no such number: the length is unknown, infinite or 0, the last batch may be smaller, or
            this is an array of samples.

    """
    with refusing(group):
        count = _count(batches)
        if count < 1:
            raise KerasError(
                f"steps got {short(batches)}. It takes a number of batches, 1 or more, or a dataset that knows how "
                "many it has."
            )
    return int(group.all_reduce(count, "min"))


def _count(batches: Any) -> int:
    with contextlib.suppress(TypeError):
        return operator.index(batches)
    if hasattr(batches, "shape"):
        raise KerasError.array(batches.shape)
    if hasattr(batches, "cardinality"):  # tf.data's
        count = int(batches.cardinality())
        if count < 0:
            raise KerasError.unknown_length()
        if _may_differ(batches.element_spec):
            raise KerasError.unequal_batches(is_loader=False)
        return count
    try:
        count = len(batches)
    except TypeError:
        raise KerasError.unknown_length() from None
    if getattr(batches, "drop_last", None) is False and len(batches.dataset) % (batches.batch_size or 1):
        raise KerasError.unequal_batches(is_loader=True)
    return count


def _may_differ(spec: Any) -> bool:
    """Tell whether the batches of a tf.data dataset may have different lengths."""
    import tensorflow as tf  # noqa: PLC0415 - the dataset is its own

    return any(part.shape.rank and part.shape[0] is None for part in tf.nest.flatten(spec) if hasattr(part, "shape"))
