"""Checks of a collective of ``torch.distributed``: its op, its root, its numbers and sizes of tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from treefold.errors import ProcessGroupError
from treefold.errors.words import counted, listed, short

_Op = distributed.ReduceOp
_OPS = {_Op.SUM: "sum", _Op.AVG: "mean", _Op.MIN: "min", _Op.MAX: "max", _Op.PRODUCT: "product"}
#: As gloo and NCCL have them: "or" and "and".
_OPS_OF_BOOLS = _OPS | {_Op.SUM: "max", _Op.PRODUCT: "min"}
_WHOLE = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: The op of means that are written as whole numbers.
WHOLE_MEAN = "mean of whole numbers"


def op_of(opts: Any, tensors: Sequence[Any]) -> str:
    """Return treefold's name of an op; ``WHOLE_MEAN`` for AVG of whole numbers.

    Raises:
        ProcessGroupError: treefold has no such op, or not for these tensors.

    """
    op = opts.reduceOp.op
    if op not in _OPS:
        raise ProcessGroupError.op(op.name, [known.name for known in _OPS])
    dtypes = {tensor.dtype for tensor in tensors}
    others = {dtype for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)}
    if op == _Op.AVG and others:
        if not dtypes <= _WHOLE:
            raise ProcessGroupError.mean(sorted(map(str, dtypes)))
        return WHOLE_MEAN
    return (_OPS_OF_BOOLS if dtypes == {torch.bool} else _OPS)[op]


def check_rank(rank: object, size: int) -> int:
    """Return a root, which may be a whole number of NumPy or PyTorch.

    Raises:
        ProcessGroupError: it is none of ``size`` ranks.

    """
    try:
        number = operator.index(rank)  # type: ignore[arg-type] # what is none raises
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise ProcessGroupError(
            f"Got rank {short(rank)} of a group of {counted(size, 'rank')}. Give a src or dst of 0 to {size - 1}."
        )
    return number


def check_count(collective: str, tensors: Sequence[Any], size: int) -> None:
    """Refuse a list that has not one tensor for each rank.

    Raises:
        ProcessGroupError: it has more or fewer than ``size``.

    """
    if len(tensors) != size:
        raise ProcessGroupError(
            f"{collective} got a list of {counted(len(tensors), 'tensor')} in a group of {counted(size, 'rank')}. The "
            "list has one tensor for each rank, in order of ranks."
        )


def check_sizes(collective: str, given: Sequence[Any], expected: Sequence[Any]) -> None:
    """Refuse flat tensors that differ from those they belong to.

    Raises:
        ProcessGroupError: showing both.

    """
    found, wanted = [_form(one) for one in given], [_form(one) for one in expected]
    if found != wanted:
        raise ProcessGroupError(
            f"{collective} got a tensor of {listed(found, quote=False) or 'nothing'}, where one of "
            f"{listed(wanted, quote=False) or 'nothing'} belongs. Ranks bring and take tensors of one size and dtype."
        )


def columns(collective: str, rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Return, for each of ``count`` tensors, its entry of every row.

    Raises:
        ProcessGroupError: a row has more or fewer entries.

    """
    for row in rows:
        if len(row) != count:
            raise ProcessGroupError(
                f"{collective} got a list of {counted(len(row), 'output')} for a rank, and {counted(count, 'input')}. "
                "Every rank's list has one output for each input."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def words(flats: Sequence[Any]) -> str:
    """Return the sizes and dtypes of flat tensors in words."""
    return ", ".join(map(_form, flats))


def _form(flat: Any) -> str:
    return f"{flat.numel()} {str(flat.dtype).removeprefix('torch.')}"
