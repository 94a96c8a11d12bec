"""What is written: one file of any kind, or a folder of shards with their index, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from treefold.averaging.folders import INDEX, Layout
from treefold.averaging.npz_files import NpzWriter
from treefold.averaging.readers import TORCH_ENDINGS
from treefold.averaging.safetensors_files import SafetensorsWriter, check_held
from treefold.averaging.selection import Output
from treefold.averaging.stream import Writer
from treefold.averaging.tensors import Checkpoint, Spec
from treefold.averaging.torch_writer import TorchWriter
from treefold.files import NewFolder, new_folder, written_whole

OUTPUT_ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS)
_STEM = re.compile(r"(.+?)(-\d+-of-\d+)?\.[a-z]+")


@dataclass(frozen=True, slots=True)
class Shard:
    """A file to be written, and the tensors in it, in their order."""

    name: str
    outputs: tuple[Output, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(output.spec.nbytes for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be written and where.

    ``ties``: names that share the memory of others. ``small``: files that are copied into the folder.
    """

    path: Path
    is_folder: bool
    shards: tuple[Shard, ...]
    metadata: Mapping[str, str]
    ties: Mapping[str, str]
    mode: int
    source: Path | None = None
    small: tuple[str, ...] = ()
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Output]:
        """All tensors, in the order in which they are written."""
        return [output for shard in self.shards for output in shard.outputs]


def plan_shards(
    outputs: Sequence[Output], first: Checkpoint, layout: Layout | None, *, is_folder: bool, most_bytes: int | None
) -> tuple[Shard, ...]:
    """Return the files to write: as the first input has them, or of at most so many bytes."""
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
        for output in outputs:  # what the first input does not have goes beside the tensor before it
            last = first.shards.get(output.name, last)
            by_shard.setdefault(last, []).append(output)
        order = {shard: number for number, shard in enumerate(sorted(by_shard))}
        groups = [by_shard[shard] for shard in sorted(by_shard, key=order.__getitem__)]
    stem = _stem_of(layout)
    names = [f"{stem}-{number:05}-of-{len(groups):05}.safetensors" for number in range(1, len(groups) + 1)]
    if len(groups) <= 1:
        names = [f"{stem}.safetensors"]
    return tuple(Shard(name, _aligned(group)) for name, group in zip(names, groups or [[]], strict=True))


def _aligned(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return wide elements first, as the safetensors library writes them, so that each is aligned in the file."""
    return tuple(sorted(outputs, key=lambda output: -output.spec.itemsize))


def _stem_of(layout: Layout | None) -> str:
    match = _STEM.fullmatch(layout.shards[0]) if layout is not None and layout.shards else None
    stem = match[1] if match else "model"
    return "model" if stem == "pytorch_model" else stem


def check_target(target: Target) -> None:
    """Refuse what the output cannot hold.

    Raises:
        CheckpointError: a dtype, shape or name that its format does not have.

    """
    specs = {output.name: output.spec for output in target.outputs}
    if target.is_folder or target.path.suffix == ".safetensors":
        check_held(target.path, specs)
    elif target.path.suffix == ".npz":
        NpzWriter.check(target.path, specs)


@contextlib.contextmanager
def writing(target: Target) -> Iterator[Writer]:
    """Give what takes the tensors; the output is there when the ``with`` block ends well, else nothing is left.

    Raises:
        OSError: writing fails.

    """
    if target.is_folder:
        with new_folder(target.path) as draft, contextlib.ExitStack() as opened:
            shards = _FolderWriter(draft, target, opened)
            yield shards
            shards.close()
            _copy_small(draft, target)
    else:
        with written_whole(target.path, mode=target.mode) as file:
            writer = _file_writer(target, file)
            try:
                yield writer
            except BaseException:
                with contextlib.suppress(OSError, ValueError):  # what is begun cannot be ended, and nobody reads it
                    writer.close()
                raise
            writer.close()


def _file_writer(target: Target, file: BinaryIO) -> Writer:
    specs = {output.name: output.spec for output in target.outputs}
    if target.path.suffix == ".npz":
        return NpzWriter(file, specs)
    if target.path.suffix in TORCH_ENDINGS:
        return TorchWriter(target.path, file, specs, target.ties)
    return SafetensorsWriter(target.path, file, specs, {**target.metadata, **target.ties})


class _FolderWriter:
    """Writes shards one behind the other, and the index in the end."""

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


def _copy_small(draft: NewFolder, target: Target) -> None:
    for name in target.small if target.source is not None else ():
        assert target.source is not None  # noqa: S101 - for mypy
        contents = (target.source / name).read_bytes()
        if name == "config.json" and target.changes:
            config = json.loads(contents)
            config |= {key: value for key, value in target.changes.items() if key in config}
            contents = (json.dumps(config, indent=2) + "\n").encode()
        draft.write(name, contents, target.mode)
