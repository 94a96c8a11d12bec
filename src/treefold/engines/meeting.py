"""Ranks that go through the same steps by a store, until one of them says why they do not go on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from treefold.engines.stores import CheckedStore, asked
from treefold.errors import ConnectError, TreefoldError

#: Of what a rank says of its error, in characters.
_MOST_WORDS = 4096
_POLL_S = 0.01
#: How often a rank looks that waits for something else than the others' words.
_WATCH_S = 0.05
#: How long a rank that stops waits for the others to stop as well: whoever has not by then is to blame.
SILENT_S = 0.5


class Meeting:
    """Ranks that have all come, and keys of a store, which begin with ``name`` and which nobody has used before.

    A record says what is decided, each once, by compare-and-set. ``begun``: a rank, the first that had the first words
    of all. ``over``: why the meeting is over. ``stopping``: what a rank says that has waited in vain, or that its
    engine could not connect, and that knows no reason. It stops, all others do so when they see that, and to blame are
    those that do not.
    """

    def __init__(self, store: CheckedStore, name: str, rank: int, size: int, began: float) -> None:
        """``began``: when this rank began to connect."""
        self.store, self.name, self.rank, self.size, self.began = store, name, rank, size, began
        self._last_key = ""
        self._is_stopping = False

    def exchange(
        self, step: str, said: bytes, deadline: float, is_ready: Callable[[], bool] = lambda: True
    ) -> list[bytes]:
        """Leave words in the store, once this rank is ready for that, and return what each rank has left.

        Raises:
            ConnectError: the meeting is over, or some have said nothing by the deadline.

        """
        return asked(
            lambda is_over: self.poll(step, said, deadline, is_over, is_ready), deadline + SILENT_S, self.is_stopping
        )

    def end(self, error: BaseException) -> ConnectError | None:
        """Tell the others why this rank does not go on; return the reason of another rank, if that was first."""
        why = reason(self.rank, error)
        first, own = ConnectError.told(*self._decided("over", why)["over"]), ConnectError.told(*why)
        # Others may have passed this rank's own words on before it does.
        return None if str(first) == str(own) else first

    def replace(self) -> None:
        """Tell the others, if it is not over, that they wait for a process that is gone, whose successor has come."""
        self.end(ConnectError.replaced(self.rank))

    def is_replaced(self) -> bool:
        """Tell whether it is over because of that, before it had begun: then it has not for any rank."""
        state = self._state()
        rank, words, _ = state.get("over", (0, "", ()))
        return "begun" not in state and words == str(ConnectError.replaced(rank))

    def is_stopping(self) -> bool:
        """Tell whether this rank has stopped, and finds out who else has."""
        return self._is_stopping

    def why_over(self) -> ConnectError | None:
        """Return why the meeting is over, if it is."""
        return _told(self._state(), "over")

    def watch(self, step: str, deadline: float, is_done: threading.Event) -> ConnectError | None:
        """Return why this rank cannot go on to a step, once that is known; None once it is done with what it does."""
        while not is_done.wait(_WATCH_S):
            is_late, state = time.monotonic() >= deadline, self._state()
            over, stopping = _told(state, "over"), _told(state, "stopping")
            if over or stopping or is_late:
                return over or self.stopped(step, stopping or self.out_of_time(deadline))
        return None

    def stopped(self, step: str, error: ConnectError) -> ConnectError:
        """Stop, and return why: some say nothing any more in this step, or this error if all do."""
        began, self._is_stopping = time.monotonic(), True
        self._decided("stopping", reason(self.rank, error))
        self.store.set(self._key(f"stopped/{self.rank}"), b"")
        silent, now = list(range(self.size)), time.monotonic()
        until = now + SILENT_S + 2 * (now - began)  # the store answers the others no sooner
        while silent and time.monotonic() < until:
            time.sleep(_POLL_S)
            for sign in (step, "stopped"):
                silent = self._without(sign, silent)
        late = ConnectError.late(silent, time.monotonic() - self.began) if silent else error
        return self.end(late) or late

    def out_of_time(self, deadline: float) -> ConnectError:
        """Return the error of a rank whose own deadline has passed; the others may all be there."""
        return ConnectError.out_of_time(self.rank, deadline - self.began)

    def poll(
        self,
        step: str,
        said: bytes,
        deadline: float,
        is_over: threading.Event,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> list[bytes]:
        """Do what ``exchange`` does, in a thread of the caller's, until nobody waits for the answer any more."""
        keys = [self._key(f"{step}/{rank}") for rank in range(self.size)]
        is_said = False
        # Asked again and again: a wait within the store would keep its client from everybody else, even after Ctrl-C.
        while not is_over.is_set():
            is_late = time.monotonic() >= deadline
            # Before the words: whoever had all of them and has then left a reason has left it for a later step.
            state = self._state()
            over, stopping = _told(state, "over"), _told(state, "stopping")
            if not (is_said or over) and is_ready():
                self.store.set(keys[self.rank], said)
                is_said = True
            if is_said and self.store.check(keys) and "begun" in self._decided("begun", self.rank):
                return self._read(keys)
            if over:
                raise over
            if stopping or is_late:
                raise self.stopped(step, stopping or self.out_of_time(deadline))
            is_over.wait(_POLL_S)
        return []

    def _read(self, keys: Sequence[str]) -> list[bytes]:
        """Return what all have said, and forget what this rank has said in the last step: all have read that."""
        words = [self.store.get(key) for key in keys]
        if self._last_key:
            with contextlib.suppress(ConnectError):  # not every store can
                self.store.delete_key(self._last_key)
        self._last_key = keys[self.rank]
        return words

    def _without(self, sign: str, ranks: Sequence[int]) -> list[int]:
        """Return the ranks that have not left a sign. Most have, and stores may be slow: one answer is about many."""
        if not ranks or self.store.check([self._key(f"{sign}/{rank}") for rank in ranks]):
            return []
        half = len(ranks) // 2
        return [*self._without(sign, ranks[:half]), *self._without(sign, ranks[half:])] if half else list(ranks)

    def _state(self) -> dict[str, Any]:
        """Return what is decided."""
        state: dict[str, Any] = json.loads(self.store.compare_set(self._key("state"), "", "{}"))
        return state

    def _decided(self, name: str, value: object) -> dict[str, Any]:
        """Decide something, unless it is decided, or the meeting is over; return what is decided then."""
        state = self._state()
        while not state.keys() & {name, "over"}:
            wanted = json.dumps({**state, name: value})
            state = json.loads(self.store.compare_set(self._key("state"), json.dumps(state), wanted))
        return state

    def _key(self, what: str) -> str:
        return f"{self.name}/{what}"


def reason(rank: int, error: BaseException) -> list[Any]:
    """Return what the others are told of the error for which a rank gives up, for ``ConnectError.told``."""
    words = str(error) if isinstance(error, TreefoldError) else f"{type(error).__name__} {error}".rstrip()
    return [rank, words[:_MOST_WORDS], list(getattr(error, "ranks", ()))]


def _told(state: dict[str, Any], name: str) -> ConnectError | None:
    """Return the error that a state names, if it does."""
    return ConnectError.told(*state[name]) if name in state else None
