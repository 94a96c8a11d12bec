"""PyTorch's tensors over NumPy's memory and back, bfloat16 included."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from treefold.bench.contents import Array, dtype_of
from treefold.errors import PeerError

_UNSIGNED = ("uint16", "uint32", "uint64")


def to_torch(array: Array) -> Any:
    """Return a tensor on an array's memory."""
    if array.dtype.name in _UNSIGNED:
        raise PeerError.lacks("PyTorch", f"arithmetic for {array.dtype.name}")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: Any) -> Array:
    """Return an array on a tensor's memory."""
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy().view(dtype_of("bfloat16"))
        return array
    plain: Array = tensor.numpy()
    return plain
