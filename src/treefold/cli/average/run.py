"""One run of ``treefold average``: all files open, then one written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from treefold.cli.average.arithmetic import check_meaning
from treefold.cli.average.checkpoint import Checkpoint, Writer, common_metadata, differences
from treefold.cli.average.kinds import MODULES
from treefold.cli.average.npz_files import NpzCheckpoint, NpzWriter
from treefold.cli.average.stream import average
from treefold.errors import CheckpointError
from treefold.files import NEW_FILE_MODE, check_writable, written_whole
from treefold.fold import Fold

_INPUTS = tuple(MODULES)
_OUTPUTS = (".safetensors", ".npz")


class Run:
    """The files of a run, open and compared while the ``with`` block lasts.

    ``differences``: rows of tensor, what the first file has, another file, what that has. ``nbytes``: to be read.

    Raises:
        CheckpointError: a file cannot be read or is refused, or the output cannot be written.

    """

    def __init__(self, paths: Sequence[Path], output: Path, fold: Fold) -> None:
        """Open all files."""
        self._output, self._fold = output, fold
        _check_output(output, paths)
        scratch = Path(os.path.realpath(output)).parent
        with contextlib.ExitStack() as opened:
            self._checkpoints = [_open(path, scratch, opened) for path in paths]
            self._mode = _strictest_mode(paths)
            self.differences = differences(self._checkpoints)
            # Wide elements first, as the safetensors library writes them, so that each is aligned in the file.
            specs = self._checkpoints[0].specs.items()
            self._specs = dict(sorted(specs, key=lambda item: -item[1].numpy_dtype.itemsize))
            for name, spec in self._specs.items() if not self.differences else ():
                check_meaning(name, spec, fold)
            self._opened = opened.pop_all()
        self.num_tensors = len(self._specs)
        self.nbytes = len(paths) * sum(spec.nbytes for spec in self._specs.values())

    def __enter__(self) -> Self:
        """Return the run itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all files."""
        self._opened.close()

    def write(self, on_bytes: Callable[[int], None]) -> None:
        """Write the output, whole or not at all; the files must agree.

        Raises:
            CheckpointError: the output has no place for a tensor, a file ends too early, or writing fails.

        """
        try:
            with written_whole(self._output, mode=self._mode) as file, self._writer(file) as writer:
                average(self._checkpoints, self._specs, writer, self._fold, on_bytes)
        except OSError as error:
            raise CheckpointError.unwritable("--output", self._output, error) from None

    def _writer(self, file: BinaryIO) -> Writer:
        if self._output.suffix == ".npz":
            return NpzWriter(self._output, file, self._specs)
        from treefold.cli.average.safetensors_files import SafetensorsWriter  # noqa: PLC0415 - not for npz alone

        return SafetensorsWriter(self._output, file, self._specs, common_metadata(self._checkpoints))


def _check_output(output: Path, paths: Sequence[Path]) -> None:
    if output.suffix not in _OUTPUTS:
        raise CheckpointError.suffix(output, _OUTPUTS)
    try:
        check_writable(output)
    except OSError as error:
        raise CheckpointError.unwritable("--output", output, error) from None
    if any(_is_same(path, output) for path in paths):
        raise CheckpointError.output_is_input(output)


def _is_same(path: Path, output: Path) -> bool:
    try:
        return path.samefile(output)
    except OSError:  # one of them does not exist; of an input that is said when it is opened
        return False


def _strictest_mode(paths: Sequence[Path]) -> int:
    """Return a mode by which nobody but the owner may do more with the output than with every file of the inputs."""
    mode = NEW_FILE_MODE
    for path in paths:
        try:
            mode &= path.stat().st_mode
        except OSError as error:
            raise CheckpointError.unreadable(path, error) from None
    return mode | 0o600


def _open(path: Path, scratch: Path, opened: contextlib.ExitStack) -> Checkpoint:
    if path.suffix not in _INPUTS:
        raise CheckpointError.suffix(path, _INPUTS)
    checkpoint = _open_by_suffix(path, scratch)
    opened.callback(checkpoint.close)
    return checkpoint


def _open_by_suffix(path: Path, scratch: Path) -> Checkpoint:
    if path.suffix == ".npz":
        return NpzCheckpoint(path, scratch)
    if path.suffix == ".safetensors":
        from treefold.cli.average.safetensors_files import SafetensorsCheckpoint  # noqa: PLC0415 - not for npz alone

        return SafetensorsCheckpoint(path)
    from treefold.cli.average.torch_files import TorchCheckpoint  # noqa: PLC0415 - takes a second to import

    return TorchCheckpoint(path, scratch)
