"""The ranks of one host as one of them sees them: one call at a time, every failure as one of treefold's errors."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from treefold.errors import (
    CallMismatchError,
    DeadlineError,
    GroupError,
    PeerLostError,
    SharedMemoryError,
    UnplannedCallError,
)

if TYPE_CHECKING:
    import numpy as np

    from treefold._native import GroupForm, GroupOutcome, HostGroup
    from treefold.backends import HostArray, Row
    from treefold.group.ticket import Ticket
    from treefold.group.wire import Lifeline

#: A part of the result area, and the private memory that it is copied from or to: offset, address, bytes.
Piece = tuple[int, int, int]


class HostLink:
    """Calls of one rank, and what becomes of them. All ranks of the host make the same calls in the same order."""

    def __init__(
        self, native: HostGroup, lifeline: Lifeline, ticket: Ticket, *, result_bytes: int, timeout_seconds: float
    ) -> None:
        """Take over what the native core has connected."""
        self.rank, self.size, self.result_bytes = ticket.rank, ticket.size, result_bytes
        self.timeout_seconds = timeout_seconds
        self._native, self._lifeline = native, lifeline
        self._pid = os.getpid()
        self._is_closed = False
        self._under_way = threading.Lock()
        self._doing = ""
        self._told = 0
        _links.add(self)

    def fold(
        self,
        form: GroupForm,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        wants_lease: bool,  # noqa: FBT001 - see below
        weights: Sequence[float],
        weight_sum: float,
        plan: int,
        counts: Sequence[Sequence[int]] = (),
    ) -> GroupOutcome | None:
        """Fold the rows of all ranks, by a plan with that number; None, with nothing done, if targets do not do.

        ``counts``: of the replicas of each leaf, rank by rank, if some rank has leaves with different numbers of them.
        ``targets``: memory for each result, None for one that this rank does not want; None: for none of them.
        ``weights``: of all replicas of the group, in their order. Not by keywords: this is on the way of small calls.
        """
        if form.result_bytes > self.result_bytes:
            raise GroupError.too_large(form.result_bytes, self.result_bytes)
        self._begin("a reduction")
        try:
            outcome: GroupOutcome | None = self._native.fold(
                form, rows, targets, wants_lease, weights, weight_sum, plan, self.timeout_seconds, self._warn, counts
            )
        finally:
            self._under_way.release()
        if outcome is not None and not outcome.is_committed:
            raise self._error(outcome)
        return outcome

    def place(
        self,
        kind: bytes,
        result_bytes: int,
        given: list[Piece],
        taken: list[Piece],
        *,
        words: str,
        wants_lease: bool = False,
    ) -> GroupOutcome:
        """Lay pieces of all ranks into one memory, and take pieces out of it."""
        self._check_size(result_bytes)
        return self._call(
            words,
            lambda native: native.place(
                kind, result_bytes, given, taken, wants_lease, words, self.timeout_seconds, self._warn
            ),
        )

    def agree(self, kind: bytes, blob: bytes, *, words: str) -> list[bytes]:
        """Return what each rank says, by rank."""
        outcome = self._call(
            words,
            lambda native: native.agree(
                kind, blob, words, is_refused=False, seconds=self.timeout_seconds, warn=self._warn
            ),
        )
        self.expect_more()
        return outcome.blobs

    def expect_more(self) -> None:
        """Note that the call goes on: what fails on this rank from here on, the others do not know."""
        self._told = self._native.sequence

    def telling(self) -> HostLink:
        """Tell the others, who are in the call already, if this rank cannot make it, whatever it raises."""
        return self

    def __enter__(self) -> None:
        """Begin what may fail. As methods, because a generator would take as long as the rest of a small call."""
        if not self._under_way.locked():
            self._told = self._native.sequence

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the others, unless they know, as the call itself has ended; an interrupted rank waits for nobody."""
        if error is None or self._native.sequence != self._told:
            return
        if isinstance(error, Exception):
            self.refuse(str(error) or type(error).__name__)
        else:
            self.close(error)

    def refuse(self, sentence: str) -> None:
        """Tell the others, who are in a call, that this rank cannot make it, whatever becomes of that."""
        words = sentence.encode(errors="replace")[:400].decode(errors="ignore")
        kind = bytes(24)

        def tell(native: HostGroup) -> GroupOutcome:
            return native.agree(kind, b"", words, is_refused=True, seconds=self.timeout_seconds, warn=self._warn)

        with contextlib.suppress(GroupError):
            self._call("a call that it could not make", tell)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostArray:
        """Return an uninitialised array in memory that the other ranks can read."""
        self._check_usable()
        nbytes = max(1, dtype.itemsize * _product(shape))
        try:
            return self._native.empty(shape, dtype, nbytes)
        except OSError as error:
            raise SharedMemoryError.of_system(error, nbytes) from None

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group, waiting for nobody; ``error``: because of what. Results stay readable."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._native.leave(_cause_of(error))

    def _begin(self, doing: str) -> None:
        """Begin a call; whoever begins one releases the lock."""
        self._check_usable()
        if not self._under_way.acquire(blocking=False):
            raise GroupError.concurrent(self._doing)
        self._doing = doing

    def _call(self, doing: str, call: Callable[[HostGroup], GroupOutcome]) -> GroupOutcome:
        self._begin(doing)
        try:
            outcome = call(self._native)
        finally:
            self._under_way.release()
        if not outcome.is_committed:
            raise self._error(outcome)
        return outcome

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise GroupError.forked(self.rank)
        if self._is_closed:
            raise GroupError.closed()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self.result_bytes:
            raise GroupError.too_large(nbytes, self.result_bytes)

    def _error(self, outcome: GroupOutcome) -> GroupError:
        """Return the error that every rank raises for an operation that was not committed."""
        if outcome.phase == "broken":
            return self._broken(outcome)
        for rank, (_, is_refused, *_) in enumerate(outcome.descriptors):
            if is_refused:
                return CallMismatchError.refused(rank, outcome.words[rank])
        if outcome.is_unplanned:
            _, _, replicas, have_plans, are_mixed = zip(*outcome.descriptors, strict=True)
            return UnplannedCallError.of(replicas, are_all_planned=all(have_plans), are_mixed=any(are_mixed))
        kinds = [kind for kind, *_ in outcome.descriptors]
        if len(set(kinds)) > 1:
            return CallMismatchError.of(outcome.words, kinds)
        return SharedMemoryError.missing(outcome.missing_bytes)

    def _broken(self, outcome: GroupOutcome) -> GroupError:
        if os.getpid() != self._pid:
            return GroupError.forked(self.rank)
        if outcome.cause == "late":
            return DeadlineError.of(outcome.rank, outcome.state)
        return PeerLostError.of(outcome.cause, outcome.rank)

    def _warn(self, absent: Sequence[int]) -> None:
        ranks = ", ".join(map(str, absent)) or "none"
        warnings.warn(
            f"Rank {self.rank} has waited for 30 s in {self._doing}; absent: {ranks}.", RuntimeWarning, stacklevel=6
        )

    def retire_leases(self) -> None:
        """Before a fork: the child may read this rank's results for ever, so their memory is not used again."""
        if not self._is_closed and os.getpid() == self._pid:
            self._native.retire_leases()


def _cause_of(error: BaseException | None) -> str:
    if error is None:
        return "left"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


_links: weakref.WeakSet[HostLink] = weakref.WeakSet()


def _before_fork() -> None:
    for link in list(_links):
        link.retire_leases()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)  # once, because nothing takes it back


def _product(shape: Sequence[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
