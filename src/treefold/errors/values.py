"""Errors of values, of the devices on which they lie, and of plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, listed, short


class MismatchError(TreefoldError, ValueError):
    """Replicas disagree."""

    @classmethod
    def spec(cls, replica: int, where: str, got: str, first: str, what: str) -> Self:
        """Refuse a shape or dtype that differs from replica 0's."""
        advice = {"shape": "transpose or pad one of them", "dtype": "cast one of them"}[what]
        return cls(
            f"Replica {replica} has {got}{where} where replica 0 has {first}. "
            f"Every replica must bring the same {what}; {advice}."
        )

    @classmethod
    def leaf(cls, replica: int, where: str, got: str, first: str) -> Self:
        """Refuse a leaf of another kind: None beside an array, sparse beside dense without a shape, two frameworks."""
        return cls(
            f"Replica {replica} has {got}{where} where replica 0 has {first}. "
            f"Every replica must bring the same kind of value; convert one of them."
        )

    @classmethod
    def room(cls, rank: int, where: str, room: int, length: int, axis: int) -> Self:
        """Refuse an array of ``out`` on a rank that is longer or shorter than the result."""
        return cls(
            f"Rank {rank} has an out{where} of length {room} along axis {axis}, and the result has {length} there. "
            "Nothing was done."
        )

    @classmethod
    def dense_shape(cls, replica: int, where: str, got: object, first: object) -> Self:
        return cls(
            f"Replica {replica} has IndexedSlices of dense_shape {got}{where} where replica 0 has {first}. "
            f"Every replica must bring rows of an array of the same shape."
        )


class DtypeError(TreefoldError, ValueError):
    """A dtype that the op has no meaning for."""

    @classmethod
    def of_objects(cls, dtype: str) -> Self:
        """Refuse memory that other processes are to read, for elements that are Python objects of this one."""
        return cls(f"{dtype} has elements that are Python objects, which no other process can read. Take numbers.")


class NotFiniteError(TreefoldError, RuntimeError):
    """A norm of gradients had to be finite and is not; PyTorch's own function raises a ``RuntimeError``, too."""


_CAUSES = (
    "Usual causes: ranks with another number of threads or another kind of processor, an operation that is not "
    "deterministic, a generator that is not seeded or seeded by the rank, a module that keeps state from one "
    "micro-batch to the next, data in another order, a sum or norm that is not treefold's."
)


class NotReproducibleError(TreefoldError, AssertionError):
    """A training has other bits on another rank, or on another number of ranks."""

    @classmethod
    def between(cls, where: str, known: Mapping[str, object], found: Mapping[str, object]) -> Self | None:
        """Return an error that names the first thing that differs, and the usual causes; None if nothing differs.

        Args:
            where: The beginning of the sentence, such as "Micro-batch 0 differs on rank 1 from rank 0".
            known: Digests by name.
            found: The digests to compare with them.

        """
        names = [name for name in {**known, **found} if known.get(name) != found.get(name)]
        if not names:
            return None
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return cls(f"{where}, in {names[0]}{others}. {_CAUSES}")


class OutputError(TreefoldError, ValueError):
    """``out`` cannot take the result; it is untouched."""

    @classmethod
    def form(cls, got: object, expected: str) -> Self:
        return cls(f"out is {short(got)}. It takes {expected}. Nothing was written.")

    @classmethod
    def entries(cls, got: int, num_pairs: int) -> Self:
        got_words = counted(got, "entry", "entries")
        return cls(
            f"out has {got_words} for {counted(num_pairs, 'pair')}. Give one entry for each. Nothing was written."
        )

    @classmethod
    def count(cls, num_components: int, destinations: Sequence[str]) -> Self:
        got, wanted = counted(num_components, "component"), counted(len(destinations), "destination")
        return cls(f"out has {got} for {wanted}. Give one component for each. Nothing was written.")

    @classmethod
    def structure(cls, component: int, got: str, expected: str) -> Self:
        return cls(
            f"Component {component} of out has the structure {got} where the result has {expected}. "
            f"Nothing was written."
        )

    @classmethod
    def leaf(cls, owner: str, where: str, got: str, expected: str) -> Self:
        return cls(f"{owner} has {got}{where}. To take the result it needs {expected}. Nothing was written.")

    @classmethod
    def refused(cls, owner: str, where: str, got: str, advice: str) -> Self:
        """Refuse an array that its framework does not allow to be written now."""
        return cls(f"{owner} has {got}{where}. {advice} Nothing was written.")

    @classmethod
    def overlap(cls, component: int, where: str, other: str) -> Self:
        return cls(
            f"Component {component} of out{where} overlaps {other}. Each array of out must be exactly one replica's "
            f"array of the same place, or share memory with none. Nothing was written."
        )

    @classmethod
    def overlap_in_place(cls, replica: int, where: str, other: str) -> Self:
        """Refuse a replica's array that is to take the result and shares memory with another array."""
        return cls(
            f"Replica {replica}'s array{where} overlaps {other}. Arrays that are reduced in place share memory with "
            f"no other; copy one of them. Nothing was written."
        )


class DeviceError(TreefoldError, ValueError):
    """A device that does not parse, does not exist, or is elsewhere."""

    @classmethod
    def unparsable(cls, name: object) -> Self:
        return cls(
            f'{short(name)} is no device name. Write "cpu:0", "gpu:1", "cuda:1", "/device:GPU:1" or '
            f'"/job:localhost/replica:0/task:0/device:GPU:1".'
        )

    @classmethod
    def not_on_host(cls, where: str) -> Self:
        """Refuse an array that the ranks of a group cannot share, because it is not in host memory."""
        return cls(
            f"The value{where} is not in host memory, where the ranks of a group meet. Copy it to the CPU first."
        )

    @classmethod
    def missing(cls, device: str, framework: str, *, there: str, why: str, similar: str | None) -> Self:
        """Refuse a device that a framework does not have. ``there``: those that it has; ``why``: a sentence or ""."""
        hints = [f"{why} "] * bool(why) + [f"Did you mean {similar}? "] * bool(similar)
        return cls(
            f"{framework} has no device {device} here. {''.join(hints)}It has {there}. Name one of these; nothing is "
            "placed elsewhere for you."
        )


class PlanError(TreefoldError, ValueError):
    """A movement that fails its proof, a plan that cannot run, or text that is no plan."""

    @classmethod
    def unreadable(cls, problem: str) -> Self:
        return cls(f"This text is no plan: {problem}. Write plans with plan.to_json().")

    @classmethod
    def in_head(cls, error: PlanError) -> Self:
        """Return the error of a plan that is wrong before its first step."""
        return cls(f"The plan does not hold: {error}")

    @classmethod
    def malformed(cls, problem: str) -> Self:
        """Refuse a plan with a fault of form."""
        return cls(f"{problem}.")

    @classmethod
    def twice(cls, replicas: Sequence[int]) -> Self:
        return cls(f"the contribution of replica {listed([str(r) for r in replicas], quote=False)} is added twice.")

    @classmethod
    def missing(cls, leaf: int, replicas: Sequence[int]) -> Self:
        numbers = listed([str(replica) for replica in replicas], quote=False)
        return cls(f"the result of leaf {leaf} is finished without replica {numbers}.")

    @classmethod
    def hosts(cls, hosts: Sequence[Sequence[int]]) -> Self:
        ranks = short([rank for ranks in hosts for rank in ranks])
        return cls(
            f"{len(hosts)} hosts have the ranks {ranks}. Every host has some, and every rank from 0 on is on one."
        )

    @classmethod
    def shares(cls, hosts: int, shares: Sequence[object]) -> Self:
        words = listed([str(share) for share in shares], quote=False) if shares else "none"
        return cls(
            f"The shares of {hosts} hosts are {words}. Each host needs one that is not negative, not all of them 0."
        )

    @classmethod
    def of_no_rank(cls, device: str, ranks: int) -> Self:
        return cls(f"{device} is on none of the {ranks} ranks. Name it by its rank, as 0/cpu:0.")
