"""``average_checkpoints``, the command ``treefold average`` as a function: opens, compares and averages all inputs."""

from __future__ import annotations

import contextlib
import errno
import gc
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from treefold.averaging.arithmetic import Combination, Op, check_meaning, make_combination
from treefold.averaging.inputs import ModelFiles, Reader, by_number, check_adapters, checkpoints_in, differing_keys
from treefold.averaging.selection import Difference, Selection, TensorChoice, agree, check_choice, explain, prepare
from treefold.averaging.tensors import Checkpoint
from treefold.averaging.writers import OUTPUT_ENDINGS, Target, average, block_bytes, check_target, plan_shards, writing
from treefold.dtypes import FLOATS
from treefold.errors import AverageOptionError, CheckpointError
from treefold.errors.words import short
from treefold.files import NEW_FILE_MODE, check_writable, clear_drafts, made_parents

#: The interpreter, NumPy and the libraries that they load.
_PROCESS_BYTES = 60 << 20
_MAGIC = re.compile(r"[*?\[]")
_PEFT = re.compile(r"\.lora_(A|B|embedding_A|embedding_B)\b")
PEFT_WARNING = (
    "These are adapters: the mean of their factors is not the factors of the mean. To average the models that they "
    "make, merge each adapter into its base first (merge_and_unload), or keep the result as a new starting point."
)
CONFIG_WARNING = (
    "The configurations of the inputs differ, so the same weights may mean different models. The keys are {}. "
    "That of {} is kept."
)
StrPath = str | PathLike[str]
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?")


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome of a run, or of a dry one.

    Attributes:
        op: The operation.
        inputs: The files and folders, in their order; the base first if there is one.
        output: The path of the output.
        num_tensors: The number of tensors written, including those that share memory with others.
        nbytes: Bytes of the tensors.
        memory_bytes: An estimate of the memory that the run takes.
        files: Bytes of each shard of a folder, by name. Empty for one file.
        differences: Disagreements, as (tensor, what the first input has, other input, what that one has).
        partial: Tensors that only some of the inputs have.
        converted: Tensors that were converted to another dtype.
        ties: The name of another tensor, for each tensor that shares its memory.
        others: Names of entries that are no tensors, and were left out.
        copied: Files of the first input that are copied into the folder.
        not_copied: Files and folders of the first input that are neither read nor copied.
        warnings: Sentences that a reader should see.

    """

    op: str
    inputs: tuple[str, ...]
    output: str
    num_tensors: int
    nbytes: int
    memory_bytes: int
    files: dict[str, int]
    differences: list[Difference]
    partial: list[str]
    converted: list[str]
    ties: dict[str, str]
    others: list[str]
    copied: list[str]
    not_copied: list[str]
    warnings: list[str]


class _AverageRun:
    """The inputs of a run, open and compared until ``close``. ``selection``: the tensors to write."""

    def __init__(
        self,
        paths: list[Path],
        output: Path,
        *,
        combination: Combination,
        choice: TensorChoice,
        key: str | None,
        most_bytes: int | None,
    ) -> None:
        """Open all inputs."""
        self.paths, self.output = paths, output
        self._combination, self._choice, self._most_bytes = combination, choice, most_bytes
        self._check_apart()
        with contextlib.ExitStack() as opened, _uncollected():
            reader = Reader(_scratch_of(output), key)
            opened.callback(reader.close)
            read = [reader.read(path) for path in self.paths]
            self._is_folder = self._decide_folder(*read[0])
            self._check_output(reader)
            check_adapters([checkpoint for checkpoint, _ in read])
            self._checkpoints = [prepare(checkpoint, choice) for checkpoint, _ in read]
            keeps_ties = output.suffix != ".npz"
            self.selection: Selection = agree(self._checkpoints, combination, choice, keeps_ties=keeps_ties)
            check_choice(choice, self.selection)
            layout = read[0][1]
            self.target = self._make_target(reader, layout)
            if not self.selection.differences:
                for one in self.target.outputs:
                    check_meaning(one.name, one.spec, combination)
                    check_meaning(one.name, one.work, combination)
                check_target(self.target)
            self.close = opened.pop_all().close

    def write(self, on_bytes: Callable[[int], None]) -> None:
        """Write the output, whole or not at all."""
        if self.selection.differences:
            raise explain(self.selection.differences, self._checkpoints)
        try:
            with made_parents(self.output):
                if not clear_drafts(self.output):
                    raise AverageOptionError(
                        f"Another run is writing to --output {str(self.output)!r}. Wait for it, or name another output."
                    )
                with writing(self.target) as writer:
                    average(self.target.outputs, writer, on_bytes)
        except OSError as error:
            raise CheckpointError.unwritable("--output", self.output, error) from None

    def summary(self) -> Summary:
        """Return a summary of the output."""
        selection = self.selection
        names = [output.name for output in selection.outputs]
        warnings = [PEFT_WARNING] if any(_PEFT.search(name) for name in names) else []
        if keys := differing_keys(self._checkpoints):
            warnings.append(CONFIG_WARNING.format(", ".join(keys), self._checkpoints[0].path))
        num_inputs, copied = len(self._checkpoints), self.target.copied
        headers = 1_000 * sum(len(checkpoint.tensors) for checkpoint in self._checkpoints)
        return Summary(
            op=self._combination.op.value,
            inputs=tuple(str(path) for path in self.paths),
            output=str(self.output),
            num_tensors=len(names) + len(selection.ties),
            nbytes=sum(output.spec.nbytes for output in selection.outputs),
            memory_bytes=_PROCESS_BYTES + headers + (num_inputs + 1) * block_bytes(num_inputs),
            files={shard.name: shard.nbytes for shard in self.target.shards} if self._is_folder else {},
            differences=selection.differences,
            partial=selection.partial,
            converted=selection.converted,
            ties=selection.ties,
            others=sorted({name for checkpoint in self._checkpoints for name in checkpoint.others}),
            copied=list(copied.small) if copied is not None else [],
            not_copied=list(copied.left) if copied is not None else [],
            warnings=warnings,
        )

    def _decide_folder(self, first: Checkpoint, layout: ModelFiles | None) -> bool:
        """Tell whether the output is a folder: if the first input is one and the output has no file's ending."""
        is_file = self.output.suffix in OUTPUT_ENDINGS
        is_folder = layout is not None or first.path.is_dir()
        if not is_file and not is_folder:
            raise CheckpointError.suffix(self.output, OUTPUT_ENDINGS)
        if is_file and self._most_bytes is not None:
            raise AverageOptionError.goes_with("--max-shard-size", "an output that is a folder")
        return not is_file

    def _check_apart(self) -> None:
        """Refuse an output inside an input, or one that contains an input."""
        output = Path(os.path.realpath(self.output))
        for path in self.paths:
            found = Path(os.path.realpath(path))
            if output == found:
                raise CheckpointError.output_is_input(self.output)
            if (found in output.parents and _is_folder(found)) or output in found.parents:
                raise AverageOptionError(
                    f"--output {str(self.output)!r} and the input {str(path)!r} lie in each other. Name another output."
                )

    def _find_output(self) -> os.stat_result | None:
        try:
            return self.output.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CheckpointError.unwritable("--output", self.output, error) from None

    def _check_output(self, reader: Reader) -> None:
        found = self._find_output()
        opened = [os.fstat(file.file.fileno()) for file in reader.files]
        if found is not None and any(os.path.samestat(found, one) for one in opened):
            raise CheckpointError.output_is_input(self.output)
        try:
            if self._is_folder and found is not None and not self.output.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(self.output))
            if self._is_folder and found is not None and any(self.output.iterdir()):
                raise AverageOptionError(
                    f"--output {str(self.output)!r} is a folder that is not empty. Name a new one, or remove it."
                )
            # Missing folders are made when there is something to write.
            is_there = self.output.absolute().parent.is_dir() and not self._is_folder
            check_writable(self.output if is_there else _scratch_of(self.output) / ".treefold-new")
        except OSError as error:
            raise CheckpointError.unwritable("--output", self.output, error) from None

    def _make_target(self, reader: Reader, layout: ModelFiles | None) -> Target:
        first, *others = self._checkpoints
        metadata = {
            key: text for key, text in first.metadata.items() if all(o.metadata.get(key) == text for o in others)
        }
        shards = plan_shards(
            self.selection.outputs, first, layout, is_folder=self._is_folder, most_bytes=self._most_bytes
        )
        mode = NEW_FILE_MODE
        for file in reader.files:
            mode &= file.mode
        dtype = self._choice.dtype
        return Target(
            self.output,
            self._is_folder,
            shards,
            metadata,
            self.selection.ties,
            # Nobody but the owner may do more with the output than with every file of the inputs.
            mode | 0o600,
            layout if self._is_folder else None,
            {"dtype": dtype, "torch_dtype": dtype} if dtype is not None else {},
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Stop the cyclic garbage collector: headers make many objects, which it would visit often, and no cycles."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, for one: that is said when it is opened
        return False


def _scratch_of(output: Path) -> Path:
    """Return the nearest existing folder above an output, for temporary files without a name."""
    folder = Path(os.path.realpath(output)).parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _expand(inputs: Sequence[str | Path], last: int | None) -> list[Path]:
    """Return inputs with patterns replaced by their matches, or the last ``last`` of all of them by their numbers.

    With ``last``, a single folder stands for the checkpoints in it.

    Raises:
        AverageOptionError: a pattern that matches nothing, fewer inputs than ``last``.

    """
    found: list[Path] = []
    for given in inputs:
        text = str(given)
        if _MAGIC.search(text) and not os.path.lexists(text):
            matches = sorted(glob.glob(text), key=by_number)  # noqa: PTH207 - a pattern may be absolute
            if not matches:
                raise AverageOptionError(f"No file or folder matches {short(text)}. Nothing was written.")
            found += map(Path, matches)
        else:
            found.append(Path(given))
    if last is None:
        return found
    if len(found) == 1 and _is_folder(found[0]):
        try:
            found = checkpoints_in(found[0]) or found
        except OSError as error:
            raise CheckpointError.unreadable(found[0], error) from None
    if not 1 <= last <= len(found):
        raise AverageOptionError.value("--last", last, f"1 to {len(found)}, the number of inputs")
    return sorted(found, key=lambda path: by_number(str(path)))[-last:]


def average_checkpoints(  # noqa: PLR0913 - the options of the command
    inputs: Sequence[StrPath],
    output: StrPath,
    *,
    op: str = "mean",
    weights: str | Sequence[object] | None = None,
    decay: str | None = None,
    last: int | None = None,
    base: StrPath | None = None,
    key: str | None = None,
    strip_prefix: str | Sequence[str] = (),
    partial: bool = False,
    only: str | Sequence[str] = (),
    skip: str | Sequence[str] = (),
    dtype: str | None = None,
    integers: str | None = None,
    max_shard_size: str | int | None = None,
    dry_run: bool = False,
    on_start: Callable[[int], None] | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Summary:
    """Average checkpoints into a file or a folder: exactly, and in constant memory.

    Args:
        inputs: Files, folders, indexes of shards, or patterns of their names; at least one.
        output: A file, the format of which is that of its ending, or a folder if the first input is one. It appears
            when it is whole.
        op: ``"mean"``, ``"sum"``, or ``"combine"``: Σ wᵢ·xᵢ with weights of any sign, not divided.
        weights: One number per input: text as on the command line, or numbers. A float counts with its exact binary
            value.
        decay: ``"linear"``, ``"cosine"`` or ``"1-sqrt"``: weights with the effect of this decay of the learning rate.
        last: The number of inputs to take, the last ones by the numbers in their names; all by default. With ``last``,
            a single folder stands for the checkpoints in it.
        base: A checkpoint that is subtracted from all inputs first, and added at the end.
        key: The mapping that holds the tensors, in files of nested dictionaries; dots between nested names, and a dot
            alone for the top. By default it is found.
        strip_prefix: Prefixes to remove from the names of tensors.
        partial: True keeps tensors that only some inputs have, averaged over those.
        only: Patterns of names of tensors to take, as of files: ``"model.layers.*"``.
        skip: Patterns of names of tensors to leave out.
        dtype: The dtype of floats in the output, 8-bit floats included: the exact value, rounded to it once. By default
            each tensor keeps its own.
        integers: ``"mean"`` averages integers that differ, and ``"first"`` takes those of the first input. By default
            counters are averaged, and others are refused, because they may be codes of a quantized model.
        max_shard_size: The most bytes of a file of an output folder, as a number or as ``"5GB"``; by default the files
            are those of the first input.
        dry_run: True writes nothing.
        on_start: Called with the number of bytes that will be read.
        on_bytes: Called with the number of bytes that were read, now and then.

    Returns:
        What was written, or would be. With ``dry_run`` it may hold differences.

    Raises:
        CheckpointError: An input is refused, inputs do not go together, or the output cannot be written.
        ArgumentError: Weights that are no numbers.

    """
    if op not in tuple(Op):
        raise AverageOptionError.value("--op", op, "mean, sum or combine")
    if dtype is not None and dtype not in FLOATS:
        raise AverageOptionError.value("--dtype", dtype, "float16, bfloat16, float32 or float64")
    if integers not in {None, "mean", "first"}:
        raise AverageOptionError.value("--integers", integers, "mean or first")
    choice = TensorChoice(_row(strip_prefix), _row(only), _row(skip), dtype, partial, integers)
    most_bytes = None if max_shard_size is None else _read_size(max_shard_size)
    paths = _expand([Path(path) for path in inputs], last)
    bases = [] if base is None else [Path(base)]
    count = len(bases) + len(paths)
    combination = make_combination(Op(op), weights, count, decay=decay, has_base=bool(bases))
    if partial and combination.op is not Op.MEAN:
        raise AverageOptionError.goes_with("--partial", "--op mean")
    if partial and bases:
        raise AverageOptionError.goes_with("--partial", "inputs without --base")
    run = _AverageRun(
        [*bases, *paths], Path(output), combination=combination, choice=choice, key=key, most_bytes=most_bytes
    )
    with contextlib.closing(run):
        if on_start is not None:
            on_start(sum(len(one.tensors) * one.work.nbytes for one in run.selection.outputs))
        if not dry_run:
            run.write(on_bytes)
        return run.summary()


def _row(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _read_size(given: str | int) -> int:
    match = _SIZE.fullmatch(str(given).strip().upper())
    nbytes = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if nbytes < 1:
        raise AverageOptionError.value("--max-shard-size", given, "a size such as 5GB or 500MiB")
    return nbytes
