"""Errors of ``treefold average``, after which nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from treefold.errors.commands import CommandError
from treefold.errors.words import counted, listed, printable, reason_of, short

_LONGEST_REASON = 160  # characters of what a library says
_TENSORS_ONLY = "Save named tensors alone, as torch.save(model.state_dict(), ...) does."
#: The faults of a file: its kind, and the reason.
_DAMAGE = {
    "member": ("npz", "{!r} in it is no npy file"),
    "array twice": ("npz", "it has {!r} twice"),
    "packing": ("npz", "{!r} in it is packed by method {}, and NumPy writes 0 and 8"),
    "version": ("npz", "{}"),
    "header": ("npz", "a header of {} bytes is too long"),
    "shape": ("npz", "{!r} in it has the shape {}"),
    "more bytes": ("npz", "{!r} in it has more bytes than its shape says"),
    "entry twice": ("safetensors", "its header has {!r} twice"),
    "header length": ("safetensors", "a header of {} bytes does not fit"),
    "no header": ("safetensors", "it has no header in JSON"),
    "no number": ("safetensors", "its header has {}, which is no number of JSON"),
    "metadata": ("safetensors", "its metadata is not text by name"),
    "range": ("safetensors", "the bytes of {!r} in it overlap others, leave a gap, or are not what its shape needs"),
    "size": ("safetensors", "it has {} bytes in place of {}"),
    "tensor shape": ("safetensors", "{!r} in it has a shape that no tensor has"),
    "tensor dtype": ("safetensors", "{!r} in it, of {!r}, is no dtype of the format"),
    "no archive": (
        "PyTorch",
        "it is no zip archive, which torch.save has written since PyTorch 1.6; load it and save it again",
    ),
    "packed records": ("PyTorch", "its records are packed, which torch.save does not do"),
    "record twice": ("PyTorch", "it has two records of one name, or of names that are equal but for case"),
    "records overlap": ("PyTorch", "its records overlap"),
    "lengths": ("PyTorch", "its directory does not agree with its records"),
    "no pickle": ("PyTorch", "it does not say which tensors it holds"),
    "byte order": ("PyTorch", "it was written on a machine of another byte order"),
    "reach": ("PyTorch", "{!r} in it reaches beyond its record"),
    "long metadata": ("torch.distributed.checkpoint", "its metadata has {} bytes"),
    "record": ("PyTorch", "its record {!r} has {} bytes in place of {}"),
}


class CheckpointError(CommandError):
    """A file that cannot be averaged, or files that do not go together.

    ``differences``: all in which files disagree, as (tensor, what the first has, another file, what that has).
    """

    differences: Sequence[tuple[str, str, str, str]] = ()

    @classmethod
    def suffix(cls, path: Path, allowed: Sequence[str]) -> Self:
        return cls(f"{str(path)!r} ends in {path.suffix!r}. It takes a file named {listed(allowed)}.")

    @classmethod
    def unreadable(cls, path: Path, error: OSError) -> Self:
        return cls(f"{str(path)!r} cannot be read: {reason_of(error)}. Nothing was written.")

    @classmethod
    def malformed(cls, path: Path, kind: str, reason: str) -> Self:
        """Refuse a file that is not what its name says."""
        return cls(f"{str(path)!r} is no {kind} file: {printable(reason)}. Nothing was written.")

    @classmethod
    def damaged(cls, path: Path, what: str, *figures: object) -> Self:
        """Refuse a file for one of the reasons in the table above."""
        kind, reason = _DAMAGE[what]
        return cls.malformed(path, kind, reason.format(*figures))

    @classmethod
    def foreign(cls, path: Path, kind: str, error: Exception) -> Self:
        """Refuse a file by what the library that reads it raised."""
        line = str(error).partition("\n")[0].partition(". ")[0].rstrip(".:")
        return cls.malformed(path, kind, line[:_LONGEST_REASON] or type(error).__name__)

    @classmethod
    def truncated(cls, path: Path, name: str) -> Self:
        """Refuse a file that ends within a tensor, or became shorter while it was read."""
        return cls(f"{str(path)!r} ends within the tensor {name!r}. Copy it again. Nothing was written.")

    @classmethod
    def pickled_objects(cls, path: Path, name: str) -> Self:
        return cls(
            f"{str(path)!r} holds Python objects at {name!r}, and to read those is to run what the file says. "
            f"Save arrays of numbers."
        )

    @classmethod
    def pickle_needed(cls, path: Path, what: str) -> Self:
        return cls(
            f"{str(path)!r} is more than plain tensors: it names {what!r}, and nothing of what a file names is run. "
            f"{_TENSORS_ONLY}"
        )

    @classmethod
    def not_tensors(cls, path: Path, got: str) -> Self:
        return cls(f"{str(path)!r} holds {got}. {_TENSORS_ONLY}")

    @classmethod
    def expanded(cls, path: Path, name: str, tensor: str) -> Self:
        """Refuse a tensor whose elements share memory: a few bytes may stand for any number of them."""
        return cls(
            f"{str(path)!r} holds {tensor} at {name!r}, which is larger than what is stored of it, as expand() makes "
            f"them. Save its contiguous()."
        )

    @classmethod
    def not_text(cls, path: Path, name: str) -> Self:
        return cls(f"{str(path)!r} holds a tensor named {name!a}, which is no Unicode text. Rename it.")

    @classmethod
    def dtype(cls, path: Path, name: str, dtype: str) -> Self:
        return cls(f"{str(path)!r} holds {dtype} at {name!r}, which cannot be averaged. Cast it, or leave it out.")

    @classmethod
    def disagreement(cls, count: int, num_files: int) -> Self:
        return cls(
            f"The {num_files} files disagree on the name, shape or dtype of {counted(count, 'tensor')}, listed above. "
            f"Average files of one model. Nothing was written."
        )

    @classmethod
    def not_summable(cls, name: str, dtype: str) -> Self:
        return cls(f"The sum of {dtype} at {name!r} is not defined. Cast it, or take the mean of equal ones.")

    @classmethod
    def carried(cls, name: str, dtype: str) -> Self:
        """Refuse to choose between values that have no mean here."""
        return cls(
            f"The files differ in {name!r}, and the mean of {dtype} is not defined: only equal ones are kept. "
            f"Cast it, or leave it out. Nothing was written."
        )

    @classmethod
    def not_held(cls, path: Path, name: str, dtype: str, other: str) -> Self:
        return cls(f"--output {str(path)!r} cannot hold {dtype}, which {name!r} is. Write a {other} file.")

    @classmethod
    def reserved(cls, path: Path, name: str, other: str) -> Self:
        """Refuse a name that is too long for the output, or means something else there."""
        return cls(f"--output {str(path)!r} cannot hold a tensor named {short(name)}. Write a {other} file.")

    @classmethod
    def output_is_input(cls, path: Path) -> Self:
        return cls(f"--output {str(path)!r} is one of the files to average. Name another.")
