"""Writes the output: one file of any format, or a folder of shards with their index, whole or not at all.

Tensors move from the inputs to the output block by block, so that memory does not grow with them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from treefold.averaging.arithmetic import Combination, Rule, combine, rounded_once
from treefold.averaging.inputs import INDEX, TORCH_ENDINGS, ModelFiles
from treefold.averaging.npz_files import NpzWriter
from treefold.averaging.safetensors_files import SafetensorsWriter, check_held
from treefold.averaging.selection import Output
from treefold.averaging.tensors import Bytes, Checkpoint, Contents, Span, Spec
from treefold.averaging.torch_files import TorchWriter
from treefold.errors import CheckpointError
from treefold.files import NewFolder, new_folder, written_whole

OUTPUT_ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS)
_STEM = re.compile(r"(.+?)(-\d+-of-\d+)?\.[a-z]+")
#: The blocks of all inputs together, whatever their number.
ALL_BLOCKS_BYTES = 32 << 20
MOST_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK_BYTES = 1 << 12
#: Tensors that are smaller are folded several at a time.
_SMALL_BYTES = 1 << 14
_BATCH_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Shard:
    """A file to be written, with its tensors in order."""

    name: str
    outputs: tuple[Output, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the file."""
        return sum(output.spec.nbytes for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Target:
    """The output: its path, its files, and their contents.

    Attributes:
        ties: The names that share the memory of others.
        copied: The files of the first input. The small ones are copied into the folder.
        changes: New values for keys in the copied ``config.json``.

    """

    path: Path
    is_folder: bool
    shards: tuple[Shard, ...]
    metadata: Mapping[str, str]
    ties: Mapping[str, str]
    mode: int
    copied: ModelFiles | None = None
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Output]:
        """All tensors, in the order in which they are written."""
        return [output for shard in self.shards for output in shard.outputs]

    @property
    def specs(self) -> dict[str, Spec]:
        """The dtype and shape of every tensor by name, in the order in which they are written."""
        return {output.name: output.spec for output in self.outputs}


def plan_shards(
    outputs: Sequence[Output], first: Checkpoint, layout: ModelFiles | None, *, is_folder: bool, most_bytes: int | None
) -> tuple[Shard, ...]:
    """Return the files to write: those of the first input, or files of at most ``most_bytes``."""
    if not is_folder:
        return (Shard("", _aligned(outputs)),)
    groups: list[list[Output]] = []
    if most_bytes is not None:
        nbytes = 0
        for output in outputs:
            if not groups or nbytes + output.spec.nbytes > most_bytes:
                groups.append([])
                nbytes = 0
            groups[-1].append(output)
            nbytes += output.spec.nbytes
    else:
        by_shard: dict[str, list[Output]] = {}
        last = ""
        for output in outputs:  # A tensor that the first input lacks goes into the shard of the one before.
            last = first.shards.get(output.name, last)
            by_shard.setdefault(last, []).append(output)
        groups = [by_shard[shard] for shard in sorted(by_shard)]
    stem = _stem_of(layout)
    names = [f"{stem}-{number:05}-of-{len(groups):05}.safetensors" for number in range(1, len(groups) + 1)]
    if len(groups) <= 1:
        names = [f"{stem}.safetensors"]
    return tuple(Shard(name, _aligned(group)) for name, group in zip(names, groups or [[]], strict=True))


def _aligned(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return tensors with wide elements first, as the safetensors library writes them, so that each is aligned."""
    return tuple(sorted(outputs, key=lambda output: -output.spec.itemsize))


def _stem_of(layout: ModelFiles | None) -> str:
    match = _STEM.fullmatch(layout.shards[0]) if layout is not None and layout.shards else None
    stem = match[1] if match else "model"
    return "model" if stem == "pytorch_model" else stem


def check_target(target: Target) -> None:
    """Refuse tensors that the output's format cannot hold.

    Raises:
        CheckpointError: a dtype, shape or name that its format does not have.

    """
    if target.is_folder or target.path.suffix == ".safetensors":
        check_held(target.path, target.specs)
    elif target.path.suffix == ".npz":
        NpzWriter.check(target.path, target.specs)


@contextlib.contextmanager
def writing(target: Target) -> Iterator[Writer]:
    """Yield a writer for the tensors. The output appears if the ``with`` block ends well; else nothing is left.

    Raises:
        OSError: writing fails.

    """
    if target.is_folder:
        with new_folder(target.path) as draft, contextlib.ExitStack() as opened:
            shards = _FolderWriter(draft, target, opened)
            yield shards
            shards.close()
            if target.copied is not None:
                _copy_small(draft, target, target.copied)
    else:
        with written_whole(target.path, mode=target.mode) as file:
            writer = _file_writer(target, file)
            try:
                yield writer
            except BaseException:
                with contextlib.suppress(OSError, ValueError):  # the file is incomplete, and will be removed
                    writer.close()
                raise
            writer.close()


def _file_writer(target: Target, file: BinaryIO) -> Writer:
    if target.path.suffix == ".npz":
        return NpzWriter(file, target.specs)
    if target.path.suffix in TORCH_ENDINGS:
        return TorchWriter(target.path, file, target.specs, target.ties)
    return SafetensorsWriter(target.path, file, target.specs, {**target.metadata, **target.ties})


class _FolderWriter:
    """Writes one shard after the other, and the index at the end."""

    def __init__(self, draft: NewFolder, target: Target, opened: contextlib.ExitStack) -> None:
        self._draft, self._target, self._opened = draft, target, opened
        self._places = {output.name: shard for shard in target.shards for output in shard.outputs}
        self._shard: Shard | None = None
        self._file: BinaryIO | None = None
        self._writer: SafetensorsWriter | None = None
        for shard in target.shards:
            if not shard.outputs:
                self._begin(shard)

    def tensor(self, name: str) -> AbstractContextManager[Any]:
        shard = self._places[name]
        if shard is not self._shard or self._writer is None:
            self._begin(shard)
        assert self._writer is not None  # noqa: S101 - for mypy
        return self._writer.tensor(name)

    def _begin(self, shard: Shard) -> None:
        self._end()
        self._file = self._opened.enter_context(self._draft.create(shard.name, self._target.mode))
        specs: dict[str, Spec] = {output.name: output.spec for output in shard.outputs}
        ties = {name: kept for name, kept in self._target.ties.items() if kept in specs}
        self._shard = shard
        self._writer = SafetensorsWriter(self._target.path, self._file, specs, {**self._target.metadata, **ties})

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()

    def close(self) -> None:
        self._end()
        shards = self._target.shards
        if len(shards) > 1:
            stem = shards[0].name.rpartition("-of-")[0].rpartition("-")[0]
            places = {output.name: shard.name for shard in shards for output in shard.outputs}
            index = {"metadata": {"total_size": sum(shard.nbytes for shard in shards)},
                     "weight_map": dict(sorted(places.items()))}  # fmt: skip
            text = json.dumps(index, indent=2) + "\n"
            self._draft.write(f"{stem}.safetensors{INDEX}", text.encode(), self._target.mode)


def _copy_small(draft: NewFolder, target: Target, files: ModelFiles) -> None:
    for name in files.small:
        contents = (files.folder / name).read_bytes()
        if name == "config.json" and target.changes:
            config = json.loads(contents)
            config |= {key: value for key, value in target.changes.items() if key in config}
            contents = (json.dumps(config, indent=2) + "\n").encode()
        draft.write(name, contents, target.mode)


class Writer(Protocol):
    """Writes the tensors of a file or folder, in the order in which they were announced."""

    def tensor(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Open a tensor for writing: an object with ``write(bytes)``."""

    def close(self) -> None:
        """Write the end of the file."""


def average(outputs: Sequence[Output], writer: Writer, on_bytes: Callable[[int], None]) -> None:
    """Write every output. ``on_bytes`` is called with the number of bytes that were read.

    Raises:
        CheckpointError: a file ends too early, or inputs differ in a tensor that has no mean.
        OSError: writing failed.

    """
    room = np.empty(MOST_BLOCK_BYTES, np.uint8)
    for batch in _batches(outputs):
        if len(batch) == 1:
            _stream(batch[0], room, writer, on_bytes)
        else:
            _fold_batch(batch, writer, on_bytes)


def block_bytes(num_inputs: int) -> int:
    """Return the bytes of a block: whole elements of every dtype, and few enough to stay in a cache."""
    fair = min(max(ALL_BLOCKS_BYTES // num_inputs, _LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES)
    return fair // _LEAST_BLOCK_BYTES * _LEAST_BLOCK_BYTES


def _batches(outputs: Sequence[Output]) -> Iterator[list[Output]]:
    """Yield small tensors of one dtype and one combination together, and all others alone, in their order."""
    batch: list[Output] = []
    nbytes = 0
    for output in outputs:
        size = output.spec.nbytes
        is_small = size <= _SMALL_BYTES and output.work == output.spec and all(type(t) is Span for t in output.tensors)
        is_alike = batch and is_small and nbytes + size <= _BATCH_BYTES // len(output.tensors) + _SMALL_BYTES
        if is_alike and _kind_of(output) == _kind_of(batch[0]):
            batch.append(output)
            nbytes += size
            continue
        if batch:
            yield batch
        batch, nbytes = [output], size
        if not is_small:
            yield batch
            batch = []
    if batch:
        yield batch


def _kind_of(output: Output) -> tuple[str, Rule, Combination]:
    return output.spec.dtype, output.rule, output.combination


def _fold_batch(batch: Sequence[Output], writer: Writer, on_bytes: Callable[[int], None]) -> None:
    nbytes = sum(output.spec.nbytes for output in batch)
    parts = np.empty((len(batch[0].tensors), nbytes), np.uint8)
    for output, (first, last) in zip(batch, _ranges(batch), strict=True):
        for part, tensor in zip(parts, output.tensors, strict=True):
            tensor.read_into(part[first:last], output.name)  # type: ignore[attr-defined]  # batches hold spans alone
    dtype = batch[0].spec.numpy_dtype
    result = np.empty(nbytes, np.uint8)
    views, out = [part.view(dtype) for part in parts], result.view(dtype)
    try:
        combine(batch[0].name, batch[0].spec.dtype, views, batch[0].combination, out, batch[0].rule)
    except CheckpointError:  # of which of them, is seen when each is alone
        for output, (first, last) in zip(batch, _ranges(batch), strict=True):
            one = slice(first // dtype.itemsize, last // dtype.itemsize)
            own = [view[one] for view in views]
            combine(output.name, output.spec.dtype, own, output.combination, out[one], output.rule)
        raise
    for output, (first, last) in zip(batch, _ranges(batch), strict=True):
        with writer.tensor(output.name) as target:
            target.write(result[first:last].data)
    on_bytes(parts.size)


def _ranges(batch: Sequence[Output]) -> Iterator[tuple[int, int]]:
    start = 0
    for output in batch:
        yield start, start + output.spec.nbytes
        start += output.spec.nbytes


def _stream(output: Output, room: Bytes, writer: Writer, on_bytes: Callable[[int], None]) -> None:
    spec, work = output.spec, output.work
    out = room[: block_bytes(len(output.tensors))]
    with contextlib.ExitStack() as opened:
        contents = [opened.enter_context(tensor.open()) for tensor in output.tensors]
        target = opened.enter_context(writer.tensor(output.name))
        for start in range(0, work.nbytes, out.size):
            block = out[: work.nbytes - start]
            taken = zip(output.paths, contents, strict=True)
            parts = [_take(path, output.name, tensor, block.size) for path, tensor in taken]
            views, result = [part.view(work.numpy_dtype) for part in parts], block.view(work.numpy_dtype)
            combine(output.name, work.dtype, views, output.combination, result, output.rule)
            if work.dtype != spec.dtype:
                result = rounded_once(result, views, output.combination, spec.dtype, work.dtype)
            target.write(result.view(np.uint8).data)
            on_bytes(block.size * len(contents))


def _take(path: Path, name: str, contents: Contents, nbytes: int) -> Bytes:
    try:
        part = contents.take(nbytes)
    except OSError as error:
        raise CheckpointError.unreadable(path, error) from None
    if part.size < nbytes:
        raise CheckpointError.truncated(path, name)
    return part
