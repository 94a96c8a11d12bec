"""The ranks of one host as one of them sees them: everything crosses through memory that they share.

The native core (native/group/) runs an operation: ranks publish their calls, meet, fold or copy, and meet again. The
outcome is one word in the shared memory, the decision. The word changes once, by compare-and-swap: the operation is
committed, refused alike by all, or broken, with a cause and a rank. Every rank returns what the word says, so all end a
call in the same way.

Lifelines are pipes, which the kernel closes when their process ends. A rank that waits in a meeting watches those of
the others. If one closes, it breaks the operation and names that rank. The same happens if a rank has left, and at its
own deadline. Outputs are written after a committed decision, or not at all. A broken group stays broken: survivors that
leave it with a word of their own change nothing for the others.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from treefold.compiled import HAS_SHARED_MEMORY
from treefold.errors import DeadlineError, GroupError, PeerLostError, SharedMemoryError
from treefold.execution import native
from treefold.group.plans import GroupPlans, RankLayout
from treefold.group.transport.link import ByteStream, GroupLink, NeedsPlan, mismatch, needed_plan

if HAS_SHARED_MEMORY:
    from treefold._native import BLOB_BYTES
if TYPE_CHECKING:
    import numpy as np

    from treefold._native import GroupForm, GroupOutcome, HostGroup
    from treefold.backends import HostArray, Row
    from treefold.fold import Fold
    from treefold.group.transport.descriptor_passing import Lifeline

#: Before what a rank says: how long all of it is.
_LENGTH = struct.Struct("<Q")


class SharedMemoryLink(GroupLink):
    """A link through shared memory."""

    def __init__(
        self,
        native: HostGroup,
        lifeline: Lifeline,
        layout: RankLayout,
        rank: int,
        *,
        result_bytes: int,
        timeout_seconds: float,
    ) -> None:
        """Take over what the native core has connected."""
        super().__init__(layout, rank, result_bytes=result_bytes, timeout_seconds=timeout_seconds)
        self._native, self._lifeline = native, lifeline

    def fold(
        self,
        form: GroupForm,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        wants_lease: bool,  # noqa: FBT001 - as in GroupLink
        fold: Fold,
        plans: GroupPlans,
    ) -> GroupOutcome | NeedsPlan | None:
        """Fold the rows of all ranks: each element once, by the rank that owns its slice."""
        if form.result_bytes > self.result_bytes:
            raise GroupError.too_large(form.result_bytes, self.result_bytes)
        weights, words_each = (b"", 1) if fold.weights is None else native.packed_weights(fold.weights)
        self._operate("a reduction")
        outcome: GroupOutcome | None = self._native.fold(
            form,
            rows,
            targets,
            wants_lease,
            weights,
            words_each,
            plans.number,
            self.timeout_seconds,
            self._warn,
        )
        if outcome is None or outcome.is_committed:
            return outcome
        needed = None if outcome.phase == "broken" else needed_plan(outcome)
        if needed is None:
            raise self._error(outcome)
        return needed

    def place(self, kind: bytes, stream: ByteStream, *, description: str, wants_lease: bool = False) -> GroupOutcome:
        """Lay pieces of all ranks into one memory, and take pieces out of it."""
        self._check_size(stream.nbytes)
        self._operate(description)
        return self._committed(
            self._native.place(kind, *stream, wants_lease, description, self.timeout_seconds, self._warn)
        )

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostArray:
        """Return an uninitialised array in memory that the other ranks can read."""
        self._check_usable()
        nbytes = max(1, dtype.itemsize * math.prod(shape))
        if nbytes > sys.maxsize:  # more than an address can tell
            raise SharedMemoryError.of_system(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), nbytes)
        try:
            return self._native.empty(shape, dtype, nbytes)
        except OSError as error:
            raise SharedMemoryError.of_system(error, nbytes) from None

    def without(self, ranks: Collection[int], seconds: float) -> GroupLink:  # noqa: ARG002 - of groups over hosts
        """Refuse: on one host nothing outlives the ranks that could decide which of them go on."""
        raise GroupError(
            "Group.without is for groups over several hosts. On one host, let the ranks that are left connect again, "
            "with tickets, a ProcessGroup or a communicator of their own."
        )

    def retire_leases(self) -> None:
        """Stop reusing the memory of results, before a fork: the child may read them for as long as it lives."""
        if not self.is_closed and os.getpid() == self._pid:
            self._native.retire_leases()

    def agree(self, key: bytes, blob: bytes, *, description: str) -> list[bytes]:
        """Return what each rank says, by rank: in as many operations as the longest of it needs."""
        said, most = [b""] * self.size, 1
        while max(map(len, said)) < most:
            part = blob[len(said[self.rank]) :][: BLOB_BYTES - _LENGTH.size]
            parts = super().agree(key, _LENGTH.pack(len(blob)) + part, description=description)
            most = max(_LENGTH.unpack_from(one)[0] for one in parts)
            said = [one + more[_LENGTH.size :] for one, more in zip(said, parts, strict=True)]
        return said

    def _agree(self, kind: bytes, blob: bytes, description: str, *, is_refused: bool) -> GroupOutcome:
        return self._committed(
            self._native.agree(
                kind, blob, description, is_refused=is_refused, seconds=self.timeout_seconds, warn=self._warn
            )
        )

    def _leave(self, cause: str) -> None:
        self._native.leave(cause)

    @property
    def _sequence(self) -> int:
        return self._native.sequence

    def _committed(self, outcome: GroupOutcome) -> GroupOutcome:
        if not outcome.is_committed:
            raise self._error(outcome)
        return outcome

    def _error(self, outcome: GroupOutcome) -> GroupError:
        """Return the error that every rank raises for an operation that was not committed."""
        if outcome.phase != "broken":
            return mismatch(outcome)
        # Before the cause is read: a child that was forked within the call knows nothing of how it ended.
        if os.getpid() != self._pid:
            return GroupError.forked(self.rank)
        if outcome.cause == "late":
            return DeadlineError.of(outcome.rank, outcome.state)
        return PeerLostError.of(outcome.cause, outcome.rank)
