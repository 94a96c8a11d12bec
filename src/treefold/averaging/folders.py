"""Folders of one model: an index and its shards, as Hugging Face's libraries write them, or one file of weights."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treefold.averaging.mapped import OpenFile
from treefold.averaging.tensors import Checkpoint
from treefold.errors import CheckpointError, CheckpointFormatError

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
    *_WEIGHTS,
    INDEX,
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pkl",
    ".distcp",
    ".tmp",
    ".lock",
    ".zip",
    ".tar",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one model.

    ``shards``: the files with the names that the index gives them, in its order. ``index``: tensor → name of its shard;
    None without an index. ``small``: what is copied beside the weights. ``left``: what is neither copied nor read.
    """

    folder: Path
    shards: tuple[str, ...]
    index: Mapping[str, str] | None = None
    index_path: Path | None = None
    small: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def find_layout(path: Path) -> Layout:
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
    return Layout(folder, shards, mapping, index, small, left, read_config(folder))


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
    """Yield the names of folders in a folder that hold weights themselves."""
    for inner in folder.iterdir():
        if inner.is_dir() and any(name.suffix in _WEIGHTS or name.name == ".metadata" for name in inner.iterdir()):
            yield inner.name


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints of a run by number: folders whose names end in one, else Lightning's files."""
    found = [name for name in _weighty_folders(folder) if _NUMBERED.fullmatch(name)]
    found = found or [entry.name for entry in folder.iterdir() if _NUMBERED_FILE.fullmatch(entry.name)]
    return [folder / name for name in sorted(found, key=by_number)]


def by_number(text: str) -> list[tuple[int, int, str]]:
    """Return a key by which ``step-900`` stands before ``step-1000``."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]


def check_adapters(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse adapters that are scaled differently: the mean of their factors is then none of any model.

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
    """Return the keys in which configurations differ, with dots between nested ones, without those of no effect."""
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
    """Return what stands in ``config.json``; an adapter's configuration and a quantization have keys of their own."""
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
    with OpenFile(path) as file:
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
