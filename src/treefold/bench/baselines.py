"""Baselines: libraries that do the same work, and the loops that one would write with NumPy and with PyTorch.

The command runs them in its own process. ``benchmarks/memory.py`` runs these and more in processes of their own.
"""

from __future__ import annotations

import abc
import contextlib
import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from treefold.bench.arrays import Array, count_wrong, dtype_of, new_input
from treefold.bench.work import Work
from treefold.dtypes import INTEGERS
from treefold.errors import PeerError

#: Does the work once and returns when it is done.
Call = Callable[[], Any]

_UNSIGNED = ("uint16", "uint32", "uint64")


class Baseline(abc.ABC):
    """One library: holds the contributions, does the work in one or several forms, returns results as NumPy arrays."""

    #: Whether one process has all replicas; else each has the replica of its rank.
    has_all_replicas = True

    def __init__(self, work: Work, rank: int = 0) -> None:
        """Store the work of the process with this rank."""
        self.work = work
        self.replicas = range(work.devices) if self.has_all_replicas else range(rank, rank + 1)

    def new_inputs(self, *, is_zero: bool) -> list[list[Array]]:
        """Return for each tensor the contributions of this process's replicas."""
        tensors = range(len(self.work.shapes))
        return [[new_input(self.work, r, t, is_zero=is_zero) for r in self.replicas] for t in tensors]

    @abc.abstractmethod
    def load(self, *, is_zero: bool) -> None:
        """Replace the contributions by new ones."""

    @abc.abstractmethod
    def forms(self) -> Mapping[str, Call]:
        """Return the calls of each form of the work by name; ``read`` takes their result.

        Raises:
            PeerError: it cannot.

        """

    @abc.abstractmethod
    def read(self, result: Any) -> list[list[Array]]:
        """Return, for each tensor, the distinct results of one call in this process."""

    def start(self, form: str) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare for calls of one form."""

    def barrier(self) -> None:  # noqa: B027 - a library in one process has nobody to wait for
        """Wait for the other processes, if there are any."""


class NumpyLoops(Baseline):
    """``np.add`` with ``out=``, then a copy for every other replica: one thread, no temporary arrays."""

    _copy: Callable[[Any, Any], object] = staticmethod(np.copyto)
    _new: Callable[[Any], Any] = staticmethod(np.empty_like)
    _columns: list[list[Any]]
    _given: list[list[Any]] | None = None

    def load(self, *, is_zero: bool) -> None:
        """Replace the contributions by new ones, and allocate given arrays for results."""
        arrays = self.new_inputs(is_zero=is_zero)
        self._columns = [list(map(self._held, column)) for column in arrays]
        if self.work.placement == "out-of-place" and self._given is None:
            self._given = [[self._held(np.ones_like(array)) for array in column] for column in arrays]

    def _held(self, array: Array) -> Any:
        """Return the library's own array over the memory of a NumPy array."""
        return array

    def _operation(self) -> Any:
        ufuncs = {"min": np.minimum, "max": np.maximum, "product": np.multiply}
        return ufuncs.get(self.work.op, np.add)

    def forms(self) -> Mapping[str, Call]:
        """Return the one form."""
        if self.work.op == "mean" and self.work.dtype in INTEGERS:
            raise PeerError.mean_of_integers()
        return {f"np.{self._operation().__name__}(out=)": self._one_by_one}

    def _targets(self) -> list[list[Any]]:
        """Return, for each tensor, the arrays to which its result is written."""
        if self.work.placement == "in-place":
            return self._columns
        if self._given is not None:
            return self._given
        return [[self._new(column[0]) for _ in range(self.work.num_results)] for column in self._columns]

    def _one_by_one(self) -> list[list[Any]]:
        ends, operation = self._targets(), self._operation()
        for column, targets in zip(self._columns, ends, strict=True):
            total = targets[0]
            if len(column) == 1:
                self._copy(total, column[0])
            else:
                operation(column[0], column[1], out=total)
            for array in column[2:]:
                operation(total, array, out=total)
            self._finish(targets)
        return ends

    def _finish(self, targets: list[Any]) -> None:
        """Divide by the number of replicas for a mean, and copy the result for every replica."""
        if self.work.op == "mean":
            targets[0] /= self.work.devices
        for target in targets[1:]:
            self._copy(target, targets[0])

    def read(self, result: Any) -> list[list[Array]]:
        columns: list[list[Array]] = result
        return columns


class TorchLoops(NumpyLoops):
    """PyTorch's ``add(out=)``, its multi-tensor form, and the sum of a stack, with as many threads as treefold."""

    def __init__(self, work: Work, rank: int = 0) -> None:
        """Store the work, and set PyTorch's threads."""
        super().__init__(work, rank)
        self._torch: Any = importlib.import_module("torch")
        self._torch.set_num_threads(work.threads)
        self._copy, self._new = self._torch.Tensor.copy_, self._torch.empty_like

    def _held(self, array: Array) -> Any:
        return to_torch(array)

    def _operation(self) -> Any:
        names = {"min": "minimum", "max": "maximum", "product": "mul"}
        return getattr(self._torch, names.get(self.work.op, "add"))

    def forms(self) -> Mapping[str, Call]:
        """Return three forms of a sum, or one form of any other op."""
        ((name, loop),) = super().forms().items()
        forms: dict[str, Call] = {name.removeprefix("np."): loop}
        if self.work.op in {"sum", "mean"} and self.work.devices > 1:
            forms |= {"_foreach_add_": self._all_at_once, "stack().sum(out=)": self._stacked}
        return forms

    def _all_at_once(self) -> list[list[Any]]:
        ends, torch = self._targets(), self._torch
        totals = [targets[0] for targets in ends]
        replicas = list(zip(*self._columns, strict=True))
        if totals[0] is not replicas[0][0]:
            torch._foreach_copy_(totals, replicas[0])
        for tensors in replicas[1:]:
            torch._foreach_add_(totals, tensors)
        for total in totals:
            self._finish([total])
        for targets in list(zip(*ends, strict=True))[1:]:
            torch._foreach_copy_(targets, totals)
        return ends

    def _stacked(self) -> list[list[Any]]:
        ends, torch = self._targets(), self._torch
        for column, targets in zip(self._columns, ends, strict=True):
            torch.sum(torch.stack(column), 0, dtype=column[0].dtype, out=targets[0])
            self._finish(targets)
        return ends

    def read(self, result: Any) -> list[list[Array]]:
        return [[from_torch(tensor) for tensor in targets] for targets in result]


def to_torch(array: Array) -> Any:
    """Return a tensor over the memory of an array, bfloat16 included."""
    torch: Any = importlib.import_module("torch")
    if array.dtype.name in _UNSIGNED:
        raise PeerError.lacks("PyTorch", f"arithmetic for {array.dtype.name}")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    """Return an array over the memory of a tensor."""
    is_bfloat16 = str(tensor.dtype) == "torch.bfloat16"
    array: Array = tensor.view(importlib.import_module("torch").int16).numpy() if is_bfloat16 else tensor.numpy()
    return array.view(dtype_of("bfloat16")) if is_bfloat16 else array


#: By the words of --against, which are the modules that they need.
BASELINES: dict[str, Callable[[Work, int], Baseline]] = {"numpy": NumpyLoops, "torch": TorchLoops}


class Measured(Protocol):
    """A library that is measured beside treefold, in this process or in processes of its own.

    Every method but ``close`` raises ``PeerError``, with the reason, if the library cannot do it.
    """

    name: str

    def prepare(self, work: Work) -> list[str]:
        """Prepare a work; return the names of the forms in which the library can do it."""

    def count_wrong(self, form: str) -> int:
        """Return how many elements of all results differ from the oracle's."""

    def time(self, form: str, calls: int) -> list[float]:
        """Make calls, and return the seconds of each."""

    def drop(self) -> None:
        """Forget the work and its arrays."""

    def close(self) -> None:
        """Free everything that is held."""


class InProcess(Measured):
    """A baseline in this process, which may be one of several ``ranks`` that begin each call together."""

    def __init__(self, name: str, make: Callable[[Work, int], Baseline], *, rank: int = 0, ranks: int = 1) -> None:
        """Store the function that makes the baseline."""
        self.name = name
        self._make, self._rank, self._ranks = make, rank, ranks
        self._baseline: Baseline
        self._forms: Mapping[str, Call] = {}
        self._loaded: tuple[str, bool] | None = None

    def prepare(self, work: Work) -> list[str]:
        with _reasons():
            self._loaded = None
            self._baseline = self._make(work, self._rank)
            self._load("", is_zero=False)
            self._forms = self._baseline.forms()
            return list(self._forms)

    def count_wrong(self, form: str) -> int:
        with _reasons():
            self._load("", is_zero=False)
            self._baseline.start(form)
            self._baseline.barrier()
            columns = self._baseline.read(self._forms[form]())
            self._loaded = None
            work = self._baseline.work
            return sum(count_wrong(work, t, array) for t, column in enumerate(columns) for array in column)

    def time(self, form: str, calls: int) -> list[float]:
        with _reasons():
            # In place every call changes its inputs, but for zeros: one load serves all calls, and nothing overflows.
            is_zero = self._baseline.work.placement == "in-place"
            self._load(form if not is_zero else "", is_zero=is_zero)
            self._baseline.start(form)
            call, seconds = self._forms[form], []
            for _ in range(calls):
                if self._ranks > 1:
                    self._baseline.barrier()
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)
            return seconds

    def drop(self) -> None:
        del self._baseline
        self._forms, self._loaded = {}, None
        gc.collect()  # compiled functions and what they captured refer to each other

    def close(self) -> None:
        pass  # ``drop`` gave all back

    def _load(self, owner: str, *, is_zero: bool) -> None:
        if self._loaded != (owner, is_zero):
            self._baseline.load(is_zero=is_zero)
            self._loaded = (owner, is_zero)


@contextlib.contextmanager
def _reasons() -> Iterator[None]:
    """Turn any error of a library into a ``PeerError`` of one line."""
    try:
        yield
    except PeerError:
        raise
    except ModuleNotFoundError:
        raise PeerError("not installed") from None
    except Exception as error:
        sentence = str(error).strip() or "no reason given"
        raise PeerError(f"{type(error).__name__}: {sentence.splitlines()[0]}"[:200]) from error
