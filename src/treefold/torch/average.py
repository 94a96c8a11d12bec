"""Averages of models that were trained apart: federated averaging, model soups, local SGD."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, overload

import torch

from treefold.averaging.trees import average
from treefold.errors import ArgumentError
from treefold.values import Weights

Module = TypeVar("Module", bound=torch.nn.Module)
State = TypeVar("State", bound=dict[str, Any])


@overload
def average_models(models: Iterable[Module], weights: Weights | None = None) -> Module: ...
@overload
def average_models(models: Iterable[State], weights: Weights | None = None) -> State: ...
def average_models(models: Iterable[Any], weights: Weights | None = None) -> Any:
    """Return the average of models or of state dicts, on the device of the first.

    Floating-point and complex entries are the (weighted) MEAN, the exact value rounded once. Whole numbers, such as
    ``num_batches_tracked``, keep their dtype and, if all models agree, their value; else they are the nearest whole
    number to the mean, halves to even. Flags (bool) must agree.

    Args:
        models: A list or an iterator of ``torch.nn.Module``, or of their ``state_dict()``.
        weights: One per model, such as the number of examples that each has seen; None: all weigh the same.

    Returns:
        For modules, a deep copy of the first with averaged parameters and buffers. For state dicts, a state dict.

    Raises:
        ArgumentError: There are no models, or something else; or models differ in a flag.
        MismatchError: Names, shapes or dtypes differ; the message names the entry.

    >>> import torch
    >>> average_models([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}], weights=[1, 2])
    {'w': tensor([3.])}
    """
    is_one = isinstance(models, torch.nn.Module | torch.Tensor | Mapping | AbstractSet | str | bytes)
    if is_one or not isinstance(models, Iterable):
        raise ArgumentError.models(models)
    models = list(models)
    if not models:
        raise ArgumentError.models(models)
    if all(isinstance(model, torch.nn.Module) for model in models):
        averaged = copy.deepcopy(models[0])
        averaged.load_state_dict(_average_states([model.state_dict() for model in models], weights))
        return averaged
    for model in models:
        if not isinstance(model, dict):  # a module among state dicts, or something else
            raise ArgumentError.models(model)
    return _average_states(models, weights)


def _average_states(states: Sequence[dict[str, Any]], weights: Weights | None) -> Any:
    result = copy.copy(states[0])  # its type, its order, and the _metadata that load_state_dict looks at
    # Plain dictionaries: the order in which models list their entries does not matter.
    result.update(average([dict(state) for state in states], weights))
    return result
