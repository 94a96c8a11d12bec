"""``GroupLink``: one rank's link to the others, for one call at a time. Every failure is a treefold error."""

from __future__ import annotations

import abc
import ctypes
import functools
import json
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from treefold.backends import HostArray
from treefold.engines.times import WARN_AFTER_S
from treefold.errors import ArgumentError, CallMismatchError, GroupError, SharedMemoryError, TreefoldError
from treefold.group.protocol import MOST_DESCRIBED, REFUSED
from treefold.observing import warn

if TYPE_CHECKING:
    import numpy as np

    from treefold._native import GroupForm, GroupOutcome
    from treefold.backends import Row
    from treefold.fold import Fold
    from treefold.group.plans import GroupPlans, RankLayout
    from treefold.group.transport.hosts import HostsOutcome

    #: The outcome of a call: the descriptions of all ranks' calls, and the results of this rank.
    Outcome: TypeAlias = GroupOutcome | HostsOutcome


#: The key under which a link keeps the call that is under way.
CALL = "call"
#: Of a stream: its offset there, its address in this process, and its bytes.
Piece = tuple[int, int, int]
#: What sockets and queues can wait for: 11 days.
MOST_SECONDS = 1e6
_SECONDS = "a number of seconds above 0"
_Part = TypeVar("_Part")


class ByteStream(NamedTuple):
    """A stream of ``nbytes``, the same on all ranks, with the pieces that this rank sends and receives.

    A piece is an offset in the stream, an address of this process, and a number of bytes.
    """

    nbytes: int
    sources: list[Piece]
    targets: list[Piece]


class NeedsPlan(NamedTuple):
    """The answer of ``GroupLink.fold`` if calls match, but ranks have no common plan for their numbers of replicas.

    Attributes:
        replicas: The number of replicas of each rank.
        are_all_planned: Whether every rank has a plan. If so, their plans differ.

    """

    replicas: tuple[int, ...]
    are_all_planned: bool


class GroupLink(abc.ABC):
    """The calls of one rank, and their outcomes. All ranks make the same calls in the same order."""

    def __init__(self, layout: RankLayout, rank: int, *, result_bytes: int, timeout_seconds: float) -> None:
        """Begin with no call under way."""
        self.layout, self.rank, self.result_bytes = layout, rank, result_bytes
        self.timeout_seconds = timeout_seconds
        #: Of the ranks in the group; others than those here where a link joins the ranks of one host alone.
        self.numbers: Sequence[int] = range(layout.size)
        self._pid = os.getpid()
        #: Whether this rank has left.
        self.is_closed = False
        #: The call that is under way. A second one is an error, and never waits. Two threads could begin their calls in
        #: another order than on other ranks. A signal handler that reduces would wait for its own thread. It is a
        #: dictionary, not a lock: after an interrupt nothing could tell whether a lock was acquired.
        self.under_way: dict[str, object] = {}
        self._doing = ""
        #: What the last call raised that failed while a graph ran. Nobody else has it: frameworks raise their own.
        self.error_in_graph: TreefoldError | None = None
        #: How many operations this rank had begun before the call, and how many parts of the call are done.
        self._began_at = self._parts_done = 0
        #: The deadline of the call under way, where all of it has one.
        self._until: float | None = None
        _links.add(self)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.layout.size

    @abc.abstractmethod
    def fold(
        self,
        form: GroupForm,
        rows: list[Row],
        targets: Sequence[Row | None] | None,
        wants_lease: bool,  # noqa: FBT001 - see below
        fold: Fold,
        plans: GroupPlans,
    ) -> Outcome | NeedsPlan | None:
        """Fold the rows of all ranks by their common plan. Arguments are positional because small calls come here.

        Args:
            form: The form of the call in the native core.
            rows: The contributions of this rank, one row a leaf.
            targets: Memory for each result, None for one that this rank does not want. None: results lie
                in new memory or in memory that the ranks share.
            wants_lease: Whether results may stay in memory that the ranks share.
            fold: The arithmetic, with the weights of all replicas of the group.
            plans: The plans of this kind of call.

        Returns:
            The outcome; ``NeedsPlan`` without a common plan; None if results cannot be written into the targets. In
            these two cases nothing was done.

        """

    @abc.abstractmethod
    def place(self, kind: bytes, stream: ByteStream, *, description: str, wants_lease: bool = False) -> Outcome:
        """Lay pieces of all ranks into one memory, and take pieces out of it."""

    @abc.abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostArray:
        """Return an uninitialised array in memory that the other ranks of this host can read."""

    @abc.abstractmethod
    def _agree(self, kind: bytes, blob: bytes, description: str, *, is_refused: bool) -> Outcome:
        """Tell all ranks something, and raise what is wrong with the call."""

    @abc.abstractmethod
    def _leave(self, cause: str) -> None:
        """Tell the others that this rank has left, and whether for an error, without waiting for them to call."""

    @abc.abstractmethod
    def without(self, ranks: Collection[int], seconds: float) -> GroupLink:
        """Return a link between all other ranks, and leave this one."""

    @abc.abstractmethod
    def retire_leases(self) -> None:
        """Stop reusing the memory of results, before a fork: the child may read them for as long as it lives."""

    @property
    @abc.abstractmethod
    def _sequence(self) -> int:
        """How many operations this rank has begun."""

    def agree(self, key: bytes, blob: bytes, *, description: str) -> list[bytes]:
        """Return what each rank says, by rank."""
        self._operate(description)
        return self._agree(key, blob, description, is_refused=False).blobs

    def announce(self, key: bytes, own: object, *, description: str) -> list[Any]:
        """Return what each rank announces, by rank: whatever JSON can hold."""
        blobs = self.agree(key, json.dumps(own).encode(), description=description)
        return [json.loads(blob) for blob in blobs]

    def parts(self, batches: Sequence[_Part]) -> Iterator[_Part]:
        """Give the parts of a call one after the other, each of which is an operation or several."""
        for self._parts_done, batch in enumerate(batches):
            yield batch

    def begin(self, call: object) -> None:
        """Begin a call, unless another one is under way. See ``one_call``."""
        self._check_usable()
        if self.under_way.setdefault(CALL, call) is not call:
            raise GroupError.concurrent(self._doing)
        self._doing, self._until, self._began_at, self._parts_done = "a call", None, self._sequence, 0

    def fail(self, call: object, error: BaseException) -> None:
        """End a call that has raised: the group goes on if all ranks raise alike, and is over on this rank else."""
        if self.under_way.get(CALL) is not call:  # it never began
            return
        if self._parts_done:
            error.add_note(f"Parts of this call were done before, {self._parts_done} of them: what they write is new.")
        try:
            if isinstance(error, Exception) and self._sequence == self._began_at:
                # The others wait in the operation that this call would have begun: a refusal in its place frees them.
                self._refuse(str(error) or type(error).__name__)
            elif not getattr(error, "is_alike", False):
                self.close(error)
        finally:
            del self.under_way[CALL]

    def _refuse(self, sentence: str) -> None:
        """Send the others, which are in a call, this rank's refusal of it. Group errors meanwhile are ignored."""
        # Cut in bytes, as the block of a rank holds them; a character that the cut has split is left out.
        description = sentence.encode(errors="replace")[:MOST_DESCRIBED].decode(errors="ignore")
        try:
            self._operate("a call that it could not make")
            self._agree(REFUSED, b"", description, is_refused=True)
        except GroupError:
            pass
        except BaseException as error:  # Ctrl-C while it tells them
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group, without waiting for others to call; ``error``: because of what. Results stay readable."""
        # A forked child inherits the object, but is no rank: the parent stays in the group.
        if self.is_closed or os.getpid() != self._pid:
            return
        # Before anything that can be interrupted: whoever comes second has nothing left to do.
        self.is_closed = True
        try:
            self._leave(_cause_of(error))
        except BaseException:  # Ctrl-C before it has begun to leave
            self._leave("interrupted")
            raise

    def _operate(self, doing: str) -> None:
        """Begin an operation of the call; ``doing`` describes it in warnings and in errors of concurrent calls."""
        self._check_usable()
        self._doing = doing

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise GroupError.forked(self.rank)
        if self.is_closed:
            raise GroupError.closed()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self.result_bytes:
            raise GroupError.too_large(nbytes, self.result_bytes).alike()

    def _warn(self, absent: Sequence[int]) -> None:
        ranks = ", ".join(str(self.numbers[rank]) for rank in absent) or "none"
        sentence = (
            f"Rank {self.numbers[self.rank]} has waited for {WARN_AFTER_S:g} s in {self._doing}; absent: {ranks}."
        )
        try:
            warn(sentence, stacklevel=6)
        except RuntimeWarning:  # a program that takes warnings for errors goes on waiting: the others are in the call
            sys.stderr.write(f"{sentence}\n")


def mismatch(outcome: Outcome) -> GroupError:
    """Return the error that every rank raises for a call that they do not all make alike."""
    for rank, (_, is_refused, *_) in enumerate(outcome.descriptors):
        if is_refused:
            return CallMismatchError.refused(rank, outcome.descriptions[rank]).alike()
    kinds = [kind for kind, *_ in outcome.descriptors]
    if len(set(kinds)) > 1:
        return CallMismatchError.of(outcome.descriptions, kinds).alike()
    return SharedMemoryError(
        f"The system has no {outcome.missing_bytes} bytes of shared memory for the results of this call, so nothing "
        "was done, on no rank. Free memory, raise the container's limit, or reduce in smaller batches."
    ).alike()


def needed_plan(outcome: Outcome) -> NeedsPlan | None:
    """Return the numbers of replicas to plan for, if calls match and only a common plan is missing; else None."""
    _, are_refused, replicas, have_plans, *_ = zip(*outcome.descriptors, strict=True)
    if not outcome.is_unplanned or any(are_refused):
        return None
    return NeedsPlan(replicas, all(have_plans))


class _Linked(Protocol):
    _link: GroupLink


_Self = TypeVar("_Self", bound=_Linked)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Self, _Given], _Result]


def one_call(method: _Method[_Self, _Given, _Result]) -> _Method[_Self, _Given, _Result]:
    """Make a method one call of its ``_link``: no other begins within it, and the link ends it if it raises."""

    @functools.wraps(method)
    def call(self: _Self, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        link, own = self._link, object()
        try:
            link.begin(own)
            result = method(self, *args, **kwargs)
        except BaseException as error:
            link.fail(own, error)
            raise
        # Without a function: signals are heard where one begins, and here the call has ended.
        del link.under_way[CALL]
        return result

    return call


def _cause_of(error: BaseException | None) -> str:
    if error is None:
        return "left"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


# Weak, so that a group that is dropped is closed by its finalizer, and not kept alive for the sake of a fork.
_links: weakref.WeakSet[GroupLink] = weakref.WeakSet()


def _before_fork() -> None:
    # A copy: links may be dropped, and leave the set, while it is walked.
    for link in list(_links):
        link.retire_leases()


def _after_fork_in_child() -> None:
    # The destructors of engines wait for threads, which the child does not have: not even its end may call them.
    for link in list(_links):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(link))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)  # once: nothing takes it back


def checked_seconds(caller: str, **given: object) -> float:
    """Return the one argument that is given, as far as anything can wait.

    Raises:
        ArgumentError: it is no time.

    """
    [seconds] = given.values()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ArgumentError.connect(_SECONDS, caller, **given)
    return min(seconds, MOST_SECONDS)
