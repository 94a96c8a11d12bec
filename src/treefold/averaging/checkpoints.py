"""``average_checkpoints``: the command ``treefold average`` as a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from treefold.averaging.arithmetic import Op
from treefold.averaging.run import Request, Run, Summary
from treefold.averaging.selection import Choice
from treefold.dtypes import FLOATS
from treefold.errors import AverageOptionError

StrPath = str | PathLike[str]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?")


def average_checkpoints(  # noqa: PLR0913 - the options of the command
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    op: str = "mean",
    weights: str | Sequence[object] | None = None,
    decay: str | None = None,
    last: int | None = None,
    base: StrPath | None = None,
    key: str | None = None,
    strip_prefix: str | Sequence[str] = (),
    partial: bool = False,
    only: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    dtype: str | None = None,
    integers: str | None = None,
    max_shard_size: str | int | None = None,
    dry_run: bool = False,
    on_start: Callable[[int], None] | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Average checkpoints into a file or a folder: exactly, and in constant memory.

    Args:
        inputs: Files, folders, indexes of shards, or patterns of their names.
        output: A file whose ending says its format, or a folder where the first input is one. It appears when it is
            whole.
        op: ``"mean"``, ``"sum"``, or ``"combine"``: Σ wᵢ·xᵢ with weights of any sign, not divided.
        weights: One number per input: text as on the command line, or numbers. A float is its binary value.
        decay: ``"linear"``, ``"cosine"`` or ``"1-sqrt"``: weights that stand for such a decay of the learning rate.
        last: How many inputs to take, the last ones by the numbers in their names. A folder alone stands for the
            checkpoints in it.
        base: A checkpoint that is subtracted from all inputs before, and added afterwards.
        key: The mapping that holds the tensors, in files of nested dictionaries; dots between nested names, and a dot
            alone for the top.
        strip_prefix: Prefixes to take off the names of tensors.
        partial: Keep tensors that only some inputs have, averaged over those.
        only: Patterns of names of tensors to take, as of files: ``"model.layers.*"``.
        skip: Patterns of names of tensors to leave out.
        dtype: The dtype of floats in the output, 8-bit floats included: the exact value, rounded to it once.
        integers: What becomes of integers that differ: ``"mean"``, or ``"first"`` for those of the first input. None:
            counters are averaged, and others are refused, because they may be codes of a quantized model.
        max_shard_size: The most bytes of a file of an output folder, as a number or as ``"5GB"``.
        dry_run: Write nothing.
        on_start: Called with the number of bytes that will be read.
        on_bytes: Called with the number of bytes that were read, now and then.

    Returns:
        What was written, or would be. With ``dry_run`` it may hold differences.

    Raises:
        CheckpointError: An input is refused, inputs do not go together, or the output cannot be written.
        ArgumentError: Weights that are no numbers.

    """
    if op not in tuple(Op):
        raise AverageOptionError.value("--op", op, "mean, sum or combine")
    if dtype is not None and dtype not in FLOATS:
        raise AverageOptionError.value("--dtype", dtype, "float16, bfloat16, float32 or float64")
    if integers not in {None, "mean", "first"}:
        raise AverageOptionError.value("--integers", integers, "mean or first")
    request = Request(
        op=Op(op),
        weights=weights,
        decay=decay,
        last=last,
        base=None if base is None else Path(base),
        key=key,
        choice=Choice(_row(strip_prefix), _row(only), _row(skip), dtype, partial, integers),
        max_shard_bytes=None if max_shard_size is None else _read_size(max_shard_size),
    )
    with Run([Path(path) for path in inputs], Path(output), request) as run:
        if on_start is not None:
            on_start(run.nbytes)
        if not dry_run:
            run.write(on_bytes)
        return run.summary()


def _row(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _read_size(given: str | int) -> int:
    match = _SIZE.fullmatch(str(given).strip().upper())
    nbytes = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if nbytes < 1:
        raise AverageOptionError.value("--max-shard-size", given, "a size such as 5GB or 500MiB")
    return nbytes
