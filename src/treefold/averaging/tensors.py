"""What all kinds of checkpoints have in common: named tensors, each read as bytes from its first to its last."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from treefold.dtypes import DTYPES, numpy_dtype
from treefold.errors import CheckpointError

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor without its contents. ``dtype`` is NumPy's name of one in the table of dtypes."""

    dtype: str
    shape: tuple[int, ...]
    #: Bytes of the contents.
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Count the bytes once: they are asked for often."""
        object.__setattr__(self, "nbytes", math.prod(self.shape) * self.itemsize)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype as an object: that of some needs a package, which is not imported before."""
        return numpy_dtype(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].bits // 8

    def __str__(self) -> str:
        """Write it as in a message: ``float32 (3, 4)``."""
        return f"{self.dtype} {self.shape}"


class Contents(Protocol):
    """The contents of one tensor, in native byte order and row-major, from the first byte to the last."""

    def take(self, nbytes: int) -> Bytes:
        """Return what comes next, valid until the next call; less than asked for if the file ends too early."""


class Tensor(Protocol):
    """A tensor of an open checkpoint."""

    @property
    def spec(self) -> Spec:
        """Its dtype and shape."""

    def open(self) -> contextlib.AbstractContextManager[Contents]:
        """Open it for reading."""


@dataclass(slots=True)
class Checkpoint:
    """An open input: one file, or the files of one model.

    ``metadata``: what a safetensors header says beside the tensors. ``ties``: names of tensors that are stored under
    another name, and that name. ``others``: names of what is beside the tensors and no tensor, which is left out.
    ``shards``: the file that each tensor of a folder lies in. ``config``: the parsed ``config.json`` of a folder.
    ``coded``: names of tensors that hold codes of a quantized model. ``kind``: its format in words, for messages.
    """

    path: Path
    kind: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    shards: dict[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    coded: set[str] = field(default_factory=set)


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
