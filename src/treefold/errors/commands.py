"""Errors of commands: averages of checkpoints, their formats and options, and benchmarks."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import bytes_in_words, counted, listed, printable, reason_of, short

_LONGEST_REASON = 160  # characters of a library's message
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
_NOTHING = "Nothing was written."
#: Kinds of files and folders that are not averaged: a description, and the remedy.
_FORMATS = {
    "lfs": ("a pointer of Git LFS, and not the file itself", "Run git lfs pull in its repository"),
    "html": ("a page in HTML, as servers send in place of a file", "Download it again, logged in where that is needed"),
    "gguf": (
        "a GGUF file, whose numbers are packed",
        "Average the checkpoint it was made from, and convert that",
    ),
    "hdf5": ("an HDF5 file, as Keras writes", "Save its weights with numpy.savez, or as safetensors"),
    "keras": ("a Keras archive", "Save its weights with numpy.savez, or as safetensors"),
    "tensorflow": ("a TensorFlow checkpoint", "Save its variables with numpy.savez, or as safetensors"),
    "orbax": ("an Orbax checkpoint", "Restore it, and save the arrays with safetensors.flax.save_file"),
    "flax": ("a msgpack file of flax", "Load it, and save the arrays with safetensors.flax.save_file"),
    "deepspeed": ("a DeepSpeed ZeRO checkpoint", "Make one file of it with its zero_to_fp32.py"),
    "torchscript": ("a TorchScript archive, which is a program", "Save the state_dict() of what torch.jit.load gives"),
    "optimizer": ("the state of an optimizer, which belongs to one run", "Average the model's weights"),
    "pickle": ("a pickle, and to read one is to run it", "Save named tensors as safetensors, or with torch.save"),
    "onnx": ("an ONNX model", "Average the checkpoint it was made from, and export the result"),
    "safetensors": ("a safetensors file under another ending", "Rename it to end in .safetensors"),
    "npz": ("an npz file under another ending", "Rename it to end in .npz"),
    "torch": ("a PyTorch file under another ending", "Rename it to end in .pt"),
    "part": (
        "one rank's part of a distributed checkpoint",
        "Make whole files of all parts with torch.distributed.checkpoint's consolidate_safetensors_files",
    ),
    "trainer": ("state of a training run without weights", "Average the model's weights"),
}


class CommandError(TreefoldError, ValueError):
    """A command was called with something that it cannot do; ``treefold`` prints it and ends with exit code 2."""

    @classmethod
    def seed(cls, got: int) -> Self:
        return cls(f"--seed got {got}. It takes 0 or a positive number.")

    @classmethod
    def devices_range(cls, word: str) -> Self:
        return cls(f"--devices got {short(word)}. It takes numbers, ranges and names: 0-3,6 or gpu:0,gpu:1.")

    @classmethod
    def unwritable(cls, option: str, path: Path, error: OSError) -> Self:
        return cls(f"{option} cannot write {str(path)!r}: {reason_of(error)}.")

    @classmethod
    def no_plan_file(cls, path: str, error: OSError | UnicodeDecodeError) -> Self:
        reason = reason_of(error) if isinstance(error, OSError) else "it is no text"
        return cls(f"--plan cannot read {short(path)}: {reason}. Write plans with treefold plan --save.")

    @classmethod
    def system(cls, error: OSError) -> Self:
        """End a command because the system refused something that could not be checked before, such as a full disk."""
        if error.errno == errno.EMFILE:
            return cls(
                "The system lets this process open too few files (too many open files). Raise the limit, for example "
                "with ulimit -n 4096; treefold run needs about two files for every rank."
            )
        if error.errno == errno.EAGAIN:
            return cls(
                f"The system starts no more processes ({reason_of(error)}). Raise the limit of this user (ulimit -u) "
                "or of the container, or start fewer ranks."
            )
        what = "The output" if error.filename is None else short(str(error.filename))
        return cls(f"{what} cannot be used any further: {reason_of(error)}.")

    @classmethod
    def missing_packages(cls, packages: Sequence[str], extras: Sequence[str]) -> Self:
        """Refuse a command because packages of it are not installed; the message names all of its extras at once."""
        *others, last = packages
        needed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        return cls(f'This command needs {needed} not installed. Run pip install "treefold[{",".join(extras)}]".')


class CheckpointError(CommandError):
    """A file that cannot be averaged, or files that do not match.

    ``differences``: every disagreement, as (tensor, its form in the first file, another file, its form there).
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
        """Refuse a file with content of another format than its name."""
        return cls(f"{str(path)!r} is no {kind} file: {printable(reason)}. Nothing was written.")

    @classmethod
    def damaged(cls, path: Path, what: str, *figures: object) -> Self:
        """Refuse a file for one of the reasons in the table above."""
        kind, reason = _DAMAGE[what]
        return cls.malformed(path, kind, reason.format(*figures))

    @classmethod
    def foreign(cls, path: Path, kind: str, error: Exception) -> Self:
        """Refuse a file because of an error of the library that reads it."""
        line = str(error).partition("\n")[0].partition(". ")[0].rstrip(".:")
        return cls.malformed(path, kind, line[:_LONGEST_REASON] or type(error).__name__)

    @classmethod
    def truncated(cls, path: Path, name: str) -> Self:
        """Refuse a file that ends within a tensor, or became shorter while it was read."""
        return cls(f"{str(path)!r} ends within the tensor {name!r}. Copy it again. Nothing was written.")

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
    def dtype(cls, path: Path, name: str, dtype: str) -> Self:
        return cls(f"{str(path)!r} holds {dtype} at {name!r}, which cannot be averaged. Cast it, or leave it out.")

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


class CheckpointFormatError(CheckpointError):
    """A checkpoint with a format, layout or content that is not averaged as it is."""

    @classmethod
    def named(cls, path: Path, what: str) -> Self:
        """Refuse a recognised format, with the remedy of the table above."""
        found, remedy = _FORMATS[what]
        return cls(f"{str(path)!r} is {found}. {remedy}. {_NOTHING}")

    @classmethod
    def key(cls, path: Path, places: Sequence[str], asked: str | None, *, top: Sequence[str] = ()) -> Self:
        """Refuse a file that holds tensors in other mappings than the one asked for, or also outside of them."""
        begin = f"{str(path)!r} holds no tensors" + (f" at {short(asked)}" if asked is not None else " at its top")
        if not places:
            return cls(f"{begin}, nor anywhere else. Save named tensors, as torch.save(model.state_dict(), ...) does.")
        *others, last = [repr(place) for place in places[:8]]
        named = f"{', '.join(others)} and {last}" if others else last
        if top and asked is None:
            beside = ", ".join(map(repr, list(top)[:6]))
            return cls(
                f"{str(path)!r} holds tensors at {named}, and at its top {beside}. Say --key {places[0]}, or --key . "
                f"for those at its top. {_NOTHING}"
            )
        return cls(f"{begin}: tensors are at {named}. Say --key {places[0]}. {_NOTHING}")

    @classmethod
    def bomb(cls, path: Path, nbytes: int, unpacked: int) -> Self:
        return cls(
            f"{str(path)!r} has {bytes_in_words(nbytes)} and unpacks to {bytes_in_words(unpacked)}. If that is right, "
            f"save it again with numpy.savez, which does not pack. {_NOTHING}"
        )

    @classmethod
    def no_weights(cls, path: Path, found: Sequence[str]) -> Self:
        """Refuse a folder in which there is no checkpoint, or in which there are several."""
        what = f"these: {listed(list(found)[:6], quote=False)}" if found else "no weights"
        return cls(f"The folder {str(path)!r} holds {what}. Name one file, or an index of shards. {_NOTHING}")

    @classmethod
    def subfolders(cls, folder: Path, names: Sequence[str], *, have_numbers: bool) -> Self:
        """Refuse a folder with weights in its subfolders only, such as a pipeline of diffusers or a run."""
        remedy = "Say --last with a number, or name them" if have_numbers else "Name one of them for each input"
        found = ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "")  # noqa: PLR2004 - few
        return cls(f"The folder {str(folder)!r} holds no weights, but folders that do: {found}. {remedy}. {_NOTHING}")

    @classmethod
    def adapters(cls, one: Path, other: Path, key: str, values: tuple[object, object]) -> Self:
        """Refuse adapters that are scaled differently."""
        return cls(
            f"The adapters {str(one)!r} and {str(other)!r} differ in {key}: {values[0]!s:.60} and {values[1]!s:.60}. "
            f"It scales their products, so the mean of their factors means nothing. Merge each into its base "
            f"(merge_and_unload), and average those. {_NOTHING}"
        )

    @classmethod
    def index(cls, path: Path, reason: str) -> Self:
        """Refuse an index that does not match its shards."""
        return cls(f"The index {str(path)!r} {reason}. Copy the model again. {_NOTHING}")

    @classmethod
    def pieces(cls, path: Path, name: str, reason: str) -> Self:
        """Refuse a distributed checkpoint with pieces that do not cover a tensor exactly once."""
        return cls(f"{str(path)!r} is no whole distributed checkpoint: {name!r} {reason}. Save it again. {_NOTHING}")

    @classmethod
    def codes(cls, name: str, dtype: str) -> Self:
        """Refuse whole numbers that may be codes."""
        return cls(
            f"The inputs differ in {name!r}, of {dtype}: it may count or index, or hold codes of a quantized model or "
            f"pickled state, which have no mean. Average models before they are quantized; else say --integers mean, "
            f"or --integers first to keep the first input's. {_NOTHING}"
        )

    @classmethod
    def scaled(cls, name: str, dtype: str) -> Self:
        """Refuse 8-bit floats that have a scale beside them."""
        return cls(
            f"The inputs differ in {name!r}, of {dtype} in a quantized model: they are codes that a scale belongs to, "
            f"which have no mean. Average the models before they are quantized; else say --integers first to keep the "
            f"first input's, or --integers mean with --dtype bfloat16. {_NOTHING}"
        )

    @classmethod
    def eight_bits(cls, name: str, dtype: str) -> Self:
        return cls(
            f"The files differ in {name!r}, and the mean of {dtype} is not defined in 8 bits. "
            f"Say --dtype bfloat16, which converts before averaging. {_NOTHING}"
        )

    @classmethod
    def whole_range(cls, name: str, dtype: str) -> Self:
        return cls(f"The combination of {name!r} has numbers beyond {dtype}. Leave it out with --skip. {_NOTHING}")

    @classmethod
    def prefix(cls, prefix: str, paths: Sequence[Path]) -> Self:
        """Refuse names that differ only by a wrapper's prefix."""
        return cls(
            f"Names in {', '.join(repr(str(path)) for path in paths)} begin with {prefix!r}, and others do not. "
            f"Say --strip-prefix {prefix}. {_NOTHING}"
        )

    @classmethod
    def collision(cls, path: Path, name: str) -> Self:
        return cls(f"--strip-prefix makes two tensors of {str(path)!r} {name!r}. Strip less. {_NOTHING}")


class AverageOptionError(CheckpointError):
    """Options of an average that do nothing or exclude each other."""

    @classmethod
    def weights_text(cls, text: str) -> Self:
        return cls(
            f"--weights got {short(text)}. It takes one number per file, with commas between: 1,2,0.5 or 1/3,2/3."
        )

    @classmethod
    def goes_with(cls, option: str, needed: str) -> Self:
        return cls(f"{option} goes with {needed}.")

    @classmethod
    def value(cls, option: str, got: object, allowed: str) -> Self:
        return cls(f"{option} got {short(got)}. It takes {allowed}.")


class BenchError(CommandError):
    """A benchmark was asked for something that it cannot do."""

    @classmethod
    def size(cls, option: str, got: str) -> Self:
        return cls(f"{option} got {short(got)}. It takes a number of bytes of at least 1, with K, M or G: 4K, 256M.")

    @classmethod
    def order(cls, begin: int, end: int) -> Self:
        return cls(f"-b got {counted(begin, 'byte')} and -e got {end}. The sweep goes up: -e must be at least -b.")

    @classmethod
    def least(cls, option: str, got: int, least: int) -> Self:
        return cls(f"{option} got {got}. It takes a whole number of at least {least}.")

    @classmethod
    def choice(cls, option: str, got: str, allowed: Sequence[str]) -> Self:
        return cls(f"{option} got {got!r}. It takes one of {', '.join(allowed)}.")

    @classmethod
    def needs(cls, option: str, module: str) -> Self:
        return cls(f'{option} needs {module}, which is not installed. Run pip install "treefold[bench]".')

    @classmethod
    def memory(cls, name: str, needed: int, available: int) -> Self:
        return cls(
            f"{name} needs {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free;"
            " take smaller sizes, fewer devices or fewer peers."
        )


class PeerError(TreefoldError, RuntimeError):
    """A library cannot do the work of a benchmark, or did not do it; the sentence is the note in its row."""

    @classmethod
    def lacks(cls, library: str, what: str) -> Self:
        return cls(f"{library} has no {what}")

    @classmethod
    def mean_of_integers(cls) -> Self:
        return cls("the mean of integers has another dtype")
