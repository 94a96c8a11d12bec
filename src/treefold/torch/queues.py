"""Queues by key, of things that have numbers: the lowest number is the first."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Protocol, TypeVar


class Numbered(Protocol):
    """What stands in a queue."""

    @property
    def number(self) -> int:
        """Its place: whoever has the lowest is the first."""


_Key = TypeVar("_Key", bound=Hashable)
_One = TypeVar("_One", bound=Numbered)
_number = attrgetter("number")


class Queues(dict[_Key, deque[_One]]):
    """One queue for each key that has something waiting, so that thousands that wait cost no search."""

    def add(self, key: _Key, one: _One) -> None:
        """Put something in its place, which is the end unless it was taken before."""
        bisect.insort(self.setdefault(key, deque()), one, key=_number)

    def take(self, keys: Iterable[_Key]) -> _One | None:
        """Remove and return the first in the queues of some keys; None if nothing waits there."""
        key = min((key for key in keys if key in self), key=lambda key: self[key][0].number, default=None)
        if key is None:
            return None
        one = self[key].popleft()
        if not self[key]:
            del self[key]
        return one

    def discard(self, key: _Key, one: _One) -> None:
        """Remove something, if it is there."""
        queue = self.get(key)
        if queue is not None and one in queue:
            queue.remove(one)
            if not queue:
                del self[key]
