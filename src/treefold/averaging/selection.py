"""Which tensors of several inputs go together: renamed, chosen, converted, and compared."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from treefold.averaging.arithmetic import Combination
from treefold.averaging.tensors import Bytes, Checkpoint, Contents, Spec, Tensor
from treefold.backends.numpy_rounding import rounded
from treefold.dtypes import FLOATS, INTEGERS, TRAVELLING
from treefold.errors import AverageOptionError, CheckpointError, CheckpointFormatError

#: What wrappers put before the names of a model's tensors: data parallelism, torch.compile, modules around a model.
PREFIXES = ("module.", "_orig_mod.", "model.")
_PACKED_SIBLINGS = ("qzeros", "scales", "absmax", "SCB", "scale_inv")
#: Dtypes of codes. Integers of 64 bits count or index.
_CODES = tuple(name for name in (*INTEGERS, *TRAVELLING) if not name.endswith("64"))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tensors are taken, and as what."""

    strip_prefix: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    dtype: str | None = None
    is_partial: bool = False


class Difference(NamedTuple):
    """A row of the table of disagreements: tensor, what the first input has, another input, what that has."""

    name: str
    expected: str
    path: str
    found: str


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to write: the tensors that it is made of, and how."""

    name: str
    spec: Spec
    tensors: tuple[Tensor, ...]
    combination: Combination
    paths: tuple[Path, ...]
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """What several inputs make together. ``ties``: names that are stored under another name, and that name."""

    outputs: list[Output]
    ties: dict[str, str]
    differences: list[Difference]
    partial: list[str]
    converted: list[str]


@dataclass(frozen=True, slots=True)
class _Converted:
    """A tensor of floats in another dtype, each rounded once."""

    spec: Spec
    tensor: Tensor

    @contextlib.contextmanager
    def open(self) -> Iterator[Contents]:
        """Open it."""
        with self.tensor.open() as contents:
            yield _ConvertedContents(contents, self.tensor.spec, self.spec)


class _ConvertedContents:
    """Contents that are converted as they are taken."""

    def __init__(self, contents: Contents, source: Spec, target: Spec) -> None:
        """Start at the beginning."""
        self._contents, self._source, self._target = contents, source.numpy_dtype, target

    def take(self, nbytes: int) -> Bytes:
        """Return new blocks."""
        count = nbytes // self._target.numpy_dtype.itemsize
        block = self._contents.take(count * self._source.itemsize)
        values = block[: block.size - block.size % self._source.itemsize].view(self._source)
        if self._source.itemsize == 1:
            values = values.astype(np.float32)
        with np.errstate(all="ignore"):  # what is too large for a dtype is infinite
            return np.ascontiguousarray(rounded(values, self._target.dtype)).view(np.uint8)


def prepare(checkpoint: Checkpoint, choice: Choice) -> Checkpoint:
    """Return an input with prefixes stripped, tensors chosen, and floats converted.

    Raises:
        CheckpointError: two tensors come to one name.

    """
    if choice == Choice(is_partial=choice.is_partial):
        return checkpoint
    tensors: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    for old, tensor in checkpoint.tensors.items():
        name = _stripped(old, choice.strip_prefix)
        if name in tensors or name == "":
            raise CheckpointFormatError.collision(checkpoint.path, name)
        if _is_chosen(name, choice):
            tensors[name], renamed[old] = _converted(tensor, choice.dtype), name
    ties = {renamed[name]: renamed[kept] for name, kept in checkpoint.ties.items() if {name, kept} <= renamed.keys()}
    return replace(checkpoint, tensors=tensors, ties=ties)


def _stripped(name: str, prefixes: Sequence[str]) -> str:
    for prefix in prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
    return name


def _is_chosen(name: str, choice: Choice) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return (not choice.only or matches(choice.only)) and not matches(choice.skip)


def _converted(tensor: Tensor, dtype: str | None) -> Tensor:
    is_float = tensor.spec.dtype in FLOATS or tensor.spec.dtype in TRAVELLING
    if dtype is None or tensor.spec.dtype == dtype or not is_float:
        return tensor
    return _Converted(Spec(dtype, tensor.spec.shape), tensor)


def agree(
    checkpoints: Sequence[Checkpoint], combination: Combination, *, is_partial: bool, keeps_ties: bool = True
) -> Agreement:
    """Match the tensors of prepared inputs by name. ``keeps_ties``: what shares memory in all is stored once."""
    tables = _with_ties(checkpoints)
    packed = _packed_names(checkpoints)
    paths = tuple(checkpoint.path for checkpoint in checkpoints)
    agreement = Agreement([], {}, [], [], [])
    has_ties = keeps_ties and any(checkpoint.ties for checkpoint in checkpoints)
    kept: dict[tuple[str, ...], str] = {}
    first_table = tables[0]
    names = first_table if all(table.keys() == first_table.keys() for table in tables) else _names_of(tables)
    for name in names:
        present = [index for index, table in enumerate(tables) if name in table]
        tensors = tuple([tables[index][name] for index in present])
        is_everywhere = len(present) == len(tables)
        spec = tensors[0].spec
        if not is_everywhere or any(tensor.spec != spec for tensor in tensors):
            agreement.differences.extend(_differences(name, tables, paths, is_partial=is_partial))
        part, whose = combination, paths
        if not is_everywhere:
            agreement.partial.append(name)
            whose = tuple(paths[index] for index in present)
            if is_partial and not any(combination.numerators[index] for index in present):
                continue  # what weighs nothing leaves nothing
            part = combination.among(present) if is_partial else combination
        elif has_ties:
            stored = tuple(checkpoint.ties.get(name, name) for checkpoint in checkpoints)
            if stored in kept:
                agreement.ties[name] = kept[stored]
                continue
            kept[stored] = name
        agreement.outputs.append(Output(name, spec, tensors, part, whose, name in packed))
    converted = {name for table in tables for name, tensor in table.items() if isinstance(tensor, _Converted)}
    agreement.converted.extend(sorted(converted))
    return agreement


def _names_of(tables: Sequence[dict[str, Tensor]]) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _differences(
    name: str, tables: Sequence[dict[str, Tensor]], paths: Sequence[Path], *, is_partial: bool
) -> Iterator[Difference]:
    """Yield in what inputs differ from the first, or from the first that has the tensor."""
    found = [table[name].spec if name in table else None for table in tables]
    expected = next(spec for spec in found if spec is not None) if is_partial else found[0]
    for path, spec in zip(paths[1:], found[1:], strict=True):
        if spec != expected and not (spec is None and is_partial):
            yield Difference(name, str(expected or "nothing"), str(path), str(spec or "nothing"))


def _with_ties(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Tensor]]:
    """Return for each input its tensors by name, those that are stored under another name included.

    Libraries leave out of safetensors files what shares memory with another tensor: a name that one input lacks, and
    that another one ties to a name which the first has, is tied there, too.
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
    """Return the error for inputs that disagree, with the remedy where there is one."""
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
    return CheckpointError.disagreement(len(names), len(checkpoints))


def _packed_names(checkpoints: Sequence[Checkpoint]) -> set[str]:
    """Return the names of numbers that stand for others by a code, by the configuration or by the tensors beside them.

    GPTQ and AWQ write qweight, qzeros and scales; bitsandbytes weight, weight.absmax and weight.quant_state; 8-bit
    floats with scales of blocks are codes, too.
    """
    tensors = {name: tensor for checkpoint in checkpoints for name, tensor in checkpoint.tensors.items()}
    coded = {name for name, tensor in tensors.items() if _stored_dtype(tensor) in _CODES}
    if any(checkpoint.config.get("quantization_config") for checkpoint in checkpoints):
        return coded
    marked = set()
    for name in tensors:
        head, _, last = name.partition(".quant_state.")[0].rpartition(".")
        if ".quant_state." in name:
            marked.add(f"{head}.{last}")
        elif last in _PACKED_SIBLINGS or last.startswith("weight_scale"):
            marked.add(head)
    return {name for name in coded if name in marked or name.rpartition(".")[0] in marked}


def _stored_dtype(tensor: Tensor) -> str:
    return (tensor.tensor if isinstance(tensor, _Converted) else tensor).spec.dtype


def check_choice(choice: Choice, agreement: Agreement) -> None:
    """Refuse a choice that leaves nothing.

    Raises:
        AverageOptionError: naming the options.

    """
    if (choice.only or choice.skip) and not agreement.outputs and not agreement.differences:
        raise AverageOptionError.nothing_left(" and ".join(
            word for word, given in (("--only", choice.only), ("--skip", choice.skip)) if given
        ))  # fmt: skip
