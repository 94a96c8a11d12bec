"""Folders of one model: an index and its shards, as Hugging Face's libraries write them, or one file of weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treefold.averaging.mapped import OpenFile
from treefold.errors import CheckpointError, CheckpointFormatError

INDEX = ".index.json"
#: The weights of one model, by the name of the file or of the index, from the one to prefer.
_STEMS = ("model", "adapter_model", "diffusion_pytorch_model", "pytorch_model", "consolidated")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz")
_PART = re.compile(r"(.+)-(\d+)-of-(\d+)(\.[a-z]+)")
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
    None without an index. ``small``: what is copied beside the weights.
    """

    folder: Path
    shards: tuple[str, ...]
    index: Mapping[str, str] | None = None
    index_path: Path | None = None
    small: tuple[str, ...] = ()
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
    small = tuple(sorted(entry.name for entry in folder.iterdir() if _is_small(entry)))
    config = _read_config(folder)
    if index is None:
        return Layout(folder, shards, None, None, small, config)
    mapping = _read_index(index)
    return Layout(folder, tuple(dict.fromkeys(mapping.values())), mapping, index, small, config)


def _choose(folder: Path, names: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the index of a folder, or its files of weights."""
    for ending in (".safetensors", ".bin"):
        for stem in _STEMS:
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
    raise CheckpointFormatError.no_weights(folder, indexes + weights)


def _is_small(entry: Path) -> bool:
    name = entry.name
    if name.startswith(".") or name.endswith(_NOT_COPIED) or _OF_A_RUN.fullmatch(name):
        return False
    return entry.is_file() and entry.stat().st_size <= _MOST_SMALL_BYTES


def _read_config(folder: Path) -> Mapping[str, Any]:
    config: dict[str, Any] = {}
    for name in ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json"):
        path = folder / name
        if path.is_file() and path.stat().st_size <= _MOST_SMALL_BYTES:
            found = _read_json(path)
            if isinstance(found, dict):
                config |= {"peft_type": found.get("peft_type")} if name == "adapter_config.json" else found
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
