"""Ranks of several hosts as one of them sees them: rounds of frames, then values, over an engine's channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from treefold.backends import HostArray, Row
from treefold.calls.output import check_overlaps
from treefold.engines.interface import Channel
from treefold.errors import DeadlineError, GroupError, OutputError, PeerLostError
from treefold.execution import native
from treefold.execution.host_fold import Job, fold_batch
from treefold.execution.program import program_of
from treefold.execution.program_walk import ProgramWalk
from treefold.fold import Fold
from treefold.group.contributions import address_of
from treefold.group.plans import GroupPlans, RankLayout, padded
from treefold.group.protocol import VALUE_TAGS, VOTE, Frame
from treefold.group.transport.failures import Rounds
from treefold.group.transport.link import (
    MOST_SECONDS,
    ByteStream,
    GroupLink,
    NeedsPlan,
    checked_seconds,
    mismatch,
    needed_plan,
)
from treefold.group.transport.messages import CallMemory, Crossing, arrays_of, memory_at
from treefold.group.transport.shared_memory import SharedMemoryLink
from treefold.keyed import BoundedCache
from treefold.plan.ir import Copy

if TYPE_CHECKING:
    from treefold._native import GroupForm

_LINE = 64


@dataclass(slots=True)
class HostsOutcome:
    """The outcome of a call over hosts: the frames of all ranks, and the results of this one."""

    frames: Sequence[Frame]
    is_unplanned: bool = False
    results: dict[int, HostArray] = field(default_factory=dict)
    is_leased: bool = True
    missing_bytes: int = 0

    @property
    def descriptions(self) -> list[str]:
        """Each rank's call in words."""
        return [frame.description for frame in self.frames]

    @property
    def blobs(self) -> list[bytes]:
        """The payload of each rank's frame."""
        return [frame.payload for frame in self.frames]

    @property
    def descriptors(self) -> list[tuple[bytes, bool, int, bool]]:
        """The kind of each rank's call, whether that is refused, its replicas, and whether it has a plan."""
        return [(one.kind, one.is_refused, one.replicas, one.number > 0) for one in self.frames]

    def view(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return a result."""
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not nbytes:  # another result may begin where this one ends
            return np.empty(shape, dtype)
        if at in self.results:
            return self.results[at].view(dtype).reshape(shape)
        whole = self.results[-1]
        return whole[at : at + nbytes].view(dtype).reshape(shape)


class ChannelLink(GroupLink):
    """A link over a channel, beside the shared memory of this rank's host."""

    def __init__(
        self,
        rounds: Rounds,
        layout: RankLayout,
        local: SharedMemoryLink | None,
        rejoin: Callable[[Channel, float], GroupLink],
        *,
        result_bytes: int,
        timeout_seconds: float,
    ) -> None:
        """Take over the rounds of all ranks.

        Args:
            rounds: The rounds over the channel between all ranks.
            layout: The hosts and their ranks.
            local: The link between the ranks of this host; None if this rank is alone there.
            rejoin: Joins the ranks of a smaller channel, and gives up after a number of seconds.
            result_bytes: The size of the memory for results.
            timeout_seconds: How long a call waits for ranks that do not come.

        """
        super().__init__(layout, rounds.channel.rank, result_bytes=result_bytes, timeout_seconds=timeout_seconds)
        self._rounds, self._channel, self._local, self._rejoin = rounds, rounds.channel, local, rejoin
        self._host = layout.host_of(self.rank)
        if local is not None:
            # No method of this object's: what refers to itself is kept, with its connections, until the collector
            # comes.
            rounds.leave_host = local.close
            local.numbers = self._host
        self._walks: BoundedCache[int, ProgramWalk] = BoundedCache(64)

    def fold(
        self,
        form: GroupForm,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        wants_lease: bool,  # noqa: FBT001 - as in GroupLink
        fold: Fold,
        plans: GroupPlans,
    ) -> HostsOutcome | NeedsPlan | None:
        """Fold the rows of all ranks: every element by the rank that owns its slice; small ones by every rank."""
        self._check_size(form.result_bytes)
        contributions = [arrays_of(row) for row in rows]
        outputs = [None if row is None else arrays_of(row)[0] for row in targets or [None] * len(rows)]
        if not _are_apart(contributions, outputs) or not all(row is None or _is_writable(row) for row in targets or []):
            return None
        self._check_usable()
        # Memory before the first word to the others: what fails here fails as a refusal, and leaves the group usable.
        memory = self._memory_for(plans, fold, contributions)
        inline = _inline(contributions) if plans.is_inline else b""
        self._operate("a reduction")
        until = self._deadline()
        frame = Frame(form.kind, form.description, inline, plans.own, plans.number)
        outcome = self._round(frame, until)
        needed = needed_plan(outcome)
        if needed is not None:
            return needed
        results = _folded_here(outcome.frames, rows, fold) if memory is None else self._walked(memory, until)
        if targets is None and wants_lease:
            outcome.results = dict(zip(form.results_at, results, strict=True))
        # Every rank has received everything: it has voted, or the values were in its frame. So no send reads the
        # caller's arrays any more, and ``out`` may be among them.
        _hand_over([(output, result) for output, result in zip(outputs, results, strict=True) if output is not None])
        return outcome

    def place(self, kind: bytes, stream: ByteStream, *, description: str, wants_lease: bool = False) -> HostsOutcome:
        """Send every piece to the ranks that take it."""
        result_bytes, sources, targets = stream
        self._check_size(result_bytes)
        whole = native.new_result((result_bytes,), np.dtype(np.uint8)) if wants_lease else None
        made = [(0, whole)] if whole is not None else []
        # Pieces arrive in memory of the call: the caller's is written after the vote, or not at all.
        staged = [(at, native.new_result((nbytes,), np.dtype(np.uint8))) for at, _, nbytes in targets]
        own = [(at, memory_at(address, nbytes, sources)) for at, address, nbytes in sources]
        self._operate(description)
        until = self._deadline()
        crossing = Crossing(self._channel, own, made + staged)
        outcome = self._round(Frame(kind, description, crossing.said), until)
        waiting = set(crossing.begin(outcome.blobs))
        for arrived in self._rounds.arrivals(waiting, until, self._warn):
            waiting.discard(arrived)
        crossing.finish()
        self._vote(until)
        outputs = [memory_at(address, nbytes) for _, address, nbytes in targets]
        _hand_over([(output, array) for output, (_, array) in zip(outputs, staged, strict=True)])
        if whole is not None:
            outcome.results = {-1: whole}
        return outcome

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return an uninitialised array, in memory that the other ranks of this host can read."""
        self._check_usable()
        return native.new_result(shape, dtype) if self._local is None else self._local.empty(shape, dtype)

    def without(self, ranks: Collection[int], seconds: float) -> GroupLink:
        """Agree with the others on the ranks that go on, and join them."""
        if os.getpid() != self._pid:  # a forked child would decide in the rank's name
            raise GroupError.forked(self.rank)
        seconds = checked_seconds("without", connect_timeout_seconds=seconds)
        try:
            lost = frozenset(ranks)
        except TypeError:
            raise GroupError.unknown_ranks(ranks, self.size) from None
        if not lost < frozenset(range(self.size)) or self.rank in lost:
            raise GroupError.unknown_ranks(ranks, self.size)
        deadline = self._channel.now() + seconds
        self.close()
        # Closed first: ranks that still wait in a call of this group must not count on one that goes on without them.
        channel = self._channel.without(lost, deadline)
        try:
            return self._rejoin(channel, deadline - channel.now())
        except GroupError as error:
            raise error.before([rank for rank in range(self.size) if rank not in lost]) from None

    def retire_leases(self) -> None:
        """Do nothing: results are this process's own, and the shared memory of the host looks after itself."""

    def _agree(self, kind: bytes, blob: bytes, description: str, *, is_refused: bool) -> HostsOutcome:
        return self._round(Frame(kind, description, blob, is_refused=is_refused), self._deadline())

    def _leave(self, cause: str) -> None:
        self._rounds.leave(cause)

    @property
    def _sequence(self) -> int:
        return self._rounds.sequence

    def _deadline(self) -> float:
        """Return the deadline of the call, which may have several rounds."""
        if self._until is None or not self.under_way:
            self._until = self._channel.now() + min(self.timeout_seconds, MOST_SECONDS)
        return self._until

    def _round(self, frame: Frame, until: float) -> HostsOutcome:
        """Tell all ranks a call, and raise what is wrong with it."""
        frames = self._rounds.tell(frame, until, self._warn)
        numbers = {one.number for one in frames}
        is_planned = len(numbers) == 1 and numbers != {0}
        outcome = HostsOutcome(frames, is_unplanned=bool(frame.replicas) and not is_planned)
        if len({one.kind for one in frames}) > 1 or any(one.is_refused for one in frames):
            raise mismatch(outcome)
        return outcome

    def _vote(self, until: float) -> None:
        """Let all ranks say that they have everything: nothing is handed over before."""
        self._rounds.tell(Frame(VOTE, "the end of a call"), until, self._warn)

    def _memory_for(self, plans: GroupPlans, fold: Fold, contributions: list[list[HostArray]]) -> CallMemory | None:
        """Return memory for a call if its plan is walked, else None. No frame has been sent yet."""
        plan, number = plans.plan, plans.number
        if plan is None or not number or plans.is_inline:
            return None
        walk = self._walks.get(number)
        if walk is None:
            programs = [program_of(plan, rank, self.layout.hosts) for rank in self._host]
            tags = self._channel.limits.tags - VALUE_TAGS
            walk = ProgramWalk(plan, programs, self.rank, chunk_bytes=self._channel.limits.chunk_bytes, num_tags=tags)
            self._walks.put(number, walk)
        return CallMemory(plan, walk, self.rank, fold, contributions)

    def _walked(self, memory: CallMemory, until: float) -> list[HostArray]:
        """Return this rank's results, once every rank has all of its own."""
        memory.walk.run(
            memory.flat,
            self._channel,
            VALUE_TAGS,
            lambda waiting: self._rounds.arrivals(waiting, until, self._warn),
            lambda copies: self._share(copies, memory, until),
        )
        self._vote(until)
        return memory.results

    def _share(self, copies: Sequence[Copy], memory: CallMemory, until: float) -> None:
        """Hand copies to the ranks of this host, through its shared memory, as many at a time as it has room for."""
        if self._local is None:
            raise AssertionError(copies)
        stream, at = ByteStream(1, [], []), 0
        for copy in copies:
            nbytes = copy.source.length * memory.itemsize(copy.source.buffer)
            # All ranks of the host see the same copies, and cut them alike, also those that have no part in some.
            if at and at + nbytes > self._local.result_bytes:
                self._place_on_host(self._local, stream, until)
                stream, at = ByteStream(1, [], []), 0
            for part, own in ((copy.source, stream.sources), (copy.target, stream.targets)):
                if memory.walk.holder(part.buffer) == self.rank:
                    own.append((at, address_of(memory.flat.part(part)), nbytes))
            stream = stream._replace(nbytes=max(at + nbytes, 1))
            at = -(-stream.nbytes // _LINE) * _LINE
        self._place_on_host(self._local, stream, until)

    def _place_on_host(self, local: SharedMemoryLink, stream: ByteStream, until: float) -> None:
        """Lay pieces of the ranks of this host into its memory, and take pieces out; all of them call this alike.

        Meanwhile this rank looks at no message. A rank of this host that stops lets go of the host's memory first, so
        the others wake, and hear its word.
        """
        # What is left of the call's own time: an operation within the host must not outlast it.
        local.timeout_seconds = max(until - self._channel.now(), 1e-3)
        self._rounds.check()
        try:
            with self._rounds.frames.arriving():
                local.place(VOTE, stream, description="copies within a host")
        except DeadlineError:
            raise self._rounds.stop_late() from None
        except PeerLostError as error:
            lost = {self._host[rank] for rank in error.ranks} - {self.rank}
            own = PeerLostError.given_up(self.rank)
            raise (self._rounds.stop_missed(min(lost)) if lost else own) from None
        except GroupError as error:  # such as no memory: all ranks of this host raise it, and those of others do not
            error.is_alike = False
            raise


def _hand_over(pairs: list[tuple[HostArray, HostArray]]) -> None:
    """Copy results to where they belong: all of them, even if a signal interrupts."""
    try:
        while pairs:
            output, result = pairs[-1]
            np.copyto(output, result.reshape(-1))
            # Only after its copy is whole: an interrupt within it leaves the pair to the handler below.
            pairs.pop()
    # A signal between two copies would leave some results new and others old, though all ranks have voted: the rest is
    # copied before the interrupt goes on. Copying one of them again changes nothing.
    except BaseException:
        for output, result in pairs:
            np.copyto(output, result.reshape(-1))
        raise


def _are_apart(contributions: Sequence[list[HostArray]], outputs: Sequence[HostArray | None]) -> bool:
    """Tell whether results may be written: into memory of their own, or exactly onto a contribution to them."""
    try:
        check_overlaps([("", [*some]) for some in contributions], [[one] for one in outputs], [False] * len(outputs))
    except OutputError:
        return False
    return True


def _is_writable(row: Row) -> bool:
    """Tell whether a target may be written; only NumPy's arrays may not."""
    view = (row.views or row.arrays)[0]
    return not isinstance(view, np.ndarray) or view.flags.writeable


def _inline(contributions: Sequence[Sequence[HostArray]]) -> bytes:
    """Return contributions as a frame holds them, leaf by leaf."""
    return b"".join(array.tobytes().ljust(padded(array.nbytes), b"\0") for leaf in contributions for array in leaf)


def _folded_here(frames: Sequence[Frame], rows: Sequence[Row], fold: Fold) -> list[HostArray]:
    """Fold what all ranks have said in their frames, as one process would."""
    reads = [0] * len(frames)
    jobs = []
    for row in rows:
        length = int(np.prod(row.shape, dtype=np.int64))
        sources = []
        for rank, frame in enumerate(frames):
            for _ in range(frame.replicas):
                sources.append(np.frombuffer(frame.payload, row.dtype, length, reads[rank]))
                reads[rank] += padded(length * row.dtype.itemsize)
        dtype = row.dtype.name
        jobs.append(Job(dtype, sources, [np.empty(length, fold.result_dtype(dtype))]))
    fold_batch(jobs, fold)
    return [job.targets[0] for job in jobs]
