"""Checkpoints of several parts, whole and damaged: an index with its shards, nested mappings, pieces of ranks."""

import functools
import io
import json
import math
import pickle
import pickletools
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from damage import damaged, save_torch, tensors
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

KINDS = ("index", "nested", "distributed")
INDEX, NESTED, METADATA = "model.safetensors.index.json", "nested.pt", ".metadata"
#: What is made if anything that a file names is called.
TRAP = Path(tempfile.gettempdir()) / "treefold-attack-ran-code"
_SHARDS = ("../up.safetensors", "/etc/x.safetensors", "", ".", "..", "model-1.safetensors", "model-2.safetensors",
           "a\0b.safetensors", "config.json", "x.bin", "nested.pt", "model-1.safetensors/", "C:x.safetensors",
           "é.safetensors", None, 1, [], {}, "x" * 300 + ".npz")  # fmt: skip
_KNOWN = ("Size", "OrderedDict", "_MEM_FORMAT_ENCODING", "_get_layout", "_rebuild_tensor_v2")
_OPCODES = [code.code.encode("latin-1") for code in pickletools.opcodes]


class Trap:
    def __reduce__(self):
        return open, (str(TRAP), "w")


@functools.cache
def whole(kind, replica):
    """Return the files of a checkpoint by name."""
    arrays = tensors(replica)
    if kind == "index":
        names = sorted(arrays)
        shards = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
        index = {"metadata": {"total_size": 1}, "weight_map": {n: shard for shard, of in shards.items() for n in of}}
        files = {shard: save_safetensors({name: arrays[name] for name in of}) for shard, of in shards.items()}
        return files | {INDEX: json.dumps(index).encode(), "config.json": b'{"dtype": "float32", "layers": 2}'}
    if kind == "nested":
        model = torch.load(io.BytesIO(save_torch(arrays)))
        ema = {name: tensor.clone() for name, tensor in model.items()} | {"_extra_state": None}
        file = io.BytesIO()
        torch.save({"model": model, "ema": ema, "step": 3, "optimizer": {"state": {0: {}}}, "hook": Trap()}, file)
        return {NESTED: file.getvalue()}
    return _distributed(arrays)


def _distributed(arrays):
    """Return a checkpoint in which one tensor lies in two pieces, with an object that leaves a trace if it is built."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - it takes a second, and is needed last

    state = {name: torch.from_numpy(array) for name, array in arrays.items() if array.size}
    state["half again"] = state["half"].clone()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process, which is meant
        dcp.save({"model": state, "step": 3}, checkpoint_id=folder, no_dist=True)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    metadata = pickle.loads(files[METADATA])  # noqa: S301 - written above
    entries = metadata.state_dict_metadata
    entries["model.half"].size = torch.Size([10])
    [chunk] = entries["model.half"].chunks
    entries["model.half"].chunks.append(type(chunk)(torch.Size([5]), chunk.sizes))
    del entries["model.half again"], metadata.planner_data["model.half again"]
    [old] = [key for key in metadata.storage_data if key.fqn == "model.half again"]
    metadata.storage_data[type(old)("model.half", torch.Size([5]), 1)] = metadata.storage_data.pop(old)
    metadata.storage_meta = Trap()
    return files | {METADATA: pickle.dumps(metadata, protocol=2)}


def damaged_layout(kind, drawing):
    """Return the files of a checkpoint of which one or two were damaged."""
    files = dict(whole(kind, 1))
    for _ in range(drawing.choice((1, 1, 1, 2))):
        name = drawing.choice(sorted(files))
        if kind == "index" and drawing.random() < 0.6:
            name = INDEX if drawing.random() < 0.9 else "config.json"
        elif kind == "distributed" and drawing.random() < 0.7:
            name = METADATA
        if files[name] is not whole(kind, 1)[name]:
            continue
        if drawing.random() < 0.02:
            del files[name]
            break
        if name == INDEX and drawing.random() < 0.7:
            files[name] = _lie_in_index(files[name], drawing)
        elif name == METADATA and drawing.random() < 0.7:
            files[name] = _change_opcodes(files[name], drawing)
        elif name == NESTED and drawing.random() < 0.5:
            files[name] = _change_pickle(files[name], drawing)
        else:
            files[name] = damaged(files[name], drawing)
    return files


def _lie_in_index(contents, drawing):
    """Let an index have a wrong entry, or the same one twice."""
    try:
        index = json.loads(contents)
        mapping = index["weight_map"]
        name = drawing.choice(sorted(mapping))
    except (ValueError, TypeError, LookupError):
        return damaged(contents, drawing)
    match drawing.randrange(6):
        case 0:
            del mapping[name]
        case 1:
            mapping[drawing.choice(("other", "", "\ud800", name.upper(), name + " "))] = mapping[name]
        case 2:
            index["weight_map"] = drawing.choice(([], None, "x", 1, {name: mapping[name]}, [[name, mapping[name]]]))
        case 3:
            text = json.dumps(index)
            return text.replace(f'"{name}"', f'"{name}": "model-2.safetensors", "{name}"').encode()
        case 4:
            return b"[" * drawing.choice((2, 5000, 200_000)) + contents
        case _:
            mapping[name] = drawing.choice(_SHARDS)
    return json.dumps(index).encode()


def _change_opcodes(contents, drawing):
    """Drop, repeat, swap or replace opcodes of a pickle, with their arguments."""
    try:
        starts = [at for _, _, at in pickletools.genops(contents)]
    except Exception:  # noqa: BLE001 - damaged before
        return damaged(contents, drawing)
    pieces = [contents[at:stop] for at, stop in zip(starts, [*starts[1:], len(contents)], strict=True)]
    for _ in range(drawing.choice((1, 1, 2, 4))):
        one, other = drawing.randrange(len(pieces)), drawing.randrange(len(pieces))
        match drawing.randrange(9):
            case 0:
                pieces[one] = b""
            case 1:
                pieces[one] *= drawing.choice((2, 3, 1000))
            case 2:
                pieces[one], pieces[other] = pieces[other], pieces[one]
            case 3:
                pieces[one] = pieces[other]
            case 4:
                pieces[one] = drawing.choice(_OPCODES) + pieces[one][1:]
            case _ if len(pieces[one]) > 1:  # an argument: a number, a text, a name
                at = drawing.randrange(1, len(pieces[one]))
                changed = pieces[one][at] ^ 1 << drawing.randrange(8)
                pieces[one] = pieces[one][:at] + bytes([changed]) + pieces[one][at + 1 :]
    return b"".join(pieces)


def _change_pickle(contents, drawing):
    """Change the pickle within an archive where it lies, if what comes out is as long."""
    start = contents.index(b"\x80\x02}")
    stop = contents.index(b"PK\x07\x08", start)
    changed = _change_opcodes(contents[start:stop], drawing)
    if len(changed) < stop - start:
        changed = changed.ljust(stop - start, drawing.choice((b"0", b".", b"\0")))
    return contents[:start] + changed[: stop - start] + contents[stop:]


class Unpickler(pickle.Unpickler):
    """Python's own unpickler, for the names that checkpoints need; all others are functions that do nothing."""

    def find_class(self, module, name):
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_known = module.startswith(("torch.distributed.checkpoint.", "torch.storage")) or name in _KNOWN
        return super().find_class(module, name) if is_known or is_dtype else lambda *_: None


def read_layout(kind, files, key):
    """Return the tensors of a checkpoint by name, read by the libraries that write it. ``key``: None, the only one."""
    if kind == "index":
        mapping = json.loads(files[INDEX])["weight_map"]
        shards = {shard: load_safetensors(files[shard]) for shard in set(mapping.values())}
        return {name: shards[shard][name] for name, shard in mapping.items()}
    if kind == "nested":
        found = torch.load(io.BytesIO(files[NESTED]), weights_only=False, pickle_module=sys.modules[__name__])
        mappings = [found, *(value for value in found.values() if isinstance(value, dict))]
        tables = [{n: v for n, v in mapping.items() if isinstance(v, torch.Tensor)} for mapping in mappings]
        return (
            tables[next(i for i, mapping in enumerate(mappings) if mapping is found[key])]
            if key is not None
            else max(tables, key=len)
        )
    metadata = Unpickler(io.BytesIO(files[METADATA])).load()
    places = {(index.fqn, index.offset): info for index, info in metadata.storage_data.items()}
    read = {}
    for entry, tensor in metadata.state_dict_metadata.items():
        path = metadata.planner_data[entry]
        group, *parts = path if isinstance(path, tuple) and len(path) > 1 else ("", entry)
        if hasattr(tensor, "chunks") and key in {group, None}:
            whole_tensor = torch.zeros(tensor.size, dtype=tensor.properties.dtype)
            assert sum(math.prod(chunk.sizes) for chunk in tensor.chunks) == whole_tensor.numel()
            for chunk in tensor.chunks:
                info = places[entry, chunk.offsets]
                stored = files[info.relative_path][info.offset : info.offset + info.length]
                where = tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))
                whole_tensor[where] = torch.load(io.BytesIO(stored), weights_only=True)
            read[".".join(map(str, parts)) or entry] = whole_tensor
    return read
