"""Uses of Keras on many processes that ``treefold.keras`` does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.arguments import ArgumentError
from treefold.errors.words import short

#: What to do where ranks make other numbers of steps.
_WHOLE_BATCHES = "x[: batch * treefold.keras.steps(group, len(x) // batch)] for arrays, dataset.take(...) for tf.data"


def unequal_samples(least: float, most: float) -> str:
    """Return a warning: ranks had batches of other sizes in the same steps."""
    return (
        f"In this epoch one rank has trained on {least:.0f} samples and another on {most:.0f}, in as many steps. A "
        f"mean of the means of unequal batches is wrong. Give all ranks whole batches: {_WHOLE_BATCHES}."
    )


def place_in_fit(place: str) -> str:
    """Return a note for an error of calls that differ: what this rank was doing."""
    return (
        f"This rank was {place}. In fit all ranks make the same steps, and have the same callbacks. "
        f"Give them as many whole batches: {_WHOLE_BATCHES}."
    )


class KerasError(ArgumentError):
    """A use of Keras on many processes that ``treefold.keras`` does not take."""

    @classmethod
    def no_optimizer(cls, value: object) -> Self:
        return cls(f"distribute got {short(value)}. It takes an optimizer, such as keras.optimizers.Adam(1e-3).")

    @classmethod
    def not_distributed(cls) -> Self:
        """The optimizers of a model average nothing, or over another group than the callbacks."""
        return cls(
            "No optimizer of this model averages gradients over the group of the callbacks. "
            "Call model.compile(optimizer=treefold.keras.distribute(optimizer, group), ...)."
        )

    @classmethod
    def no_callbacks(cls) -> Self:
        """An optimizer that is distributed finds itself in a ``fit`` that does not let ranks start alike."""
        return cls(
            "This fit averages gradients, and lets ranks start from different weights. "
            "Pass callbacks=treefold.keras.callbacks(group) to it."
        )

    @classmethod
    def late_variable(cls, path: str) -> Self:
        """A step trains a variable that ``fit`` could not make alike on all ranks."""
        return cls(
            f"The model did not have {path} when fit began, so ranks start from different values of it. "
            "Build the model before: give it a keras.Input, or call it once on a batch."
        )

    @classmethod
    def summed_loss(cls, name: str, reduction: object) -> Self:
        """A loss is the sum over a batch, while gradients are averaged."""
        return cls(
            f"The loss {name} has reduction={reduction!r}, and ranks average gradients: they would be those of one "
            "process, divided by the number of ranks. Leave reduction out; for the sum, pass "
            "loss_weights=float(batch * group.size) to compile, where batch is the batch size of one rank."
        )

    @classmethod
    def overwritten_variable(cls, path: str) -> Self:
        """The gradient of a variable is its new value, as for the scales of float8."""
        return cls(
            f"Keras overwrites {path} with its gradient, as in float8 training, and such gradients have no average. "
            f"Use another dtype policy."
        )

    @classmethod
    def local_check(cls) -> Self:
        """A loss scale optimizer has looked at gradients before they are averaged."""
        return cls(
            "Keras has put this optimizer into a LossScaleOptimizer, which looks at gradients before they are "
            "averaged. Pass callbacks=treefold.keras.callbacks(group) to fit, or distribute "
            "keras.optimizers.LossScaleOptimizer(optimizer)."
        )

    @classmethod
    def xla_step(cls) -> Self:
        return cls("XLA compiles this step, and cannot call other processes: pass jit_compile=False to compile.")

    @classmethod
    def warm_up(cls) -> Self:
        """A learning rate that cannot be set is to be warmed up."""
        return cls(
            "warm_up_epochs sets the learning rate, and this optimizer has a schedule. "
            "Leave warm_up_epochs out, and let the schedule begin low."
        )

    @classmethod
    def no_batches(cls, value: object) -> Self:
        return cls(
            f"steps got {short(value)}. It takes a number of batches, 1 or more, or a dataset that knows how many it "
            f"has."
        )

    @classmethod
    def array(cls, shape: Sequence[int]) -> Self:
        """Samples came in place of the number of batches."""
        return cls(
            f"steps got an array of shape {tuple(shape)}, and counts batches. "
            f"Pass len(x) // batch, and train on x[: batch * steps(...)]."
        )

    @classmethod
    def unknown_length(cls) -> Self:
        return cls(
            "steps got a dataset of unknown or infinite length. Pass the number of batches that this rank has in an "
            "epoch."
        )

    @classmethod
    def unequal_batches(cls, *, is_loader: bool) -> Self:
        """The last batch of a dataset of tf.data, or of PyTorch's loader, may be smaller."""
        advice = "DataLoader(..., drop_last=True)" if is_loader else "dataset.batch(n, drop_remainder=True)"
        return cls(
            f"The last batch of this dataset may be smaller, and a mean of the means of unequal batches is wrong. "
            f"Drop it: {advice}."
        )
