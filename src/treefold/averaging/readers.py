"""One input of any layout, open: a file, an index with its shards, a folder, a distributed checkpoint."""

from __future__ import annotations

import contextlib
from pathlib import Path

from treefold.averaging.distributed import METADATA, read_distributed
from treefold.averaging.folders import INDEX, STEMS, Layout, find_layout, read_config
from treefold.averaging.foreign import check_beginning, check_ending, check_folder
from treefold.averaging.mapped import OpenFile, many_files
from treefold.averaging.npz_files import read_npz
from treefold.averaging.safetensors_files import read_safetensors
from treefold.averaging.tensors import Checkpoint
from treefold.averaging.torch_reader import read_torch
from treefold.errors import CheckpointError, CheckpointFormatError

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
#: The last is timm's, for what is no tar archive.
ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS, ".pth.tar")

#: What torch.distributed.checkpoint says in the header of a safetensors file that holds one rank's part of tensors.
_OF_A_PART = "DCP_SHARDING_INFO"


class Reader:
    """Opens inputs, and closes them together.

    ``scratch``: a directory for what must be put in order on disk. ``key``: the mapping in PyTorch's files that holds
    the tensors. ``files``: those that were opened.
    """

    def __init__(self, scratch: Path, key: str | None) -> None:
        """Open nothing yet."""
        self.files: list[OpenFile] = []
        self._scratch, self._key = scratch, key
        self._limits = contextlib.ExitStack()

    def read(self, path: Path) -> tuple[Checkpoint, Layout | None]:
        """Read what an input holds, and its layout if that is of several files.

        Raises:
            CheckpointError: it is not read, with the remedy.

        """
        try:
            if path.is_dir():
                return self._read_folder(path)
            if path.name.endswith(INDEX):
                return self._read_layout(path, find_layout(path))
        except OSError as error:
            raise CheckpointError.unreadable(path, error) from None
        checkpoint = self._read_file(path)
        if path.stem in STEMS:  # a file of a folder as libraries write them
            checkpoint.config = read_config(path.parent)
        return checkpoint, None

    def _open(self, path: Path) -> OpenFile:
        if not self.files:
            self._limits.enter_context(many_files())
        try:
            file = OpenFile(path)
        except OSError as error:
            raise CheckpointError.unreadable(path, error) from None
        self.files.append(file)
        return file

    def _read_file(self, path: Path) -> Checkpoint:
        check_ending(path)
        if not path.name.endswith(ENDINGS):
            raise CheckpointError.suffix(path, ENDINGS)
        file = self._open(path)
        try:
            check_beginning(file, path.suffix)
        except OSError as error:
            raise CheckpointError.unreadable(path, error) from None
        if path.suffix == ".npz":
            return read_npz(file, self._scratch)
        if path.suffix == ".safetensors":
            checkpoint = _with_stored_ties(read_safetensors(file))
            if _OF_A_PART in checkpoint.metadata:
                raise CheckpointFormatError.named(path, "part")
            return checkpoint
        return read_torch(file, self._scratch, key=self._key)

    def _read_folder(self, path: Path) -> tuple[Checkpoint, Layout | None]:
        names = {entry.name for entry in path.iterdir()}
        if METADATA in names:
            return read_distributed(path, self._scratch, self._open, key=self._key), None
        try:
            layout = find_layout(path)
        except CheckpointFormatError:
            check_folder(path, names)
            raise
        return self._read_layout(path, layout)

    def _read_layout(self, path: Path, layout: Layout) -> tuple[Checkpoint, Layout]:
        whole = Checkpoint(path, "shards", config=layout.config)
        for number, shard in enumerate(layout.shards):
            part = self._read_file(layout.folder / shard)
            for name in part.tensors:
                if name in whole.tensors:
                    raise CheckpointFormatError.index(layout.index_path or path, f"has {name!r} in two files")
                is_elsewhere = layout.index is not None and layout.index.get(name, shard) != shard
                is_listed = layout.index is None or name in layout.index or name in part.ties
                if is_elsewhere or not is_listed:
                    raise CheckpointFormatError.index(
                        layout.index_path or path, f"does not say that {name!r} is in {shard!r}"
                    )
            whole.tensors.update(part.tensors)
            whole.shards.update(dict.fromkeys(part.tensors, shard))
            whole.ties.update(part.ties)
            whole.others.extend(part.others)
            same = {key: text for key, text in part.metadata.items() if whole.metadata.get(key) == text}
            whole.metadata = same if number else dict(part.metadata)
        for name in layout.index or ():
            if name not in whole.tensors:
                raise CheckpointFormatError.index(
                    layout.index_path or path, f"names {name!r}, which none of its files has"
                )
        return whole, layout

    def close(self) -> None:
        """Close all files."""
        with self._limits, contextlib.ExitStack() as closing:
            for file in self.files:
                closing.callback(file.close)


def _with_stored_ties(checkpoint: Checkpoint) -> Checkpoint:
    """Add the names that safetensors' ``save_model`` left out, which the metadata ties to others."""
    for name, kept in checkpoint.metadata.items():
        if kept in checkpoint.tensors and name not in checkpoint.tensors and name != kept:
            checkpoint.ties[name] = kept
            checkpoint.tensors[name] = checkpoint.tensors[kept]
    for name in checkpoint.ties:
        del checkpoint.metadata[name]
    return checkpoint
