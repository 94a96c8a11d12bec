"""Exact totals of the leaves of values: added to, merged, saved, sent between ranks, and rounded at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_partial import FRACTION, Factor
from treefold.dtypes import INTEGERS, numpy_dtype
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.partials.leaves import Form, ReadValue, difference
from treefold.partials.partial_sum import REALS, PartialSum, finish_between
from treefold.reduce_op import ReduceOp

#: A weight of 1, in the units of weights.
ONE = 1 << FRACTION
_VERSION = 1
#: Bytes of a sum of integers, in two's complement: room for 2**64 integers, each times a weight.
_WHOLE_BYTES = 64
#: Sums of weights are below this, so that sums of 64-bit integers fit into ``_WHOLE_BYTES``.
_MOST_WORDS = 1 << (8 * _WHOLE_BYTES - 65)


@dataclass
class Totals:
    """The exact sums of leaves, each times the weight of its value.

    Attributes:
        count: The number of values.
        words: The sum of their weights, in units of 2**-64.
        forms: The form of each leaf.
        digests: The digest of each leaf that has to be equal in all values.
        floats: The sums of all float leaves, by real dtype.
        wholes: The sums of each integer leaf, in units of 2**-64, as arrays of Python integers.

    """

    count: int = 0
    words: int = 0
    forms: list[Form] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    floats: dict[str, PartialSum] = field(default_factory=dict)
    wholes: list[HostArray] = field(default_factory=list)

    @classmethod
    def of(cls, forms: list[Form], digests: list[bytes]) -> Totals:
        """Return the totals of no values, for leaves of these forms and digests.

        Raises:
            ValueError: No leaves can have these forms and digests.

        """
        lengths: dict[str, int] = {}
        for form in forms:
            is_known = {"float": form.real in REALS, "whole": form.dtype in INTEGERS, "equal": True}[form.kind]
            if (
                not is_known
                or min(form.shape, default=0) < 0
                or form.begin != lengths.get(form.real, 0) * (form.kind == "float")
            ):
                raise ValueError(form)
            if form.kind == "float":
                lengths[form.real] = form.begin + form.length
        if len(digests) != sum(form.kind == "equal" for form in forms):
            raise ValueError(digests)
        floats = {dtype: PartialSum(dtype, length) for dtype, length in lengths.items()}
        wholes = [np.zeros(form.length, object) for form in forms if form.kind == "whole"]
        return cls(0, 0, forms, digests, floats, wholes)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the sums of floats take."""
        return sum(partial.nbytes for partial in self.floats.values())

    def check(self, forms: Sequence[Form], digests: Sequence[bytes], whose: str, others: str) -> None:
        """Refuse leaves of other forms, and flags or texts that are not equal.

        Args:
            forms: The form of each leaf.
            digests: The digest of each leaf that has to be equal.
            whose: Words for the value in errors, such as "This value".
            others: Words for the values before it, such as "those before".

        Raises:
            MismatchError: Forms differ; the error names the place.
            ArgumentError: Leaves that have to be equal are not; the error names the first.

        """
        if list(forms) != self.forms:
            error = difference(self.forms, forms, whose, others)
            if error is not None:
                raise error
        if list(digests) != self.digests:
            equal = [form.path for form in self.forms if form.kind == "equal"]
            differ = [one != other for one, other in zip(self.digests, digests, strict=True)]
            raise ArgumentError.flags(equal[differ.index(True)])

    def add(self, read: ReadValue, words: int) -> None:
        """Add a value that has passed ``check``, times a weight in units of 2**-64; with 0 it is only counted."""
        if words:
            factor = Factor(words)
            for dtype, pieces in read.floats.items():
                self.floats[dtype].add(pieces, factor)
            for total, part in zip(self.wholes, read.wholes, strict=True):
                np.add(total, part.astype(object) * words, out=total)
        self.count += 1
        self.words += words

    def merge(self, other: Totals) -> None:
        """Add the sums of ``other``, after its leaves have passed ``check``."""
        for dtype, partial in self.floats.items():
            partial.merge(other.floats[dtype])
        for total, part in zip(self.wholes, other.wholes, strict=True):
            np.add(total, part, out=total)
        self.count += other.count
        self.words += other.words

    def clear(self) -> None:
        """Return to the totals of no values, in the same memory."""
        self.count = self.words = 0
        for partial in self.floats.values():
            partial.clear()
        for total in self.wholes:
            total[:] = 0

    def not_finite(self) -> list[str]:
        """Return the paths of the leaves to which an infinity or NaN was added."""
        return [
            form.path
            for form in self.forms
            if form.kind == "float" and not self.floats[form.real].is_finite(form.begin, form.begin + form.length)
        ]

    def results(self, op: ReduceOp, words: int, group: Any = None) -> list[HostArray | None]:
        """Return each leaf's exact sum or mean, rounded once, as a flat array; None for leaves that have to be equal.

        Args:
            op: SUM or MEAN.
            words: The sum of all weights, in units of 2**-64; with a group, over all its ranks.
            group: The ranks whose sums the result covers; None: this process alone.

        """
        divisor = words if op is ReduceOp.MEAN else ONE
        floats = {dtype: finish_between(partial, divisor, group) for dtype, partial in self.floats.items()}
        wholes = iter(self.wholes)
        results: list[HostArray | None] = []
        for form in self.forms:
            if form.kind == "float":
                part = floats[form.real][form.begin : form.begin + form.length]
                results.append(part.view(numpy_dtype(form.dtype)))
            elif form.kind == "whole":
                total = next(wholes)
                if group is not None:
                    total = np.sum([_unpacked(rows, [form])[0] for rows in _gather(group, _packed(total))], axis=0)
                results.append(_rounded(total, form.dtype, op, divisor))
            else:
                results.append(None)
        return results

    def check_between(self, op: ReduceOp, group: Any) -> int:
        """Check that all ranks have the same op and leaves; return the sum of their weights, in units of 2**-64.

        All ranks call, and exchange digests of their leaves' descriptions. If digests differ, descriptions follow.

        Raises:
            MismatchError: Leaves of ranks differ; the error names the place. All ranks raise it.
            ArgumentError: A rank has added nothing, or ranks have different ops, flags or texts. All ranks raise it.

        """
        text = json.dumps([op.name, self.forms, [digest.hex() for digest in self.digests]]).encode()
        said = _gather(group, np.frombuffer(hashlib.sha256(text).digest() + _in_bytes(self.words).tobytes(), np.uint8))
        if len({row[:32].tobytes() for row in said}) > 1:
            lengths = group.all_gather(np.asarray([len(text)]))
            texts = np.split(np.asarray(group.all_gather(np.frombuffer(text, np.uint8))), np.cumsum(lengths)[:-1])
            first, *others = [json.loads(one.tobytes()) for one in texts]
            for rank, other in enumerate(others, 1):
                _check_rank(rank, first, other)
        return sum(int.from_bytes(row[32:].tobytes(), "little") for row in said)

    def state(self, name: str) -> dict[str, HostArray]:
        """Return the sums as arrays; ``header`` is JSON in bytes, with the name of the format and the leaves."""
        header = {
            "format": name,
            "version": _VERSION,
            "count": self.count,
            "weight": hex(self.words),
            "leaves": self.forms,
            "digests": [digest.hex() for digest in self.digests],
        }
        state: dict[str, HostArray] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8).copy()}
        for dtype, partial in self.floats.items():
            state |= {f"{dtype}.{part}": array for part, array in partial.state().items()}
        if self.wholes:
            state["integers"] = np.concatenate([_packed(total) for total in self.wholes])
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any], name: str) -> Totals:
        """Return the totals that a state describes. ``name``: the name of its format.

        Raises:
            ArgumentError: ``state`` is no state, or one of another format.

        """
        try:
            header = json.loads(np.asarray(state["header"], np.uint8).tobytes())
            found = f"{header['format']} {header['version']}"
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ArgumentError.partial_state("state['header']", "missing or no JSON", f"that of {name}") from None
        if found != f"{name} {_VERSION}":
            raise ArgumentError.partial_state("state", f"of the format {short(found)}", f"{name} {_VERSION}")
        try:
            forms = [Form(str(p), str(k), str(d), tuple(map(int, s)), int(b)) for p, k, d, s, b in header["leaves"]]
            totals = cls.of(forms, [bytes.fromhex(digest) for digest in header["digests"]])
            totals.count, totals.words = int(header["count"]), int(header["weight"], 16)
        except (KeyError, TypeError, ValueError, OverflowError, MemoryError):
            raise ArgumentError.partial_state(
                "state['header']", "no description of what was added", f"that of {name}"
            ) from None
        if totals.count < 0 or not 0 <= totals.words < _MOST_WORDS:
            raise ArgumentError.partial_state(
                "state['header']", "of a count or weight that cannot be", f"that of {name}"
            )
        for dtype, partial in totals.floats.items():
            parts = {part: state.get(f"{dtype}.{part}") for part in ("modes", "sums", "rests", "wholes")}
            totals.floats[dtype] = PartialSum.of_state(dtype, partial.length, parts, f"state[{dtype!r}]")
        wholes = [form for form in forms if form.kind == "whole"]
        totals.wholes = _unpacked(state.get("integers"), wholes) if wholes else []
        for form, total in zip(wholes, totals.wholes, strict=True):
            limits = np.iinfo(numpy_dtype(form.dtype))
            if not all(int(limits.min) * totals.words <= one <= int(limits.max) * totals.words for one in total):
                raise ArgumentError.partial_state(
                    "state['integers']", f"more than {form.dtype} and these weights make", f"that of {name}"
                )
        return totals


def _check_rank(rank: int, first: Sequence[Any], other: Sequence[Any]) -> None:
    """Refuse the op and leaves of a rank if they differ from those of rank 0."""
    silent = [number for number, one in ((0, first), (rank, other)) if not one[1]]
    if silent:
        raise ArgumentError(
            f"Rank {silent[0]} has added nothing, so what its part of the result looks like is not known. Add a value "
            "there first: zeros change no Sum, and weight=0 changes no Mean."
        )
    if first[0] != other[0]:
        raise ArgumentError(
            f"Rank {rank} asks for a {other[0]} and rank 0 for a {first[0]}. Use one of them on all ranks."
        )
    known, got = ([Form(p, k, d, tuple(s), b) for p, k, d, s, b in one[1]] for one in (first, other))
    digests, others = ([bytes.fromhex(digest) for digest in one[2]] for one in (first, other))
    Totals(forms=known, digests=digests).check(got, others, f"Rank {rank}'s value", "rank 0's")


def _gather(group: Any, row: HostArray) -> list[HostArray]:
    """Return the arrays that ranks bring, of one shape and dtype, in order of ranks; all ranks call."""
    return list(np.asarray(group.all_gather(row[None])))


def _in_bytes(words: int) -> HostArray:
    """Return a sum of weights as bytes, the lowest first."""
    return np.frombuffer(words.to_bytes(_WHOLE_BYTES, "little"), np.uint8)


def _rounded(totals: HostArray, dtype: str, op: ReduceOp, divisor: int) -> HostArray:
    """Return integers of the dtype: sums modulo 2**bits; means rounded to the nearest whole number, halves to even."""
    kind = numpy_dtype(dtype)
    if op is ReduceOp.MEAN:
        return np.asarray([round(Fraction(int(total), divisor)) for total in totals], object).astype(kind)
    bits = 8 * kind.itemsize
    return np.asarray([int(total) // ONE % (1 << bits) for total in totals], np.uint64).astype(f"uint{bits}").view(kind)


def _packed(totals: HostArray) -> HostArray:
    """Return Python integers as rows of bytes, in two's complement, the lowest byte first."""
    joined = b"".join([int(total).to_bytes(_WHOLE_BYTES, "little", signed=True) for total in totals])
    return np.frombuffer(joined, np.uint8).reshape(-1, _WHOLE_BYTES)


def _unpacked(rows: Any, forms: Sequence[Form]) -> list[HostArray]:
    """Return the Python integers that ``_packed`` has made rows of bytes of, split into leaves.

    Raises:
        ArgumentError: ``rows`` has another dtype or shape.

    """
    shape = sum(form.length for form in forms), _WHOLE_BYTES
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape != shape:
        raise ArgumentError.partial_state("state['integers']", short(rows), f"an array of uint8 {shape}")
    totals = np.empty(len(rows), object)
    totals[:] = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
    return list(np.split(totals, np.cumsum([form.length for form in forms])[:-1]))
