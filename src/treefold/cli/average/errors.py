"""What ``treefold average`` refuses, in one sentence each; nothing is written then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from treefold.cli.errors import CommandError
from treefold.errors.words import counted, listed, printable, short

_LONGEST_REASON = 160  # characters of what a library says
_TENSORS_ONLY = "Save named tensors alone, as torch.save(model.state_dict(), ...) does."


class CheckpointError(CommandError):
    """A file that cannot be averaged, or files that do not go together."""

    @classmethod
    def suffix(cls, path: Path, allowed: Sequence[str]) -> CheckpointError:
        """Refuse a file whose name does not say what it is."""
        return cls(f"{str(path)!r} ends in {path.suffix!r}. It takes a file named {listed(allowed)}.")

    @classmethod
    def unreadable(cls, path: Path, reason: str) -> CheckpointError:
        """Refuse a file that the system does not read."""
        return cls(f"{str(path)!r} cannot be read: {reason}. Nothing was written.")

    @classmethod
    def malformed(cls, path: Path, kind: str, reason: str) -> CheckpointError:
        """Refuse a file that is not what its name says."""
        return cls(f"{str(path)!r} is no {kind} file: {printable(reason)}. Nothing was written.")

    @classmethod
    def truncated(cls, path: Path, name: str) -> CheckpointError:
        """Refuse a file that ends within a tensor, or became shorter while it was read."""
        return cls(f"{str(path)!r} ends within the tensor {name!r}. Copy it again. Nothing was written.")

    @classmethod
    def pickled_objects(cls, path: Path, name: str) -> CheckpointError:
        """Refuse arrays of Python objects."""
        return cls(
            f"{str(path)!r} holds Python objects at {name!r}, and to read those is to run what the file says. "
            f"Save arrays of numbers."
        )

    @classmethod
    def pickle_needed(cls, path: Path, what: str) -> CheckpointError:
        """Refuse a torch file that is more than tensors."""
        return cls(
            f"{str(path)!r} is more than plain tensors: it names {what!r}, and nothing of what a file names is run. "
            f"{_TENSORS_ONLY}"
        )

    @classmethod
    def not_tensors(cls, path: Path, got: str) -> CheckpointError:
        """Refuse a torch file of something else than tensors by name."""
        return cls(f"{str(path)!r} holds {got}. {_TENSORS_ONLY}")

    @classmethod
    def expanded(cls, path: Path, name: str, tensor: str) -> CheckpointError:
        """Refuse a tensor whose elements share memory: a few bytes may stand for any number of them."""
        return cls(
            f"{str(path)!r} holds {tensor} at {name!r}, which is larger than what is stored of it, as expand() makes "
            f"them. Save its contiguous()."
        )

    @classmethod
    def not_text(cls, path: Path, name: str) -> CheckpointError:
        """Refuse a name that no file of tensors can hold."""
        return cls(f"{str(path)!r} holds a tensor named {name!a}, which is no Unicode text. Rename it.")

    @classmethod
    def dtype(cls, path: Path, name: str, dtype: str) -> CheckpointError:
        """Refuse a dtype that is unknown here."""
        return cls(f"{str(path)!r} holds {dtype} at {name!r}, which cannot be averaged. Cast it, or leave it out.")

    @classmethod
    def disagreement(cls, count: int, num_files: int) -> CheckpointError:
        """Refuse files of different tensors; the table of them stands above."""
        return cls(
            f"The {num_files} files disagree on the name, shape or dtype of {counted(count, 'tensor')}, listed above. "
            f"Average files of one model. Nothing was written."
        )

    @classmethod
    def not_summable(cls, name: str, dtype: str) -> CheckpointError:
        """Refuse the SUM of what has no sum here."""
        return cls(f"The sum of {dtype} at {name!r} is not defined. Cast it, or take the mean of equal ones.")

    @classmethod
    def carried(cls, name: str, dtype: str) -> CheckpointError:
        """Refuse to choose between values that have no mean here."""
        return cls(
            f"The files differ in {name!r}, and the mean of {dtype} is not defined: only equal ones are kept. "
            f"Cast it, or leave it out. Nothing was written."
        )

    @classmethod
    def not_held(cls, path: Path, name: str, dtype: str, other: str) -> CheckpointError:
        """Refuse an output format that has no place for a dtype."""
        return cls(f"--output {str(path)!r} cannot hold {dtype}, which {name!r} is. Write a {other} file.")

    @classmethod
    def reserved(cls, path: Path, name: str, other: str) -> CheckpointError:
        """Refuse a name that is too long for the output, or means something else there."""
        return cls(f"--output {str(path)!r} cannot hold a tensor named {short(name)}. Write a {other} file.")

    @classmethod
    def output_is_input(cls, path: Path) -> CheckpointError:
        """Refuse to replace what is read."""
        return cls(f"--output {str(path)!r} is one of the files to average. Name another.")

    @classmethod
    def output(cls, path: Path, reason: str) -> CheckpointError:
        """Refuse an output that cannot be written."""
        return cls(f"--output cannot write {str(path)!r}: {reason}.")

    @classmethod
    def weights_text(cls, text: str) -> CheckpointError:
        """Refuse weights that are no numbers."""
        return cls(f"--weights got {short(text)}. It takes one number per file, with commas between: 1,2,0.5.")

    @classmethod
    def weight_count(cls, num_weights: int, num_files: int) -> CheckpointError:
        """Refuse weights of another number than the files."""
        return cls(
            f"--weights has {counted(num_weights, 'number')} for {counted(num_files, 'file')}. Give one for each file."
        )


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever reading a file raises into one sentence. What is read is foreign, and so is what reads it."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError.unreadable(path, reason_of(error)) from None
    except Exception as error:  # noqa: BLE001 - libraries do not say what they raise for bytes that lie
        line = str(error).partition("\n")[0].partition(". ")[0].rstrip(".:")
        raise CheckpointError.malformed(path, kind, line[:_LONGEST_REASON] or type(error).__name__) from None


def reason_of(error: OSError) -> str:
    """Return the system's words for a failure."""
    return (error.strerror or str(error)).lower()
