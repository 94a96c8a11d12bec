"""Errors of checkpoints that are of another format, layout or content than what is averaged, each with a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from treefold.errors.checkpoints import CheckpointError
from treefold.errors.words import bytes_in_words, listed, short

_NOTHING = "Nothing was written."
#: What a file or folder is, and what to do about it.
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


class CheckpointFormatError(CheckpointError):
    """A checkpoint whose format, layout or content is not averaged as it is."""

    @classmethod
    def named(cls, path: Path, what: str) -> Self:
        """Refuse what was recognised, with the remedy of the table above."""
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
        """Refuse a folder whose subfolders hold weights, such as a pipeline of diffusers or a run."""
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
        """Refuse an index that does not go with its shards."""
        return cls(f"The index {str(path)!r} {reason}. Copy the model again. {_NOTHING}")

    @classmethod
    def pieces(cls, path: Path, name: str, reason: str) -> Self:
        """Refuse a distributed checkpoint whose pieces do not make a whole."""
        return cls(f"{str(path)!r} is no whole distributed checkpoint: {name!r} {reason}. Save it again. {_NOTHING}")

    @classmethod
    def codes(cls, name: str, dtype: str) -> Self:
        """Refuse whole numbers that may stand for others by a code."""
        return cls(
            f"The inputs differ in {name!r}, of {dtype}: it may count or index, or hold codes of a quantized model or "
            f"pickled state, which have no mean. Average models before they are quantized; else say --integers mean, "
            f"or --integers first to keep the first input's. {_NOTHING}"
        )

    @classmethod
    def scaled(cls, name: str, dtype: str) -> Self:
        """Refuse 8-bit floats that a scale belongs to."""
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
        """Refuse names that agree but for what a wrapper has put before them."""
        return cls(
            f"Names in {', '.join(repr(str(path)) for path in paths)} begin with {prefix!r}, and others do not. "
            f"Say --strip-prefix {prefix}. {_NOTHING}"
        )

    @classmethod
    def collision(cls, path: Path, name: str) -> Self:
        return cls(f"--strip-prefix makes two tensors of {str(path)!r} {name!r}. Strip less. {_NOTHING}")
