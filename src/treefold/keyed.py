"""Values by key: a bounded cache without a lock, and lists of values with one key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key in their order, keys in order of first appearance."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class BoundedCache(Generic[Key, Value]):
    """The values that were put in last, by key. Copies and pickles of it are empty.

    A cache may be used from many threads, and from signal handlers and finalizers that interrupt it in the same thread.
    A lock would make those wait for ever, so there is none: every step is one atomic operation on a dictionary. Two
    threads that miss may therefore both make a value; the later one stays.
    """

    def __init__(self, max_entries: int) -> None:
        """Start empty."""
        self._max_entries = max_entries
        # Never replaced: ``get`` is bound to this dictionary.
        self._entries: dict[Key, Value] = {}
        #: Returns the value for a key, or None if there is none. The dictionary's own method: it is on the fast path.
        self.get: Callable[[Key], Value | None] = self._entries.get

    def put(self, key: Key, value: Value) -> None:
        """Keep a value as the newest, and drop the oldest ones beyond the bound."""
        self._entries.pop(key, None)  # a key that is set again would keep its old turn
        self._entries[key] = value
        # After the entry is in: a thread that is interrupted here leaves one too many, which the next ``put`` removes.
        while len(self._entries) > self._max_entries:
            try:
                oldest = next(iter(self._entries))
            except (RuntimeError, StopIteration):  # another thread changed the dictionary in between
                continue
            # With a default: another thread may have removed it since ``next`` returned.
            self._entries.pop(oldest, None)

    def made(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value for a key; make and keep it if it is missing. Either way the entry becomes the newest."""
        value = self.get(key)
        if value is None:
            # Without any lock: making may take long, and may use this very cache.
            value = make()
        self.put(key, value)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[type[BoundedCache[Key, Value]], tuple[int]]:
        return type(self), (self._max_entries,)
