"""Matches the tensors of several inputs: renames, chooses and compares them, and finds their common dtype."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from treefold.averaging.arithmetic import Combination, Op, Rule
from treefold.averaging.tensors import Bytes, Checkpoint, Contents, Spec, Tensor
from treefold.dtypes import FLOATS, INTEGERS, TRAVELLING
from treefold.errors import AverageOptionError, CheckpointError, CheckpointFormatError
from treefold.errors.words import counted

#: What wrappers put before the names of a model's tensors: data parallelism, torch.compile, modules around a model.
PREFIXES = ("module.", "_orig_mod.", "model.")
#: What the names of tensors say that stand beside codes.
_OF_CODES = re.compile(r"scal|abs_?max|amax|SCB|quant_state", re.IGNORECASE)
#: The last part of names of whole numbers that count. Those without dimensions count, too.
_COUNTERS = frozenset({"num_batches_tracked", "n_averaged", "num_updates", "steps", "step", "global_step", "epoch"})


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """The options that choose tensors, rename them and set their dtype."""

    strip_prefix: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    dtype: str | None = None
    is_partial: bool = False
    integers: str | None = None


class Difference(NamedTuple):
    """A row of the table of disagreements: tensor, what the first input has, another input, what that one has."""

    name: str
    expected: str
    path: str
    found: str


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to write, the tensors from which it is computed, and the rule. ``work``: their common dtype."""

    name: str
    spec: Spec
    work: Spec
    tensors: tuple[Tensor, ...]
    combination: Combination
    paths: tuple[Path, ...]
    rule: Rule = Rule.FOLD


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors to write, and what was found beside them.

    Attributes:
        ties: The name under which a tensor is stored, for each tensor that shares the memory of another.

    """

    outputs: list[Output]
    ties: dict[str, str]
    differences: list[Difference]
    partial: list[str]
    converted: list[str]


@dataclass(frozen=True, slots=True)
class _Converted:
    """A tensor of floats, converted to a dtype that holds all their values."""

    spec: Spec
    tensor: Tensor

    @contextlib.contextmanager
    def open(self) -> Iterator[Contents]:
        """Open the tensor for reading."""
        with self.tensor.open() as contents:
            yield _ConvertedContents(contents, self.tensor.spec, self.spec)


class _ConvertedContents:
    """Contents that are converted while they are read."""

    def __init__(self, contents: Contents, source: Spec, target: Spec) -> None:
        """Start at the beginning of the tensor."""
        self._contents, self._source, self._target = contents, source.numpy_dtype, target

    def take(self, nbytes: int) -> Bytes:
        """Return the next ``nbytes``, converted, in a new block."""
        count = nbytes // self._target.itemsize
        block = self._contents.take(count * self._source.itemsize)
        values = block[: block.size - block.size % self._source.itemsize].view(self._source)
        return np.ascontiguousarray(values.astype(self._target.numpy_dtype)).view(np.uint8)


def prepare(checkpoint: Checkpoint, choice: TensorChoice) -> Checkpoint:
    """Return an input with prefixes stripped, tensors chosen, and codes found.

    Raises:
        CheckpointError: two tensors come to one name.

    """
    coded = coded_names(checkpoint)
    if not (choice.strip_prefix or choice.only or choice.skip):
        return replace(checkpoint, coded=coded)
    tensors: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    for old, tensor in checkpoint.tensors.items():
        name = _stripped(old, choice.strip_prefix)
        if name in tensors or name == "":
            raise CheckpointFormatError.collision(checkpoint.path, name)
        if _is_chosen(name, choice):
            tensors[name], renamed[old] = tensor, name
    ties = {renamed[name]: renamed[kept] for name, kept in checkpoint.ties.items() if {name, kept} <= renamed.keys()}
    coded = {renamed[name] for name in coded if name in renamed}
    return replace(checkpoint, tensors=tensors, ties=ties, coded=coded)


def _stripped(name: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
    return name


def _is_chosen(name: str, choice: TensorChoice) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return (not choice.only or matches(choice.only)) and not matches(choice.skip)


def agree(
    checkpoints: Sequence[Checkpoint], combination: Combination, choice: TensorChoice, *, keeps_ties: bool = True
) -> Selection:
    """Match the tensors of prepared inputs by name.

    ``keeps_ties``: tensors that share memory in all inputs are stored once.
    """
    tables, is_partial = _with_ties(checkpoints), choice.is_partial
    coded = set().union(*(checkpoint.coded for checkpoint in checkpoints))
    paths = tuple(checkpoint.path for checkpoint in checkpoints)
    selection = Selection([], {}, [], [], [])
    has_ties = keeps_ties and any(checkpoint.ties for checkpoint in checkpoints)
    kept: dict[tuple[str, ...], str] = {}
    first_table = tables[0]
    names = first_table if all(table.keys() == first_table.keys() for table in tables) else _names_of(tables)
    for name in names:
        present = [index for index, table in enumerate(tables) if name in table]
        tensors = tuple([tables[index][name] for index in present])
        is_everywhere = len(present) == len(tables)
        is_coded, found = name in coded, dict.fromkeys(tensor.spec for tensor in tensors)
        rules = [_rule_of(name, spec, combination.op, choice.integers, is_coded=is_coded) for spec in found]
        rule = max(rules, key=lambda one: one is not Rule.FOLD)
        specs = [_asked(tensor.spec, rule, choice.dtype) for tensor in tensors]
        if not is_everywhere or any(spec != specs[0] for spec in specs):
            asked = dict(zip(present, specs, strict=True))
            row = [asked.get(index) for index in range(len(tables))]
            selection.differences.extend(_differences(name, row, paths, is_partial=is_partial))
        if any(tensor.spec != spec for tensor, spec in zip(tensors, specs, strict=True)):
            selection.converted.append(name)
        part, whose = combination, paths
        if not is_everywhere:
            selection.partial.append(name)
            whose = tuple(paths[index] for index in present)
            if is_partial and not any(combination.numerators[index] for index in present):
                continue  # no mean of inputs that all have weight 0
            part = combination.among(present) if is_partial else combination
        elif has_ties:
            stored = tuple(checkpoint.ties.get(name, name) for checkpoint in checkpoints)
            if stored in kept:
                selection.ties[name] = kept[stored]
                continue
            kept[stored] = name
        work = _work_of(specs[0], tensors)
        selection.outputs.append(Output(name, specs[0], work, _widened(tensors, work), part, whose, rule))
    selection.converted.sort()
    return selection


def _asked(spec: Spec, rule: Rule, dtype: str | None) -> Spec:
    """Return the tensor in the requested dtype; integers and codes keep their own."""
    is_float = rule is Rule.FOLD and spec.dtype in (*FLOATS, *TRAVELLING)
    return Spec(dtype, spec.shape) if dtype is not None and is_float else spec


def _work_of(spec: Spec, tensors: Sequence[Tensor]) -> Spec:
    """Return the tensor in a dtype that holds the values of all inputs, so that the result is rounded once."""
    dtypes = {spec.dtype, *(tensor.spec.dtype for tensor in tensors)}
    if len(dtypes) == 1 or not dtypes <= {*FLOATS, *TRAVELLING}:
        return spec
    return Spec("float64" if "float64" in dtypes else "float32", spec.shape)


def _widened(tensors: tuple[Tensor, ...], work: Spec) -> tuple[Tensor, ...]:
    if all(tensor.spec.dtype == work.dtype for tensor in tensors):
        return tensors
    return tuple([t if t.spec.dtype == work.dtype else _Converted(Spec(work.dtype, t.spec.shape), t) for t in tensors])


def _names_of(tables: Sequence[dict[str, Tensor]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _differences(
    name: str, found: Sequence[Spec | None], paths: Sequence[Path], *, is_partial: bool
) -> Iterator[Difference]:
    """Yield how inputs differ from the first, or from the first that has the tensor."""
    expected = next(spec for spec in found if spec is not None) if is_partial else found[0]
    for path, spec in zip(paths[1:], found[1:], strict=True):
        if spec != expected and not (spec is None and is_partial):
            yield Difference(name, str(expected or "nothing"), str(path), str(spec or "nothing"))


def _with_ties(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Tensor]]:
    """Return the tensors of each input by name, including names that are stored under another name.

    Libraries leave a tensor out of safetensors files if it shares memory with another. If one input ties a name to
    another, all inputs that have only one of the two get both.
    """
    known = {name: kept for checkpoint in checkpoints for name, kept in checkpoint.ties.items()}
    for checkpoint in checkpoints if known else ():
        for name, kept in known.items():
            for one, other in ((name, kept), (kept, name)):
                if one not in checkpoint.tensors and other in checkpoint.tensors:
                    checkpoint.tensors[one] = checkpoint.tensors[other]
                    checkpoint.ties[one] = checkpoint.ties.get(other, other)
    return [checkpoint.tensors for checkpoint in checkpoints]


def explain(differences: Sequence[Difference], checkpoints: Sequence[Checkpoint]) -> CheckpointError:
    """Return the error for inputs that disagree, with a remedy if there is one."""
    error = _explained({difference.name for difference in differences}, checkpoints)
    error.differences = differences
    return error


def _explained(names: set[str], checkpoints: Sequence[Checkpoint]) -> CheckpointError:
    for prefix in PREFIXES:
        with_prefix = [c for c in checkpoints if c.tensors and all(name.startswith(prefix) for name in c.tensors)]
        stripped = [{name.removeprefix(prefix) for name in c.tensors} if c in with_prefix else set(c.tensors)
                    for c in checkpoints]  # fmt: skip
        if 0 < len(with_prefix) < len(checkpoints) and all(found & stripped[0] for found in stripped):
            return CheckpointFormatError.prefix(prefix, [c.path for c in with_prefix])
    return CheckpointError(
        f"The {len(checkpoints)} files disagree on the name, shape or dtype of {counted(len(names), 'tensor')}, listed "
        "above. Average files of one model. Nothing was written."
    )


def coded_names(checkpoint: Checkpoint) -> set[str]:
    """Return the names of tensors of codes: 8-bit numbers of a quantized model, or those with a scale beside them.

    A scale of ``l.weight`` is ``l.weight_scale``, ``l.weight._scale`` or ``l.quantizer.scale``.
    """
    names = {name for name, tensor in checkpoint.tensors.items() if tensor.spec.dtype in (*INTEGERS, *TRAVELLING)}
    if any(key.startswith(("quant", "compression_config")) and said for key, said in checkpoint.config.items()):
        return names
    marked = set()
    for name in checkpoint.tensors if names else ():
        if found := _OF_CODES.search(name):
            around = name[: found.start()].rpartition(".")[0]
            marked |= {around, around.rpartition(".")[0]} if "." in around else {around}
    return {name for name in names if name in marked or name.rpartition(".")[0] in marked}


def _rule_of(name: str, spec: Spec, op: Op, integers: str | None, *, is_coded: bool) -> Rule:
    """Return the rule for a tensor: whole numbers that differ may be codes, which have no mean."""
    if spec.dtype in INTEGERS:
        is_number = not spec.shape or name.rpartition(".")[2] in _COUNTERS or (op is Op.SUM and not is_coded)
    elif spec.dtype in TRAVELLING and is_coded:
        is_number = False
    else:
        return Rule.FOLD
    if integers == "first":
        return Rule.FIRST
    return Rule.FOLD if is_number or integers == "mean" else Rule.EQUAL


def check_choice(choice: TensorChoice, selection: Selection) -> None:
    """Refuse options that leave no tensor.

    Raises:
        AverageOptionError: naming the options.

    """
    if (choice.only or choice.skip) and not selection.outputs and not selection.differences:
        options = " and ".join(word for word, given in (("--only", choice.only), ("--skip", choice.skip)) if given)
        raise AverageOptionError(f"{options} leaves no tensor to average. Nothing was written.")
