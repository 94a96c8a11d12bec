"""Averages of models that were trained apart: federated averaging, model soups, local SGD."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, overload

import numpy as np
import torch

from treefold.backends.torch_memory import NAMES
from treefold.dtypes import INTEGERS
from treefold.errors import ArgumentError
from treefold.ops import ReductionToOneDevice
from treefold.values import PerReplica, Weights

Module = TypeVar("Module", bound=torch.nn.Module)
State = TypeVar("State", bound=dict[str, Any])

# It holds nothing but plans it has made.
_OPS = ReductionToOneDevice()


@overload
def average_models(models: Iterable[Module], weights: Weights | None = None) -> Module: ...
@overload
def average_models(models: Iterable[State], weights: Weights | None = None) -> State: ...
def average_models(models: Iterable[Any], weights: Weights | None = None) -> Any:
    """Return the average of models or of state dicts, as what they are, on the device of the first.

    ``models``: a list or an iterator of ``torch.nn.Module``, or of what their ``state_dict()`` gives. Of modules, a
    deep copy of the first is returned with averaged parameters and buffers. Floating-point and complex entries are the
    (weighted) MEAN, the exact value rounded once. Whole numbers, such as ``num_batches_tracked``, keep their
    dtype: what all models agree on stays, else the nearest whole number to the mean, halves to even. Flags (bool) must
    agree.
    ``weights``: one per model, such as the number of examples that each has seen.

    Raises:
        ArgumentError: no models, or something else; a flag that the models do not agree on.
        MismatchError: names, shapes or dtypes that differ, naming the entry.

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
    first = states[0]
    whole = {name for name, entry in first.items() if _is_whole(entry)}
    # Plain dictionaries: the order in which models list their entries does not matter.
    counts = PerReplica([{name: entry for name, entry in state.items() if name in whole} for state in states])
    others = PerReplica([{name: entry for name, entry in state.items() if name not in whole} for state in states])
    averages = _OPS.reduce("mean", others, others.devices[0], weights=weights)[0]
    if whole:
        averages.update({n: a.to(first[n].device) for n, a in _average_counts(counts, weights).items()})
    result = copy.copy(first)  # its type, its order, and the _metadata that load_state_dict looks at
    result.update(averages)
    return result


def _average_counts(counts: PerReplica, weights: Weights | None) -> dict[str, Any]:
    """Return the averages of whole numbers and flags in their own dtypes, in host memory."""
    [low], [high] = (_OPS.reduce(op, counts, "cpu:0") for op in ("min", "max"))
    numbers = [{name: entry for name, entry in state.items() if low[name].dtype is not torch.bool} for state in counts]
    [mean] = _OPS.reduce("mean", PerReplica(numbers), "cpu:0", weights=weights)
    averages = {}
    for name in low:
        if name in mean:
            averages[name] = _nearest(mean[name], low[name], high[name])
        elif torch.equal(low[name], high[name]):
            averages[name] = low[name]
        else:
            raise ArgumentError.flags(name)
    return averages


def _nearest(mean: Any, low: Any, high: Any) -> Any:
    """Round to whole numbers of the dtype of ``low`` and ``high``, within which float64 may not hold all."""
    with np.errstate(invalid="ignore"):  # the largest integers may round up to one that does not exist
        rounded = np.rint(mean.numpy()).astype(low.numpy().dtype)
    return torch.from_numpy(np.asarray(np.clip(rounded, low.numpy(), high.numpy())))


def _is_whole(entry: object) -> bool:
    return isinstance(entry, torch.Tensor) and NAMES.get(entry.dtype) in {*INTEGERS, "bool"}
