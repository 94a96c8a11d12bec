"""Gradients of parameters that every rank holds whole: those of plain modules, and of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from treefold.errors import ArgumentError
from treefold.group import Group
from treefold.partials import Mean


class WholeGradients:
    """The exact weighted mean of the gradients of some parameters.

    A parameter without a gradient in a micro-batch counts as zero there. If no micro-batch of any rank gives it a
    gradient, its ``.grad`` is None at the end, so that optimizers skip it as usual.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], group: Group | None) -> None:
        """Begin without gradients. ``parameters``: those that are trained, by name."""
        self.parameters = dict(parameters)
        self._group = group
        self._mean = Mean()
        self.begin()

    def begin(self) -> None:
        """Begin a step: drop all sums."""
        self._mean.clear()
        self.used = [False] * len(self.parameters)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the partial sums take."""
        return self._mean.nbytes

    def clear(self) -> None:
        """Drop the gradients of this micro-batch."""
        for one in self.parameters.values():
            one.grad = None

    def take(self, weight: Any) -> None:
        """Add the gradients of this micro-batch, times its weight, and clear them."""
        if self.parameters:
            self._mean.add(self._read(), weight=weight)
        self.clear()

    def observed(self) -> Iterator[tuple[torch.nn.Parameter, bytes]]:
        """Yield each parameter that has a gradient in this micro-batch, and the bytes of that gradient."""
        for one in self.parameters.values():
            if one.grad is not None:
                yield one, one.grad.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    def _read(self) -> list[torch.Tensor]:
        """Return the gradients of this micro-batch, zeros where there is none, and note which parameters have one.

        Raises:
            ArgumentError: A gradient is sparse.

        """
        gradients = []
        for at, (name, one) in enumerate(self.parameters.items()):
            gradient = one.grad
            if gradient is None:
                gradient = torch.zeros_like(one)
            elif gradient.is_sparse:
                raise ArgumentError(
                    f"The gradient of {name} is sparse, and MicroBatches adds dense ones. Make the embedding with "
                    "sparse=False."
                )
            else:
                self.used[at] = True
            gradients.append(gradient)
        return gradients

    def write(self, words: int, used: list[bool]) -> None:  # noqa: ARG002 - the mean knows its weights
        """Set ``.grad`` to the mean over all ranks, or to None if no rank has given the parameter a gradient.

        ``used``: for each parameter, whether a rank has.
        """
        if self.parameters:
            means = self._mean.result(group=self._group)
            for one, mean, is_used in zip(self.parameters.values(), means, used, strict=True):
                one.grad = mean if is_used else None
