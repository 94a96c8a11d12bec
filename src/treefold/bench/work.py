"""Units of work: one all-reduce of one value or of a model's gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from treefold.bench.models import MODELS
from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE, itemsize
from treefold.errors import BenchError
from treefold.errors.words import counted
from treefold.reduce_op import ReduceOp, ReduceOpName

#: Where results go: into the inputs, into given arrays, into new arrays, or one new array that all replicas share.
PLACEMENTS = ("in-place", "out-of-place", "new", "shared")
ACCUMULATIONS = ("exact", "native")


@dataclass(frozen=True, slots=True)
class Work:
    """An all-reduce of tensors of these shapes, one of each per replica.

    >>> Work("tiny", ((2, 3), (4,)), devices=2).nbytes
    40
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    op: ReduceOpName = "sum"
    dtype: str = "float32"
    devices: int = 8
    placement: str = "in-place"
    accumulate: str = "exact"
    threads: int = 2

    @property
    def count(self) -> int:
        """Elements of one replica."""
        return sum(map(math.prod, self.shapes))

    @property
    def nbytes(self) -> int:
        """Bytes of one replica."""
        return self.count * itemsize(self.dtype)

    @property
    def num_results(self) -> int:
        """Arrays that each tensor's result is written to."""
        return 1 if self.placement == "shared" else self.devices

    def check(self) -> None:
        """Raise ``BenchError`` for words or numbers that no work has."""
        ops = tuple(op.value.lower() for op in ReduceOp)
        for option, got, allowed in (
            ("--op", self.op, ops),
            ("--dtype", self.dtype, REDUCIBLE),
            ("--accumulate", self.accumulate, ACCUMULATIONS),
        ):
            if got not in allowed:
                raise BenchError.choice(option, got, allowed)
        if self.dtype in COMPLEX and self.op in {"min", "max"}:
            raise BenchError(f"--op {self.op} has no meaning for --dtype {self.dtype}.")
        if self.placement == "in-place" and self.op == "mean" and self.dtype in INTEGERS:
            raise BenchError(
                f"--op {self.op} of {self.dtype} is a float, which does not fit in place; give --new or --out-of-place."
            )
        for option, number in (("--devices", self.devices), ("--threads", self.threads)):
            if number < 1:
                raise BenchError.least(option, number, 1)


def shapes_of_size(nbytes: int, dtype: str, option: str = "-b") -> tuple[tuple[int, ...], ...]:
    """Return one vector of as many elements as ``nbytes`` hold."""
    length = nbytes // itemsize(dtype)
    if length < 1:
        raise BenchError(f"{option} got {counted(nbytes, 'byte')}. One {dtype} takes {itemsize(dtype)}.")
    return ((length,),)


def shapes_of_model(name: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a model's gradients; ``BenchError`` for a model that has no table."""
    if name not in MODELS:
        raise BenchError.choice("--model", name, tuple(MODELS))
    return MODELS[name]()
