"""The kinds of files that are averaged, and what reading one takes beside NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: By the end of a file's name.
MODULES: dict[str, tuple[str, ...]] = {".safetensors": ("safetensors",), ".npz": ()}
MODULES |= dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), ("torch",))


def modules_for(paths: Iterable[Path]) -> list[str]:
    """Return the modules that files of these names take."""
    return list(dict.fromkeys(["ml_dtypes", *(module for path in paths for module in MODULES.get(path.suffix, ()))]))
