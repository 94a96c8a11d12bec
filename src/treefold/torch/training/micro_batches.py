"""``MicroBatches``: training in steps of micro-batches, with the same bits on any number of ranks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.group import Group, connect
from treefold.partials.mean import read_weight
from treefold.torch.clipping import clip_grad_norm_
from treefold.torch.training.checking import ORDERS, compare, restored
from treefold.torch.training.digests import digests, layout_problem, together
from treefold.torch.training.generators import seeded
from treefold.torch.training.model_gradients import ModelGradients
from treefold.torch.training.step import OpenStep


class MicroBatches:
    """A training run in steps of micro-batches; its bits do not depend on how many ranks share them.

    Every micro-batch has its own data, seed and weight. Its gradient is added to an exact partial sum when it ends,
    and ``.grad`` is written once a step, by ``reduce``. So parameters, optimizer state and logged means have one SHA,
    however many ranks there are, and whether the model is plain, in ``DistributedDataParallel``, or cut by
    ``fully_shard`` (FSDP2, HSDP).

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> run = MicroBatches(model, per_step=4)
    >>> for index in run.mine(0):
    ...     with run.micro_batch(0, index):
    ...         loss = model(torch.randn(8, 2)).square().mean()
    ...         loss.backward()
    ...         run.log(loss=loss)
    >>> norm = run.reduce(max_norm=1.0)
    >>> optimizer.step()
    >>> sorted(run.logged)
    ['loss']
    """

    def __init__(self, model: torch.nn.Module, group: Any = None, *, per_step: int, seed: int = 0) -> None:
        """Prepare a model; all ranks call, in the same order as other collectives.

        Args:
            model: A module on the CPU or one GPU: plain, compiled, in ``DistributedDataParallel``, or with modules that
                ``fully_shard`` has cut. All ranks begin with the same parameters.
            group: The ranks: what ``treefold.connect`` returns, or a PyTorch ``ProcessGroup`` of any backend. None:
                this process alone.
            per_step: How many micro-batches a step has.
            seed: The run's seed. It, the step and the index seed the random generators of each micro-batch.

        Raises:
            ArgumentError: The model cannot be trained in micro-batches, its wrappers have another number of ranks than
                ``group``, or ``per_step`` or ``seed`` is no such number.
            ConnectError: A rank did not connect.

        """
        if type(per_step) is not int or per_step < 1:
            raise ArgumentError(f"MicroBatches got per_step={short(per_step)}. It takes a whole number of 1 or more.")
        if type(seed) is not int:
            raise ArgumentError(f"MicroBatches got seed={short(seed)}. It takes a whole number.")
        self.per_step, self.seed = per_step, seed
        self.logged: dict[str, float] = {}
        self.next_step = 0
        connected = functools.cache(connect)
        self._model, self._group = model, _as_group(group, connected)
        self._gradients = ModelGradients(model, self._group, connected)
        self._step: OpenStep | None = None

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return 0 if self._group is None else self._group.rank

    @property
    def ranks(self) -> int:
        """The number of ranks that share a step."""
        return 1 if self._group is None else self._group.size

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the partial sums of this rank take."""
        return self._gradients.nbytes

    def mine(self, step: int) -> list[int]:
        """Begin a step, and return the numbers of the micro-batches that this rank computes.

        Every rank gets equally many, because FSDP's passes are collective. If ``per_step`` is no multiple of the number
        of ranks, some ranks repeat a micro-batch of another rank: they compute it, but its gradient and logged values
        do not count there. The sums of an unfinished step are dropped.

        Raises:
            ArgumentError: ``step`` is no whole number of 0 or more.

        """
        if type(step) is not int or step < 0:
            raise ArgumentError(f"mine() got step={short(step)}. It takes a whole number of 0 or more.")
        self._step = OpenStep(step, self.per_step)
        self._gradients.begin()
        rounds = -(-self.per_step // self.ranks)
        return [(self.rank + turn * self.ranks) % self.per_step for turn in range(rounds)]

    @contextmanager
    def micro_batch(self, step: int, index: int, weight: Any = 1) -> Iterator[None]:
        """Compute a micro-batch in this context: forward, backward, ``log``.

        The generators of Python, NumPy and PyTorch are seeded by the run's seed, the step and the index, and restored
        afterwards.

        Args:
            step: The step that ``mine`` has begun.
            index: One of the numbers that ``mine`` has returned.
            weight: The weight of its gradient and logged values in the means, such as the number of its tokens: a whole
                number or float, 0 or more and below 2**64, a multiple of 2**-64.

        Raises:
            ArgumentError: ``step`` has not begun, ``index`` is out of range or was added before, or ``weight`` is no
                such number. An earlier micro-batch of the step has failed, or had other logged names. A layer keeps
                state from one micro-batch to the next, a gradient is sparse, or an FSDP module ran backward twice or
                kept its gradients back.

        """
        words = read_weight(weight)
        begun = self._begun()
        self._gradients.check_layers()
        begun.open(step, index)
        is_surplus = index % self.ranks != self.rank
        if is_surplus:
            words = weight = 0
        with self._gradients.one_pass(words), seeded(self.seed, step, index):
            yield
        self._gradients.take(weight)
        begun.close(index, words, is_surplus=is_surplus)

    def log(self, **values: Any) -> None:
        """Record numbers of this micro-batch, such as its loss.

        After ``reduce``, ``logged`` holds their weighted means over all micro-batches of all ranks.

        Args:
            values: Numbers or arrays of one element, by name; the same names in every micro-batch.

        Raises:
            ArgumentError: No step has begun.

        """
        for name, value in values.items():
            self._begun().values[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)

    def reduce(self, max_norm: float | None = None) -> torch.Tensor | None:
        """End a step: set ``.grad`` to the exact mean over all micro-batches of all ranks, clipped; all ranks call.

        Args:
            max_norm: The largest norm of all gradients together. ``treefold.torch.clip_grad_norm_`` clips gradients
                whose norm is larger. None does not clip.

        Returns:
            The norm before clipping; None if ``max_norm`` is None.

        Raises:
            ArgumentError: A micro-batch is missing or has failed, all weights are 0, or ranks have logged different
                names. All ranks raise it.

        """
        step = self._begun()
        used, words, self.logged = step.agree(self._gradients.used, self._group)
        self._gradients.write(words, used)
        self.next_step, self._step = step.number + 1, None
        return None if max_norm is None else clip_grad_norm_(self._model.parameters(), max_norm)

    def sha256(self, optimizer: torch.optim.Optimizer | None = None) -> str:
        """Return one SHA-256 of all parameters, buffers and the state of the optimizer; all ranks call.

        The digest covers whole tensors, under the names that they have without wrappers. So it does not depend on how
        the model is cut or wrapped. Tensors that are cut are gathered one at a time.

        Args:
            optimizer: The optimizer of the model's parameters; None leaves out its state.

        Warns:
            UserWarning: The optimizer's bits depend on how the model is cut.

        """
        problem = layout_problem(self._model, optimizer)
        if problem:
            warnings.warn(problem, stacklevel=2)
        return together(digests(self._model, optimizer, {}, is_state=True))

    def digests(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, str]:
        """Return the SHA-256 of every logged mean, gradient, parameter, buffer, and state of the optimizer, by name.

        All ranks call. A training can yield them after each step, for ``treefold.testing.assert_same_training``.
        """
        return digests(self._model, optimizer, self.logged, is_state=False)

    def check(self, optimizer: torch.optim.Optimizer | None, compute: Callable[[int, int], Any]) -> None:
        """Run micro-batch 0 twice and 1 once on all ranks, odd ranks in another order, and compare their bits.

        The model's gradients and buffers, and the random generators, are restored afterwards. The sums of an unfinished
        step are dropped.

        Args:
            optimizer: The optimizer of the model's parameters, or None.
            compute: A function of a step and an index that does the work of a ``micro_batch``: it computes the loss,
                calls ``backward()``, and may call ``log``.

        Raises:
            ArgumentError: The optimizer's bits depend on how the model is cut, or a layer keeps state from one
                micro-batch to the next.
            NotReproducibleError: Ranks begin with different parameters, buffers or optimizer states, or a micro-batch
                has different bits on another rank or in another order. The error names the rank, the first difference
                and the usual causes. All ranks raise it.

        """
        problem = layout_problem(self._model, optimizer)
        if problem:
            raise ArgumentError(problem)
        compare([("The run", digests(self._model, optimizer, {}, is_state=True))], self._group)
        self._gradients.begin()
        self._gradients.check_layers()
        found = []
        with restored(self._model):
            for index in (each % self.per_step for each in ORDERS[self.rank % len(ORDERS)]):
                self._step = OpenStep(0, self.per_step)
                with self._gradients.one_pass(0), seeded(self.seed, 0, index):
                    compute(0, index)
                    logged = {f"logged {name}": value.hex() for name, value in self._step.values.items()}
                    found.append((f"Micro-batch {index}", self._gradients.observe() | logged))
            self._step = None
            self._gradients.begin()
        compare(found, self._group)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the run: its seed, its micro-batches per step, and the next step.

        The state does not depend on the number of ranks. Save it beside the model and the optimizer, between two steps.

        Raises:
            ArgumentError: A step has begun and is not reduced.

        """
        if self._step is not None:
            raise ArgumentError(
                f"Step {self._step.number} has begun, and its sums are not saved. Call state_dict() between "
                "reduce() and mine()."
            )
        return {"seed": self.seed, "per_step": self.per_step, "next_step": self.next_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where ``state_dict`` was called, on any number of ranks; ``next_step`` is the step to begin with.

        Raises:
            ArgumentError: ``state`` is no such state, or comes from a run with another ``seed`` or ``per_step``.

        """
        wanted = {"seed": self.seed, "per_step": self.per_step}
        found = {name: state.get(name) for name in wanted}
        if found != wanted or type(state.get("next_step")) is not int:
            raise ArgumentError(
                f"MicroBatches got a state of {short(found)}. This run has {wanted}; load what its state_dict() has "
                "returned."
            )
        self._step = None
        self._gradients.begin()
        self.next_step = state["next_step"]

    def _begun(self) -> OpenStep:
        if self._step is None:
            raise ArgumentError("No step has begun. Call mine(step), and compute the micro-batches that it returns.")
        return self._step


def _as_group(group: Any, connected: Any) -> Group | None:
    if group is None or isinstance(group, Group):
        return group
    if distributed.is_available() and isinstance(group, distributed.ProcessGroup):
        made: Group = connected(group)
        return made
    raise ArgumentError(
        f"MicroBatches got group={short(group)}. It takes what treefold.connect() returns, a ProcessGroup, or None."
    )
