"""What all kinds of checkpoint files have in common: named tensors, each read as bytes from its first to its last."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from treefold.dtypes import DTYPES, TRAVELLING, numpy_dtype
from treefold.errors import CheckpointError

#: What is kept if it is the same in all files, and refused otherwise: there is no mean of it.
CARRIED = ("bool", *TRAVELLING)

Bytes: TypeAlias = npt.NDArray[np.uint8]

_DTYPES = {name: numpy_dtype(name) for name in DTYPES}  # at once, so that a missing package is named before the work


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor without its contents. ``dtype`` is NumPy's name of one in the table of dtypes."""

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


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever reading a file raises into one sentence. What is read is foreign, and so is what reads it."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError.unreadable(path, error) from None
    except Exception as error:  # noqa: BLE001 - libraries do not say what they raise for bytes that lie
        raise CheckpointError.foreign(path, kind, error) from None


class Contents(Protocol):
    """The contents of one tensor, in native byte order and row-major, from the first byte to the last."""

    def take(self, nbytes: int) -> Bytes:
        """Return what comes next, valid until the next call; less than asked for if the file ends too early."""


class MemoryContents:
    """Contents that are in memory already."""

    def __init__(self, contents: Bytes) -> None:
        """Start at the beginning."""
        self._left = contents

    def take(self, nbytes: int) -> Bytes:
        """Return a view."""
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken


class Checkpoint(Protocol):
    """An open file of tensors by name."""

    path: Path
    specs: dict[str, Spec]
    metadata: dict[str, str]

    def tensor(self, name: str) -> contextlib.AbstractContextManager[Contents]:
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
