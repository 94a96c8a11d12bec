"""What joins the ranks of a group, as one of them sees it: one call at a time, every failure as a treefold error."""

from __future__ import annotations

import abc
import ctypes
import functools
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from treefold.backends import HostArray
from treefold.errors import CallMismatchError, GroupError, SharedMemoryError, UnplannedCallError
from treefold.group.links.protocol import MOST_DESCRIBED, REFUSED

if TYPE_CHECKING:
    import numpy as np

    from treefold._native import GroupForm
    from treefold.backends import Row
    from treefold.fold import Fold
    from treefold.group.plans import GroupPlans, Layout

#: The key under which a link keeps the call that is under way.
CALL = "call"
#: A part of the result area, and the private memory that it is copied from or to: offset, address, bytes.
Piece = tuple[int, int, int]
_Part = TypeVar("_Part")


class Outcome(Protocol):
    """What became of a call: what the ranks said, and its results."""

    @property
    def is_leased(self) -> bool:
        """Whether views of the results stay as they are; else they hold until the next call."""

    @property
    def is_unplanned(self) -> bool:
        """Whether calls match, but not all ranks have the same plan."""

    @property
    def words(self) -> list[str]:
        """Each rank's call in words."""

    @property
    def blobs(self) -> list[bytes]:
        """What each rank has said, if the call is to agree."""

    @property
    def descriptors(self) -> list[tuple[bytes, bool, int, bool, bool]]:
        """Of each rank: the kind of its call, whether it refuses, its replicas, whether it has a plan, and is mixed."""

    @property
    def missing_bytes(self) -> int:
        """Memory that there was not."""

    def view(self, at: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostArray:
        """Return a result."""


class Link(abc.ABC):
    """Calls of one rank, and what becomes of them. All ranks make the same calls in the same order."""

    def __init__(self, layout: Layout, rank: int, *, result_bytes: int, timeout_seconds: float) -> None:
        """Begin with no call under way."""
        self.layout, self.rank, self.result_bytes = layout, rank, result_bytes
        self.timeout_seconds = timeout_seconds
        self._pid = os.getpid()
        #: Whether this rank has left.
        self.is_closed = False
        #: The call that is under way; never waited for. Two threads could begin their calls in another order than on
        #: other ranks, so the second one is an error; and a signal handler that reduces would wait for its own thread.
        #: No lock: after an interrupt it could not be known whether it was taken, while a call finds itself in here.
        self.under_way: dict[str, object] = {}
        self._doing = ""
        #: The number of operations at which the others know all that this rank knows; None before it was counted. A
        #: failure at this number must be told to them; once there has been another operation, they have failed alike.
        self.known: int | None = None
        #: Whether the others go on with the call behind the operation that has begun last; whether they do behind the
        #: part of a call that has several.
        self._goes_on = self.has_parts = False
        self._parts_done = 0
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
    ) -> Outcome | None:
        """Fold the rows of all ranks by their common plan; None, with nothing done, if targets do not do.

        ``targets``: memory for each result, None for one that this rank does not want; None: for none of them.
        ``fold``: with the weights of all replicas of the group. Not by keywords: this is on the way of small calls.
        """

    @abc.abstractmethod
    def place(
        self,
        kind: bytes,
        result_bytes: int,
        given: list[Piece],
        taken: list[Piece],
        *,
        words: str,
        wants_lease: bool = False,
    ) -> Outcome:
        """Lay pieces of all ranks into one memory, and take pieces out of it."""

    @abc.abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> HostArray:
        """Return an uninitialised array in memory that the other ranks of this host can read."""

    @abc.abstractmethod
    def _agree(self, kind: bytes, blob: bytes, words: str, *, is_refused: bool) -> Outcome:
        """Tell all ranks something, and raise what is wrong with the call."""

    @abc.abstractmethod
    def _leave(self, cause: str) -> None:
        """Tell the others that this rank has left, and whether for an error, without waiting for them to call."""

    @abc.abstractmethod
    def without(self, ranks: Collection[int], seconds: float) -> Link:
        """Return a link between all other ranks, and leave this one."""

    @abc.abstractmethod
    def retire_leases(self) -> None:
        """Before a fork: the child may read this rank's results for ever, so their memory is not used again."""

    @property
    @abc.abstractmethod
    def _sequence(self) -> int:
        """How many operations this rank has begun."""

    @property
    def _is_undone(self) -> bool:
        """Whether the last operation has ended undone on all ranks, which may go on to plan it."""
        return False

    def agree(self, kind: bytes, blob: bytes, *, words: str, goes_on: bool = True) -> list[bytes]:
        """Return what each rank says, by rank; ``goes_on``: whether the call has more operations."""
        self._operate(words, goes_on=goes_on)
        outcome = self._agree(kind, blob, words, is_refused=False)
        if goes_on:
            self.expect_more()
        return outcome.blobs

    def parts(self, batches: Sequence[_Part]) -> Iterator[_Part]:
        """Give the parts of a call one after the other, each of which is an operation or several."""
        for number, batch in enumerate(batches):
            self.has_parts, self._parts_done = number < len(batches) - 1, number
            yield batch
            if self.has_parts:
                self.expect_more()

    def expect_more(self) -> None:
        """Note that the call goes on: what fails on this rank from here on, the others do not know."""
        self.known, self._goes_on = self._sequence, False

    def begin(self, call: object) -> None:
        """Begin a call, unless another one is under way. See ``told``."""
        self._check_usable()
        if self.under_way.setdefault(CALL, call) is not call:
            raise GroupError.concurrent(self._doing)
        self._doing, self._until, self.has_parts, self._parts_done = "a call", None, False, 0
        self.expect_more()

    def fail(self, call: object, error: BaseException) -> None:
        """Tell the others of a call's error, unless they know it or there is no such call; then the call has ended."""
        is_under_way = self.under_way.get(CALL) is call
        if is_under_way and self._parts_done:
            error.add_note(f"Parts of this call were done before, {self._parts_done} of them: what they write is new.")
        try:
            is_told = is_under_way and self.known not in {None, self._sequence}
            # A signal handler may raise anything anywhere, also where an operation has ended and it is not noted yet
            # that the call goes on.
            goes_on = self._goes_on or self.has_parts or self._is_undone
            is_lost = is_told and goes_on and not getattr(error, "is_alike", False)
            if is_lost or not isinstance(error, Exception):
                # Whatever has become of the operations so far: this rank's program does not know, and may make other
                # calls than the others from here on. They wait for nobody.
                self.close(error)
            # Else an operation that has begun since had the same outcome on all ranks. The others stand in the
            # operation that this call would have begun, so one more operation with an answer frees them.
            elif is_under_way and not is_told:
                self._refuse(str(error) or type(error).__name__)
        finally:
            if is_under_way:
                self.known = None
                del self.under_way[CALL]

    def _refuse(self, sentence: str) -> None:
        """Tell the others, which are in a call, that this rank cannot make it. Errors in telling them are ignored."""
        # Cut in bytes, as the block of a rank holds them; a character that the cut has split is left out.
        words = sentence.encode(errors="replace")[:MOST_DESCRIBED].decode(errors="ignore")
        try:
            self._operate("a call that it could not make")
            self._agree(REFUSED, b"", words, is_refused=True)
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

    def _operate(self, doing: str, *, goes_on: bool = False) -> None:
        """Begin an operation of the call; ``doing``: what a call that comes meanwhile is told of it."""
        self._check_usable()
        self._doing, self._goes_on = doing, goes_on

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise GroupError.forked(self.rank)

    def _check_usable(self) -> None:
        self._check_process()
        if self.is_closed:
            raise GroupError.closed()

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self.result_bytes:
            raise GroupError.too_large(nbytes, self.result_bytes)

    def _mismatch(self, outcome: Outcome) -> GroupError:
        """Return the error that every rank raises for a call that they do not all make alike."""
        for rank, (_, is_refused, *_) in enumerate(outcome.descriptors):
            if is_refused:
                return CallMismatchError.refused(rank, outcome.words[rank]).alike()
        if outcome.is_unplanned:
            self.expect_more()
            _, _, replicas, have_plans, are_mixed = zip(*outcome.descriptors, strict=True)
            return UnplannedCallError.of(replicas, are_all_planned=all(have_plans), are_mixed=any(are_mixed))
        kinds = [kind for kind, *_ in outcome.descriptors]
        if len(set(kinds)) > 1:
            return CallMismatchError.of(outcome.words, kinds).alike()
        return SharedMemoryError.missing(outcome.missing_bytes).alike()

    def _warn(self, absent: Sequence[int]) -> None:
        ranks = ", ".join(map(str, absent)) or "none"
        sentence = f"Rank {self.rank} has waited for 30 s in {self._doing}; absent: {ranks}."
        try:
            warnings.warn(sentence, RuntimeWarning, stacklevel=6)
        except RuntimeWarning:  # a program that takes warnings for errors goes on waiting: the others are in the call
            sys.stderr.write(f"{sentence}\n")


class _Linked(Protocol):
    _link: Link


_Self = TypeVar("_Self", bound=_Linked)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Self, _Given], _Result]


def told(method: _Method[_Self, _Given, _Result]) -> _Method[_Self, _Given, _Result]:
    """Make a method one call of its ``_link``: no other begins within it, and if it raises, the other ranks are told.

    They are in the call already. No context manager: an interrupt where its ``__exit__`` begins would be told to
    nobody.
    """

    @functools.wraps(method)
    def call(self: _Self, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        link, own = self._link, object()
        try:
            link.begin(own)
            result = method(self, *args, **kwargs)
        except BaseException as error:
            try:
                link.fail(own, error)
            except BaseException as second:  # Ctrl-C there
                link.close(second)
                raise
            raise
        # Without a function: signals are heard where one begins, and here the call has ended.
        link.known = None
        del link.under_way[CALL]
        return result

    return call


def _cause_of(error: BaseException | None) -> str:
    if error is None:
        return "left"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


# Weak, so that a group that is dropped is closed by its finalizer, and not kept alive for the sake of a fork.
_links: weakref.WeakSet[Link] = weakref.WeakSet()


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
