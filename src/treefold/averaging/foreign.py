"""Files and folders that are something else than they seem, recognised by what is in them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from treefold.averaging.mapped import OpenFile
from treefold.errors import CheckpointFormatError

#: How other files begin.
_BEGINNINGS = (
    (b"version https://git-lfs", "lfs"),
    (b"GGUF", "gguf"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
)
_PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<head")
_ARCHIVE = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in (2, 3, 4, 5))
#: What files of PyTorch before 1.6 begin with: a pickle of this number.
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_HEAD_BYTES = 512
_ENDINGS = {
    ".gguf": "gguf", ".h5": "hdf5", ".hdf5": "hdf5", ".keras": "keras", ".msgpack": "flax", ".pkl": "pickle",
    ".pickle": "pickle", ".onnx": "onnx", ".index": "tensorflow", ".pb": "tensorflow",
}  # fmt: skip
#: What DeepSpeed writes of a rank: in its stage 3 the model's own tensors are empty there.
_OF_A_RANK = re.compile(r"(bf16_)?zero_pp_rank_\d+_mp_rank_\d+_(model|optim)_states\.pt")
#: Files by which folders of other programs are known.
_FOLDERS = (
    ("zero_to_fp32.py", "deepspeed"),
    ("_CHECKPOINT_METADATA", "orbax"),
    ("manifest.ocdbt", "orbax"),
    ("_METADATA", "orbax"),
    ("saved_model.pb", "tensorflow"),
    ("checkpoint", "tensorflow"),
    ("flax_model.msgpack", "flax"),
)


def check_beginning(file: OpenFile, suffix: str) -> None:
    """Refuse a file of another format than its name says, where its first bytes are known.

    Raises:
        CheckpointFormatError: naming the format and what to do.

    """
    head = file.read(0, _HEAD_BYTES)
    for beginning, what in _BEGINNINGS:
        if head.startswith(beginning):
            raise CheckpointFormatError.named(file.path, what)
    if head.lstrip().lower().startswith(_PAGES):
        raise CheckpointFormatError.named(file.path, "html")
    first = _first_record(head)
    if suffix != ".safetensors" and first is None and _is_safetensors(head, file.nbytes):
        raise CheckpointFormatError.named(file.path, "safetensors")
    if suffix in {".safetensors", ".npz"} and first is not None and first.endswith(b"/data.pkl"):
        raise CheckpointFormatError.named(file.path, "torch")
    if suffix != ".npz" and first is not None and first.endswith(b".npy"):
        raise CheckpointFormatError.named(file.path, "npz")
    if suffix not in {".safetensors", ".npz"} and head.startswith(_PICKLES) and not head.startswith(_LEGACY):
        raise CheckpointFormatError.named(file.path, "pickle")


def _is_safetensors(head: bytes, nbytes: int) -> bool:
    return head[8:9] == b"{" and 1 < int.from_bytes(head[:8], "little") <= nbytes - 8


def _first_record(head: bytes) -> bytes | None:
    """Return the name of the first record of a zip archive; None if it is none."""
    if not head.startswith(_ARCHIVE):
        return None
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def check_ending(path: Path) -> None:
    """Refuse a file of another format by its name.

    Raises:
        CheckpointFormatError: naming the format and what to do.

    """
    what = "deepspeed" if _OF_A_RANK.fullmatch(path.name) else _ENDINGS.get(path.suffix)
    if what is not None:
        raise CheckpointFormatError.named(path, what)


def check_folder(path: Path, names: Collection[str]) -> None:
    """Refuse a folder of another program.

    Raises:
        CheckpointFormatError: naming the format and what to do.

    """
    if any(_OF_A_RANK.fullmatch(name) for name in names):
        raise CheckpointFormatError.named(path, "deepspeed")
    for name, what in _FOLDERS:
        if name in names:
            raise CheckpointFormatError.named(path, what)
    endings = {Path(name).suffix: name for name in names}
    for ending, what in _ENDINGS.items():
        if ending in endings and ending not in {".pkl", ".index"}:
            raise CheckpointFormatError.named(path / endings[ending], what)
