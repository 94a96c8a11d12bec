"""Plans that a format has no words for, and files in that format that do not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, short


class ExportError(TreefoldError, ValueError):
    """A plan that cannot be written in a format, or text in the format that is broken or wrong."""

    @classmethod
    def collective(cls, collective: str, leaves: int) -> Self:
        """Something else than the all-reduce of one array."""
        return cls(
            f"This plan is a {collective} of {counted(leaves, 'array')}. MSCCL is written for the all_reduce of one "
            f"array: plan that, for example with planners.tree_packing.plan_trees."
        )

    @classmethod
    def placement(cls, device: str, inputs: int, outputs: int) -> Self:
        """A device that does not bring one value and want one result."""
        return cls(
            f"{device} has {counted(inputs, 'input')} and {counted(outputs, 'output')}. In MSCCL every GPU brings one "
            f"value and gets one result: place one replica on each device."
        )

    @classmethod
    def chunks(cls, got: int, allowed: int) -> Self:
        """Shares that need more chunks than an algorithm should have."""
        return cls(
            f"The plan's packs need {got} chunks of equal size and at most {allowed} are written. Plan fewer packs, or "
            f"a length that their shares divide."
        )

    @classmethod
    def limit(cls, what: str, got: int, allowed: int) -> Self:
        """More than MSCCL's interpreter takes."""
        return cls(f"The algorithm needs {got} {what}; RCCL and MSCCL take {allowed}. Plan fewer packs.")

    @classmethod
    def broken_xml(cls, problem: str) -> Self:
        """No XML, or XML that is cut off."""
        return cls(f"The MSCCL file is broken or cut off: {problem}. Write it again with treefold plan --msccl.")

    @classmethod
    def too_long(cls, got: int, allowed: int) -> Self:
        """More text than any algorithm needs."""
        return cls(f"The MSCCL file has {got} characters; at most {allowed} are read. Write a smaller algorithm.")

    @classmethod
    def field(cls, where: str, name: str, got: object, allowed: str) -> Self:
        """An attribute that is missing or says what it cannot say."""
        return cls(f"{where} has {name}={short(got)}. It takes {allowed}; correct the file.")

    @classmethod
    def deadlock(cls, waiting: Sequence[str]) -> Self:
        """Blocks that wait for each other."""
        return cls(f"The algorithm comes to a stop: {'; '.join(waiting)}. No order of its steps can go on.")

    @classmethod
    def unwritten(cls, step: str, place: str) -> Self:
        """A step that reads what nobody wrote."""
        return cls(f"{step} reads {place}, which nothing has written. Every chunk must be written before it is read.")

    @classmethod
    def race(cls, place: str, first: str, second: str) -> Self:
        """Two steps on one chunk that nothing orders."""
        return cls(f"{first} and {second} both use {place} and nothing orders them. One must depend on the other.")

    @classmethod
    def crossed(cls, step: str, first: int, second: int) -> Self:
        """Chunks that do not belong together are added."""
        return cls(f"{step} adds chunk {first} and chunk {second}. Only contributions to one chunk can be added.")

    @classmethod
    def wrong_result(cls, gpu: int, chunk: int, found: str) -> Self:
        """A result that is not every contribution once."""
        return cls(
            f"GPU {gpu} ends with {found} in chunk {chunk} of its output. Every GPU's contribution must be in it once."
        )
