"""Files of weights, and folders of them, that tests of averaging begin with."""

import json

import numpy as np
import torch
from safetensors.numpy import save_file

#: Bytes that an average may hold at once: a few blocks of 4 MiB.
LITTLE = 32 << 20


class Exploding:
    """What leaves a file behind if its pickle is loaded."""

    def __reduce__(self):
        return open, ("exploded", "w")


def save(path, value, name="w"):
    """Write a file of one tensor, or a folder of such a file."""
    if path.suffix == ".pt":
        torch.save({name: torch.full((3,), float(value))}, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.full(3, float(value), "float32")})
    elif path.suffix == ".safetensors":
        save_file({name: np.full(3, float(value), "float32")}, path)
    else:
        path.mkdir(exist_ok=True)
        save(path / "model.safetensors", value, name)
    return path


def write_index(folder, mapping, text=None):
    text = json.dumps({"metadata": {}, "weight_map": mapping}) if text is None else text
    (folder / "model.safetensors.index.json").write_text(text)
