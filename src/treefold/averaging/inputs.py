"""Opens one input of any layout: a file, an index with its shards, a folder, a distributed checkpoint.

Folders hold an index and shards, as Hugging Face's libraries write them, or one file of weights. Files and folders of
other programs are recognised by their contents, and refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treefold.averaging.distributed import METADATA, read_distributed
from treefold.averaging.npz_files import read_npz
from treefold.averaging.safetensors_files import read_safetensors
from treefold.averaging.tensors import Checkpoint, OpenFile, many_files
from treefold.averaging.torch_files import read_torch
from treefold.errors import CheckpointError, CheckpointFormatError

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
#: The last is timm's, for files that are no tar archives.
ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS, ".pth.tar")

#: The key that torch.distributed.checkpoint writes into the header of a safetensors file with a rank's parts.
_OF_A_PART = "DCP_SHARDING_INFO"
INDEX = ".index.json"
#: The weights of one model, by the name of the file or of the index, from the one to prefer.
STEMS = ("model", "adapter_model", "diffusion_pytorch_model", "pytorch_model", "consolidated")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz")
_PART = re.compile(r"(.+)-(\d+)-of-(\d+)(\.[a-z]+)")
#: Checkpoints of a run: folders such as checkpoint-100, files such as epoch=1-step=100.ckpt. What begins with tmp is
#: still being written.
_NUMBERED, _NUMBERED_FILE = re.compile(r"(?!tmp).*\d"), re.compile(r".*\d.*\.ckpt")
_ADAPTER = "adapter_config"
#: What scales the product of an adapter's factors.
_OF_ADAPTERS = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
#: Keys of configurations that change no number; those that begin with an underscore are notes.
_OF_NO_EFFECT = (_ADAPTER, "transformers_version", "dtype", "torch_dtype", "use_cache", "architectures", "auto_map")
#: What belongs to a run, and not to the model.
_OF_A_RUN = re.compile(
    r"(optimizer|scheduler|rng_state|random_states|scaler|trainer_state|training_args|sampler|dl_state|"
    r"custom_checkpoint|events\.out|pytorch_model_fsdp).*"
)
_MOST_SMALL_BYTES = 64 << 20
_MOST_INDEX_BYTES = 256 << 20
_NOT_COPIED = (
    *_WEIGHTS, INDEX, ".gguf", ".h5", ".msgpack", ".onnx", ".pkl", ".distcp", ".tmp", ".lock", ".zip", ".tar",
)  # fmt: skip
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


class Reader:
    """Opens inputs, and closes them together.

    ``scratch``: a directory for tensors that must be put in order on disk. ``key``: the mapping in PyTorch's files that
    holds the tensors, or None. Opened files are in ``files``.
    """

    def __init__(self, scratch: Path, key: str | None) -> None:
        """Start with no open file."""
        self.files: list[OpenFile] = []
        self._scratch, self._key = scratch, key
        self._limits = contextlib.ExitStack()

    def read(self, path: Path) -> tuple[Checkpoint, ModelFiles | None]:
        """Return an input, and its layout if it has several files.

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
        return read_torch(file, key=self._key)

    def _read_folder(self, path: Path) -> tuple[Checkpoint, ModelFiles | None]:
        names = {entry.name for entry in path.iterdir()}
        if METADATA in names:
            return read_distributed(path, self._scratch, self._open, key=self._key), None
        try:
            layout = find_layout(path)
        except CheckpointFormatError:
            check_folder(path, names)
            raise
        return self._read_layout(path, layout)

    def _read_layout(self, path: Path, layout: ModelFiles) -> tuple[Checkpoint, ModelFiles]:
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


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of one model.

    Attributes:
        shards: The files by the names in the index, in its order.
        index: The shard of each tensor. None without an index.
        small: Files that are copied beside the weights.
        left: Files and folders that are neither copied nor read.

    """

    folder: Path
    shards: tuple[str, ...]
    index: Mapping[str, str] | None = None
    index_path: Path | None = None
    small: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def find_layout(path: Path) -> ModelFiles:
    """Return the files of the model in a folder, or of an index.

    Raises:
        CheckpointError: there is none, or there are several; the index is wrong.
        OSError: it cannot be read.

    """
    if path.is_dir():
        folder, index, shards = path, *_choose(path, sorted(entry.name for entry in path.iterdir()))
    else:
        folder, index, shards = path.parent, path, ()
    mapping = None if index is None else _read_index(index)
    shards = shards if mapping is None else tuple(dict.fromkeys(mapping.values()))
    read = {*shards, index.name if index is not None else ""}
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.name not in read)
    small = tuple(entry.name for entry in entries if _is_small(entry))
    left = tuple(entry.name + "/" * entry.is_dir() for entry in entries if entry.name not in small)
    return ModelFiles(folder, shards, mapping, index, small, left, read_config(folder))


def _choose(folder: Path, names: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the index of a folder, or its files of weights."""
    for ending in (".safetensors", ".bin"):
        for stem in STEMS:
            if f"{stem}{ending}{INDEX}" in names:
                return folder / f"{stem}{ending}{INDEX}", ()
            if f"{stem}{ending}" in names:
                return None, (f"{stem}{ending}",)
    weights = [name for name in names if Path(name).suffix in _WEIGHTS and not _OF_A_RUN.fullmatch(name)]
    indexes = [name for name in names if name.endswith(INDEX)]
    if len(indexes) == 1:
        return folder / indexes[0], ()
    if len(weights) == 1 and not indexes:
        return None, (weights[0],)
    parts = [_PART.fullmatch(name) for name in weights]
    stems = {(part[1], part[3], part[4]) for part in parts if part}
    if len(stems) == 1 and all(parts) and len(parts) == int(next(iter(stems))[1]):
        return None, tuple(weights)
    if not weights and not indexes and (inner := sorted(_weighty_folders(folder), key=by_number)):
        have_numbers = all(_NUMBERED.fullmatch(name) for name in inner)
        raise CheckpointFormatError.subfolders(folder, inner, have_numbers=have_numbers)
    raise CheckpointFormatError.no_weights(folder, indexes + weights)


def _weighty_folders(folder: Path) -> Iterator[str]:
    """Yield the names of the folder's subfolders with weights."""
    for inner in folder.iterdir():
        if inner.is_dir() and any(name.suffix in _WEIGHTS or name.name == ".metadata" for name in inner.iterdir()):
            yield inner.name


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run by number: folders with names that end in one, or else Lightning's files."""
    found = [name for name in _weighty_folders(folder) if _NUMBERED.fullmatch(name)]
    found = found or [entry.name for entry in folder.iterdir() if _NUMBERED_FILE.fullmatch(entry.name)]
    return [folder / name for name in sorted(found, key=by_number)]


def by_number(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts ``step-900`` before ``step-1000``."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]


def check_adapters(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse adapters with different scales: the mean of their factors would fit no model.

    Raises:
        CheckpointFormatError: naming what differs.

    """
    adapters = [checkpoint for checkpoint in checkpoints if _ADAPTER in checkpoint.config]
    for first, other in itertools.pairwise(adapters):
        one, two = first.config[_ADAPTER], other.config[_ADAPTER]
        for key in _OF_ADAPTERS:
            if (one.get(key) or None) != (two.get(key) or None):
                raise CheckpointFormatError.adapters(first.path, other.path, key, (one.get(key), two.get(key)))


def differing_keys(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return the keys in which configurations differ, dots between nested ones, without keys that have no effect."""
    tables = [_flat(checkpoint.config) for checkpoint in checkpoints if checkpoint.config]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if not key.startswith("_") and key not in _OF_NO_EFFECT:
            flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _is_small(entry: Path) -> bool:
    name = entry.name
    if name.startswith(".") or name.endswith(_NOT_COPIED) or _OF_A_RUN.fullmatch(name):
        return False
    return entry.is_file() and entry.stat().st_size <= _MOST_SMALL_BYTES


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the contents of ``config.json``, and those of adapters and quantizations under keys of their own."""
    config: dict[str, Any] = {}
    for name in ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json"):
        path = folder / name
        if path.is_file() and path.stat().st_size <= _MOST_SMALL_BYTES:
            found = _read_json(path)
            if isinstance(found, dict):
                config |= {_ADAPTER: found} if name == "adapter_config.json" else found
                if "quant" in name:
                    config["quantization_config"] = found
    return config


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CheckpointError.malformed(path, "JSON", "it does not parse") from None


def _read_index(path: Path) -> dict[str, str]:
    with contextlib.closing(OpenFile(path)) as file:
        if file.nbytes > _MOST_INDEX_BYTES:
            raise CheckpointFormatError.index(path, "is larger than any index")
        text = file.read(0, file.nbytes)

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise CheckpointFormatError.index(path, "has a name twice")
        return dict(pairs)

    try:
        contents = json.loads(text, object_pairs_hook=without_duplicates)
    except CheckpointError:
        raise
    except (ValueError, RecursionError):
        raise CheckpointFormatError.index(path, "is no JSON") from None
    mapping = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(mapping, dict) or not all(isinstance(shard, str) for shard in mapping.values()):
        raise CheckpointFormatError.index(path, "has no weight_map from tensors to files")
    for shard in set(mapping.values()):
        if not shard or shard in {".", ".."} or not shard.isprintable() or any(sign in shard for sign in "/\\:"):
            raise CheckpointFormatError.index(path, f"names {shard!r}, which is no file beside it")
        if Path(shard).suffix not in _WEIGHTS:
            raise CheckpointFormatError.index(path, f"names {shard!r}, which is no file of weights")
    return mapping


def check_beginning(file: OpenFile, suffix: str) -> None:
    """Refuse a file if its first bytes are those of another format than its name says.

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
    """Return the name of the first record of a zip archive, or None if the file is no archive."""
    if not head.startswith(_ARCHIVE):
        return None
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def check_ending(path: Path) -> None:
    """Refuse a file with the name of another program's format.

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
