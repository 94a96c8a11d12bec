"""Values that disagree, or that an op has no meaning for, and `out` that cannot take them."""

from __future__ import annotations

from collections.abc import Sequence
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
    def structure(cls, replica: int, problem: str) -> Self:
        return cls(f"Replica {replica} has {problem}. Every replica must bring the same structure.")

    @classmethod
    def leaf(cls, replica: int, where: str, got: str, first: str) -> Self:
        """Refuse a leaf of another kind: None beside an array, sparse beside dense without a shape, two frameworks."""
        return cls(
            f"Replica {replica} has {got}{where} where replica 0 has {first}. "
            f"Every replica must bring the same kind of value; convert one of them."
        )

    @classmethod
    def exchanged(cls, sender: int, receiver: int, sent: int, expected: int) -> Self:
        """Two ranks do not agree on how much one sends to the other."""
        return cls(
            f"Rank {sender} sends {counted(sent, 'element')} to rank {receiver}, which expects {expected}. "
            "Split sizes must agree, so nothing was moved, on no rank."
        )

    @classmethod
    def gather_ranks(cls, rank: int, where: str, got: str, expected: str, axis: int, *, verb: str = "gathers") -> Self:
        """Ranks gather or exchange arrays that differ in more than their lengths along the axis."""
        return cls(
            f"Rank {rank} {verb} {got}{where} and rank 0 {expected}, both with axis {axis} in front. Dtypes and all "
            "other lengths must be the same. Nothing was done."
        )

    @classmethod
    def room(cls, rank: int, where: str, room: int, length: int, axis: int) -> Self:
        """The array of ``out`` on a rank is longer or shorter than the result."""
        return cls(
            f"Rank {rank} has an out{where} of length {room} along axis {axis}, and the result has {length} there. "
            "Nothing was done."
        )

    @classmethod
    def scattered(cls, rank: int, where: str, got: str, expected: str, axis: int) -> Self:
        """A rank expects another part than the root has for it."""
        return cls(
            f"Rank {rank} expects {got}{where} and the root scatters {expected}, both with axis {axis} in front. "
            "All other lengths must be the same. Nothing was done."
        )

    @classmethod
    def scattered_lengths(cls, where: str, expected: int, length: int, axis: int) -> Self:
        """The other ranks expect more than the root has."""
        return cls(
            f"The other ranks expect parts{where} of {expected} in all along axis {axis}, and the root's value has "
            f"{length} there. Nothing was done."
        )

    @classmethod
    def gather_shape(cls, replica: int, where: str, got: str, first: str, axis: int) -> Self:
        return cls(
            f"Replica {replica} has {got}{where} where replica 0 has {first}. "
            f"Shapes may differ along axis {axis} only; reshape one of them."
        )

    @classmethod
    def dense_shape(cls, replica: int, where: str, got: object, first: object) -> Self:
        return cls(
            f"Replica {replica} has IndexedSlices of dense_shape {got}{where} where replica 0 has {first}. "
            f"Every replica must bring rows of an array of the same shape."
        )

    @classmethod
    def mixed_sparse(cls, where: str) -> Self:
        return cls(
            f"Some replicas bring an array and others IndexedSlices without dense_shape{where}. "
            f"Give every IndexedSlices its dense_shape, so that the rows can be added to the array."
        )


class DtypeError(TreefoldError, ValueError):
    """A dtype that the op has no meaning for."""

    @classmethod
    def boolean(cls, op: str, where: str) -> Self:
        return cls(
            f"{op} of bool{where} is not defined. Use MAX for any, MIN for all, or cast to an integer dtype to count."
        )

    @classmethod
    def unknown(cls, dtype: str, where: str, allowed: Sequence[str]) -> Self:
        return cls(f"{dtype}{where} cannot be reduced. Reducible are {', '.join(allowed)}; cast to one of them.")

    @classmethod
    def without_gradient(cls, where: str) -> Self:
        """What ``jax.grad(…, allow_int=True)`` returns for whole numbers."""
        return cls(
            f"float0{where} is JAX's dtype for gradients of whole numbers, which have none. Put None in its place: "
            "jax.tree.map(lambda g: None if g.dtype == jax.dtypes.float0 else g, gradients)."
        )

    @classmethod
    def of_objects(cls, dtype: str) -> Self:
        """Memory that other processes read is asked for, for objects of this one."""
        return cls(f"{dtype} has elements that are Python objects, which no other process can read. Take numbers.")

    @classmethod
    def immovable(cls, dtype: str, where: str) -> Self:
        """Other ranks are to get text or records."""
        return cls(f"{dtype}{where} cannot move between processes. Take numbers, bools or times.")

    @classmethod
    def unordered(cls, op: str, dtype: str, where: str) -> Self:
        return cls(f"{op} of {dtype}{where} is not defined: complex numbers have no order. Use SUM, MEAN or PRODUCT.")


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
    def devices(cls, got: Sequence[str], expected: Sequence[str]) -> Self:
        return cls(
            f"out is on {listed(got, quote=False)} where the destinations are {listed(expected, quote=False)}. "
            f"Give one component per destination, in their order. Nothing was written."
        )

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
        """Its framework does not allow writing into an array now."""
        return cls(f"{owner} has {got}{where}. {advice} Nothing was written.")

    @classmethod
    def overlap(cls, component: int, where: str, other: str) -> Self:
        return cls(
            f"Component {component} of out{where} overlaps {other}. Each array of out must be exactly one replica's "
            f"array of the same place, or share memory with none. Nothing was written."
        )

    @classmethod
    def overlap_in_place(cls, replica: int, where: str, other: str) -> Self:
        """An array of a replica that is to take the result shares memory with another array."""
        return cls(
            f"Replica {replica}'s array{where} overlaps {other}. Arrays that are reduced in place share memory with "
            f"no other; copy one of them. Nothing was written."
        )
