"""What all kinds of checkpoint files have in common: named tensors, each read as bytes from its first to its last."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from treefold.dtypes import REDUCIBLE

#: What is kept if it is the same in all files, and refused otherwise: there is no mean of it.
CARRIED = ("bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

_DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in (*REDUCIBLE, *CARRIED)}


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor without its contents. ``dtype`` is NumPy's name, one of ``REDUCIBLE`` or ``CARRIED``."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype as an object."""
        return _DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the contents."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        """Write it as in a message: ``float32 (3, 4)``."""
        return f"{self.dtype} {self.shape}"


def is_known(dtype: str) -> bool:
    """Tell whether tensors of a dtype can be read at all."""
    return dtype in _DTYPES


class Readable(Protocol):
    """The contents of one tensor, in native byte order and row-major."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a buffer, or part of it, with what comes next; return the number of bytes, 0 at the end."""


class MemoryReader:
    """Contents that are in memory already."""

    def __init__(self, contents: npt.NDArray[np.uint8]) -> None:
        """Start at the beginning."""
        self._left = contents

    def readinto(self, buffer: memoryview, /) -> int:
        """Copy what comes next."""
        count = min(len(buffer), self._left.size)
        np.frombuffer(buffer, np.uint8)[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class Checkpoint(Protocol):
    """An open file of tensors by name."""

    path: Path
    specs: dict[str, Spec]
    metadata: dict[str, str]

    def tensor(self, name: str) -> contextlib.AbstractContextManager[Readable]:
        """Open a tensor for reading; one at a time."""

    def close(self) -> None:
        """Close the file."""


class Writer(Protocol):
    """A file to be, which takes the tensors that it was announced, in that order."""

    def tensor(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Open a tensor for writing: an object with ``write(bytes)``."""

    def __enter__(self) -> Self:
        """Return the writer."""

    def __exit__(self, kind: object, error: object, traceback: object, /) -> None:
        """Write what stands at the end."""


def differences(checkpoints: Sequence[Checkpoint]) -> list[tuple[str, str, str, str]]:
    """Return all in which files differ from the first: tensor, what the first has, the file, what it has."""
    first, *others = checkpoints
    rows = []
    for name in dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.specs):
        expected = first.specs.get(name)
        for other in others:
            found = other.specs.get(name)
            if found != expected:
                rows.append((name, str(expected or "nothing"), str(other.path), str(found or "nothing")))
    return rows


def common_metadata(checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """Return the first file's metadata, as far as all others say the same."""
    first, *others = checkpoints
    return {key: text for key, text in first.metadata.items() if all(o.metadata.get(key) == text for o in others)}
