"""Calls of ``torch.distributed`` that treefold's backend does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.arguments import ArgumentError
from treefold.errors.words import counted, listed, short


class ProcessGroupError(ArgumentError):
    """A call of ``torch.distributed`` that the backend ``"treefold"`` does not take."""

    @classmethod
    def op(cls, op: str, choices: Sequence[str]) -> Self:
        """An op of PyTorch's process groups that treefold does not have."""
        return cls(f'PyTorch\'s backend "treefold" got ReduceOp.{op}. It takes {listed(choices, quote=False)}.')

    @classmethod
    def mean(cls, dtypes: Sequence[str]) -> Self:
        """A mean of booleans, or of whole numbers beside others in one call."""
        return cls(
            f"ReduceOp.AVG got {listed(dtypes, quote=False)}. It takes floating-point and complex tensors, or whole "
            "numbers of 8 to 64 bits, not both in one call. Convert the tensor first."
        )

    @classmethod
    def arguments(cls, call: str, given: Sequence[str], choices: Sequence[str]) -> Self:
        """A method of a process group gets what it has no place for."""
        return cls(f"After its tensors {call} got {', '.join(given)}. It takes {listed(choices, quote=False)} there.")

    @classmethod
    def sizes(cls, collective: str, given: Sequence[str], expected: Sequence[str]) -> Self:
        """Tensors of a collective do not fit together on this rank."""
        return cls(
            f"{collective} got a tensor of {listed(given, quote=False) or 'nothing'}, where one of "
            f"{listed(expected, quote=False) or 'nothing'} belongs. Ranks bring and take tensors of one size and dtype."
        )

    @classmethod
    def no_rank(cls, rank: object, size: int) -> Self:
        """A call names a rank that does not exist, as its root or as its peer."""
        return cls(
            f"Got rank {short(rank)} of a group of {counted(size, 'rank')}. Give a src or dst of 0 to {size - 1}."
        )

    @classmethod
    def overlapping(cls, shape: Sequence[int], strides: Sequence[int]) -> Self:
        """Elements of a tensor that is to be written may share memory."""
        return cls(
            f"A tensor of shape {tuple(shape)} and strides {tuple(strides)} is to be written, and several of its "
            "elements may be one place in memory. Give a copy: tensor.clone()."
        )

    @classmethod
    def shared(cls) -> Self:
        """Tensors of one call share memory."""
        return cls(
            "Some tensors of this call share memory, and would be reduced twice. Tensors that are reduced in place "
            "share memory with no other; copy one of them. Nothing was written."
        )

    @classmethod
    def too_short(cls, nbytes: int, needed: int) -> Self:
        """The storage of a tensor was freed or made smaller."""
        return cls(
            f"A tensor needs {counted(needed, 'byte')} of its storage, which has {counted(nbytes, 'byte')}. Give the "
            "storage its size back (untyped_storage().resize_) before the call."
        )

    @classmethod
    def no_memory(cls) -> Self:
        """PyTorch has allocated nothing for a tensor."""
        return cls(
            "A tensor has no memory of its own: a transform of torch.func stands for it, or it is to be written and "
            "PyTorch has allocated nothing for its zeros. Call where it has memory, and give a copy of such zeros: "
            "tensor.clone()."
        )

    @classmethod
    def quantized(cls, dtype: str) -> Self:
        """A tensor has a scale, which a collective would not move."""
        return cls(
            f"A quantized tensor ({dtype}) has a scale beside its numbers. Give the numbers, tensor.int_repr(), and "
            "the scale as tensors of their own."
        )

    @classmethod
    def sparse(cls, layout: str) -> Self:
        """A tensor keeps only some of its elements."""
        return cls(
            f'PyTorch\'s backend "treefold" got a {layout} tensor. It takes dense tensors: give tensor.to_dense(), or '
            "let the module make dense gradients, as torch.nn.Embedding does with sparse=False."
        )

    @classmethod
    def wrapper(cls, kind: str) -> Self:
        """A tensor of a subclass is made of others, and has no memory of its own."""
        return cls(
            f"A {kind} is made of other tensors, which a collective does not see. Give these: of a DTensor, "
            "tensor.to_local() or tensor.full_tensor()."
        )

    @classmethod
    def count(cls, collective: str, given: int, size: int) -> Self:
        """A list has more or fewer tensors than there are ranks."""
        return cls(
            f"{collective} got a list of {counted(given, 'tensor')} in a group of {counted(size, 'rank')}. The list "
            "has one tensor for each rank, in order of ranks."
        )

    @classmethod
    def row(cls, collective: str, given: int, count: int) -> Self:
        """A rank's list of outputs has more or fewer tensors than there are inputs."""
        return cls(
            f"{collective} got a list of {counted(given, 'output')} for a rank, and {counted(count, 'input')}. Every "
            "rank's list has one output for each input."
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
