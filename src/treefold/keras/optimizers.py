"""``distribute``: an optimizer that averages its gradients over a group before it uses them.

The optimizer keeps its class and its configuration, so that files saved with it load without treefold. Two of its
methods are shadowed by attributes of the object, which are methods of ``Averaging``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from treefold.errors import GroupError, KerasError
from treefold.errors.words import short
from treefold.group import Group

#: The attribute in which an optimizer keeps its ``Averaging``.
_ATTRIBUTE = "treefold_averaging"


def distribute(optimizer: keras.optimizers.Optimizer, group: Group) -> keras.optimizers.Optimizer:
    """Let an optimizer average its gradients over all ranks, exactly and in one call; return this optimizer.

    All of its variables are reduced in every step. A gradient that is None on a rank counts as zero there. With
    ``gradient_accumulation_steps``, gradients are averaged in the steps that update. Clipping and the check for finite
    gradients of a ``LossScaleOptimizer`` see the averages, so that all ranks skip a step or none does.

    Args:
        optimizer: any optimizer of Keras, built or not. To move it to another group, call this again, and ``compile``.
        group: the ranks that train together. All of them must make the same steps.

    Returns:
        The same object. Its class, its configuration and what is saved with it stay Keras' own.

    Raises:
        KerasError: this is not an optimizer. In a step: XLA compiles it for TensorFlow, ``fit`` lacks the callbacks,
            or a variable is one that is overwritten with its gradient.

    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise KerasError(
            f"distribute got {short(optimizer)}. It takes an optimizer, such as keras.optimizers.Adam(1e-3)."
        )
    attach(optimizer, group)
    return optimizer


def attach(optimizer: keras.optimizers.Optimizer, group: Group) -> Averaging:
    """Let an optimizer average its gradients over a group in place of any earlier group; return its ``Averaging``."""
    for one in (optimizer, _inner(optimizer)):
        averaging = averaging_of(one)
        if averaging is not None:
            averaging.detach()
    kind = AveragingBeforeCheck if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else Averaging
    return kind(optimizer, group)


def attach_all(model: keras.Model, group: Group) -> list[Averaging]:
    """Return the ``Averaging`` of each optimizer of a model that averages over this group; attach missing ones.

    A model may hold further optimizers, such as the one that ``compile`` made and a custom ``train_step`` ignores.

    Raises:
        KerasError: no optimizer of the model averages over this group.

    """
    found = [(one, averaging_of(one) or averaging_of(_inner(one))) for one in optimizers_of(model)]
    if not any(averaging and averaging.group is group for _, averaging in found):
        raise KerasError(
            "No optimizer of this model averages gradients over the group of the callbacks. "
            "Call model.compile(optimizer=treefold.keras.distribute(optimizer, group), ...)."
        )
    # An averaging of the optimizer within comes before its loss scale optimizer's check, from now on.
    return [
        averaging if averaging and averaging is averaging_of(one) else attach(one, group)
        for one, averaging in found
        if averaging is None or averaging.group is group
    ]


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that a model and its layers hold as attributes, or in lists, tuples and dicts of these."""
    held = {}
    for layer in model._flatten_layers():  # noqa: SLF001 - the model, and layers within layers, too
        values = list(vars(layer).values())
        values += [one for value in values if isinstance(value, dict) for one in value.values()]
        values += [one for value in values if isinstance(value, list | tuple) for one in value]
        held.update({id(one): one for one in values if isinstance(one, keras.optimizers.Optimizer)})
    inner = {id(_inner(one)) for one in held.values()}
    return [one for key, one in held.items() if key not in inner]


def averaging_of(optimizer: Any) -> Averaging | None:
    """Return the ``Averaging`` of an optimizer, or None if it has none."""
    found: Averaging | None = getattr(optimizer, _ATTRIBUTE, None)
    return found


@contextlib.contextmanager
def refusing(group: Group) -> Iterator[None]:
    """Send a refusal to the other ranks, so that the call in which they wait ends with the same sentence."""
    try:
        yield
    except KerasError as error:
        call = object()
        with contextlib.suppress(GroupError):  # of a group that is over
            group.link.begin(call)
            group.link.fail(call, error)
        raise


class Averaging:
    """Wraps methods of an optimizer, and averages the gradients that they get."""

    covered: tuple[str, ...] = ("apply", "_clip_gradients")

    def __init__(self, optimizer: keras.optimizers.Optimizer, group: Group) -> None:
        """Replace the methods of an optimizer."""
        self.group = group
        #: Ids of the variables that ``fit`` has made equal on all ranks. None if it lacks the callbacks.
        self.alike: frozenset[int] | None = None
        self._optimizer = optimizer
        self._plain = {name: getattr(optimizer, name) for name in self.covered}
        for name in self.covered:
            setattr(optimizer, name, getattr(self, name))
        setattr(optimizer, _ATTRIBUTE, self)

    def detach(self) -> None:
        """Restore the optimizer's own methods."""
        for name in (*self.covered, _ATTRIBUTE):
            delattr(self._optimizer, name)

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Apply the averages of gradients; ``stateless_apply`` calls this, too.

        Accumulated gradients are averaged when they are used.
        """
        variables = None if trainable_variables is None else list(trainable_variables)
        given = self._filled(grads, variables)
        accumulates = self._optimizer.gradient_accumulation_steps
        return self._plain["apply"](given if accumulates else self._averaged(given), variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """Average the gradients if they were accumulated, then clip."""
        steps = self._optimizer.gradient_accumulation_steps
        if steps and keras.backend.backend() == "jax":
            # JAX's optimizers call this in every step, and drop the results of steps that do not update.
            is_update = (self._optimizer._iterations + 1) % steps == 0  # noqa: SLF001 - ``iterations`` counts updates
            grads = keras.ops.cond(is_update, lambda: self._averaged(grads), lambda: list(grads))
        elif steps:
            grads = self._averaged(grads)
        return self._plain["_clip_gradients"](grads)

    def _filled(self, grads: Iterable[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Return gradients of the same form on all ranks: dense ones, with zeros for None."""
        variables = self._optimizer._trainable_variables if variables is None else variables  # noqa: SLF001
        with refusing(self.group):
            self._refuse_callers(variables)
            for variable in variables:
                if getattr(variable, "overwrite_with_gradient", False):
                    raise KerasError(
                        f"Keras overwrites {variable.path} with its gradient, as in float8 training, and such "
                        "gradients have no average. Use another dtype policy."
                    )
        pairs = zip(grads, variables, strict=True)
        return [
            keras.ops.zeros(variable.shape, variable.dtype) if grad is None else _dense(grad)
            for grad, variable in pairs
        ]

    def _averaged(self, grads: Sequence[Any]) -> list[Any]:
        """Return the means over all ranks."""
        if not grads:
            return []
        with refusing(self.group):
            _refuse_xla()
        return self.group.all_reduce(list(grads), "mean")

    def _refuse_callers(self, variables: Sequence[Any]) -> None:
        """Raise if another ``LossScaleOptimizer`` calls, or a ``fit`` without the callbacks, or with other variables.

        Such a ``LossScaleOptimizer`` has checked only this rank's gradients. If they are not finite, it does not call
        at all, and the other ranks average other steps. In the other cases ranks may start from different weights.
        """
        frame = sys._getframe()  # noqa: SLF001 - nothing else tells an optimizer who uses it
        while frame.f_back is not None:
            frame = frame.f_back
            caller = frame.f_locals.get("self")
            if isinstance(caller, keras.optimizers.LossScaleOptimizer) and caller is not self._optimizer:
                raise KerasError(
                    "Keras has put this optimizer into a LossScaleOptimizer, which looks at gradients before they are "
                    "averaged. Pass callbacks=treefold.keras.callbacks(group) to fit, or distribute "
                    "keras.optimizers.LossScaleOptimizer(optimizer)."
                )
            if isinstance(caller, keras.Model) and frame.f_code.co_name == "fit":
                if self.alike is None:
                    raise KerasError(
                        "This fit averages gradients, and lets ranks start from different weights. "
                        "Pass callbacks=treefold.keras.callbacks(group) to it."
                    )
                for variable in variables:
                    if id(variable) not in self.alike:
                        raise KerasError(
                            f"The model did not have {variable.path} when fit began, so ranks start from different "
                            "values of it. Build the model before: give it a keras.Input, or call it once on a batch."
                        )


class AveragingBeforeCheck(Averaging):
    """Averages gradients, in every step, before a ``LossScaleOptimizer`` checks whether they are finite."""

    covered = ("apply", "stateless_apply")

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Check and apply the averages of gradients."""
        variables = None if trainable_variables is None else list(trainable_variables)
        return self._plain["apply"](self._averaged(self._filled(grads, variables)), variables)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> Any:
        """Check and apply the averages of gradients; Keras does not call ``apply`` for this."""
        given = self._averaged(self._filled(grads, None))
        return self._plain["stateless_apply"](optimizer_variables, given, trainable_variables)


def _inner(optimizer: Any) -> Any:
    """Return the optimizer inside a ``LossScaleOptimizer``, or None for other optimizers."""
    return getattr(optimizer, "inner_optimizer", None)


def _dense(grad: Any) -> Any:
    """Return a gradient as a dense array: TensorFlow's gradients of embeddings are rows, which differ between ranks."""
    if keras.backend.backend() != "tensorflow":
        return grad
    import tensorflow as tf  # noqa: PLC0415 - Keras' backend, and loaded

    return tf.convert_to_tensor(grad)


def _refuse_xla() -> None:
    """Raise if XLA compiles a step for TensorFlow: a compiled step cannot call another process."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf  # noqa: PLC0415 - as above
    from tensorflow.python.ops import control_flow_util  # noqa: PLC0415

    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise KerasError("XLA compiles this step, and cannot call other processes: pass jit_compile=False to compile.")
