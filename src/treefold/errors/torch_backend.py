"""Calls of ``torch.distributed`` that treefold's backend does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.arguments import ArgumentError
from treefold.errors.words import listed


class ProcessGroupError(ArgumentError):
    """A call of ``torch.distributed`` that the backend ``"treefold"`` does not take."""

    @classmethod
    def op(cls, op: str, choices: Sequence[str]) -> Self:
        """An op of PyTorch's process groups that treefold does not have."""
        return cls(f'PyTorch\'s backend "treefold" got ReduceOp.{op}. It takes {listed(choices, quote=False)}.')

    @classmethod
    def mean(cls, dtype: str) -> Self:
        """A mean of whole numbers, which is to be written into a tensor of whole numbers."""
        return cls(f"ReduceOp.AVG of {dtype} is no {dtype}. Use SUM, or convert the tensor to floating point first.")

    @classmethod
    def sizes(cls, collective: str, given: Sequence[str], expected: Sequence[str]) -> Self:
        """Tensors of a collective do not fit together on this rank."""
        return cls(
            f"{collective} got a tensor of {listed(given, quote=False) or 'nothing'}, where one of "
            f"{listed(expected, quote=False) or 'nothing'} belongs. Ranks bring and take tensors of one size and dtype."
        )

    @classmethod
    def exchange(cls, size: int) -> Self:
        """The tensors of an all-to-all are not one for each rank, of one dtype."""
        return cls(f"all_to_all takes {size} tensors to send and {size} to write, one for each rank, all of one dtype.")

    @classmethod
    def other_backend(cls, backend: str) -> Self:
        """A hook needs the ranks' shared memory, and the group has none."""
        return cls(
            f'shared_mean_hook needs a process group of the backend "treefold", and this one is of "{backend}". '
            'Make it with init_process_group("treefold") or new_group(backend="treefold").'
        )
