"""Ranks that go through the same steps by a store, until one of them says why they do not go on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from treefold.engines.stores import STORE_ERRORS, asked
from treefold.errors import ConnectError

#: Of what a rank says of its error, in characters.
_MOST_WORDS = 4096
_POLL_S = 0.01
#: How long a rank that stops waits for the others to stop as well: whoever has not by then is to blame.
SILENT_S = 0.5


class Meeting:
    """Ranks that have all come, and keys of a store, which begin with ``name`` and which nobody has used before.

    It is over when one of them leaves a reason. A rank that has waited in vain, or that its engine could not connect,
    knows none yet: it stops, all others do so when they see it, and to blame are those that do not.
    """

    def __init__(self, store: Any, name: str, rank: int, size: int, began: float) -> None:
        """Use any of PyTorch's stores; ``began``: when this rank began to connect."""
        self.store, self.name, self.rank, self.size, self.began = store, name, rank, size, began
        self._last_key = ""

    def exchange(
        self, step: str, said: bytes, deadline: float, is_ready: Callable[[], bool] = lambda: True
    ) -> list[bytes]:
        """Leave words in the store, once this rank is ready for that, and return what each rank has left.

        Raises:
            ConnectError: the meeting is over, or some have said nothing by the deadline.

        """
        return asked(lambda is_over: self.poll(step, said, deadline, is_over, is_ready), deadline + SILENT_S)

    def end(self, error: BaseException) -> None:
        """Tell the others why this rank does not go on, if they have not heard of another reason."""
        self.store.compare_set(self._key("over"), "", reason(self.rank, error).decode())

    def replace(self) -> None:
        """Tell the others, if it is not over, that they wait for a process that is gone, whose successor has come."""
        self.end(ConnectError.replaced(self.rank))

    def is_replaced(self) -> bool:
        """Tell whether it is over because of that."""
        return str(self.why_over()) in {str(ConnectError.replaced(rank)) for rank in range(self.size)}

    def why_over(self) -> ConnectError | None:
        """Return why the meeting is over, if it is."""
        return self._reason("over")

    def stopped(self, step: str, error: ConnectError) -> ConnectError:
        """Stop, and return why: some say nothing any more in this step, or this error if all do."""
        self.store.compare_set(self._key("stopping"), "", reason(self.rank, error).decode())
        self.store.set(self._key(f"stopped/{self.rank}"), b"")
        silent, until = list(range(self.size)), time.monotonic() + SILENT_S
        while silent and time.monotonic() < until:
            time.sleep(_POLL_S)
            for sign in (step, "stopped"):
                silent = [rank for rank in silent if not self.store.check([self._key(f"{sign}/{rank}")])]
        return self.why_over() or (ConnectError.late(silent, time.monotonic() - self.began) if silent else error)

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
            over, stopping = self.why_over(), self._reason("stopping")
            if not (is_said or over) and is_ready():
                self.store.set(keys[self.rank], said)
                is_said = True
            if is_said and self.store.check(keys):
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
            with contextlib.suppress(*STORE_ERRORS):  # not every store can
                self.store.delete_key(self._last_key)
        self._last_key = keys[self.rank]
        return words

    def _key(self, what: str) -> str:
        return f"{self.name}/{what}"

    def _reason(self, what: str) -> ConnectError | None:
        key = self._key(what)
        return told_why(self.store.get(key)) if self.store.check([key]) else None


def reason(rank: int, error: BaseException) -> bytes:
    """Return what the others are told of the error for which a rank gives up."""
    words = str(error) if isinstance(error, ConnectError) else f"{type(error).__name__} {error}".rstrip()
    ranks: Sequence[int] = getattr(error, "ranks", ())
    return json.dumps([rank, words[:_MOST_WORDS], ranks]).encode()


def told_why(why: bytes) -> ConnectError:
    """Return the error of a rank that was told why another one has given up."""
    rank, words, ranks = json.loads(why)
    return ConnectError.told(rank, words, ranks)
