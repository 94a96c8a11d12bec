"""Groups of a table's rows: rows that it says belong together, and rows that may, if nothing contradicts."""

from __future__ import annotations

from collections.abc import Iterable

from treefold.keyed import grouped


class Clusters:
    """A partition of ``range(count)`` that grows by joining groups, with pairs that must stay apart."""

    def __init__(self, count: int) -> None:
        self._of = list(range(count))
        self._members = {number: [number] for number in range(count)}
        self._enemies: dict[int, set[int]] = {number: set() for number in range(count)}

    def join(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join the groups of each pair, even if pairs of them must stay apart."""
        for i, j in pairs:
            a, b = self._of[i], self._of[j]
            if a == b:
                continue
            for member in self._members[b]:
                self._of[member] = a
            self._members[a] += self._members.pop(b)
            enemies = self._enemies.pop(b)
            for enemy in enemies:
                self._enemies[enemy].discard(b)
                self._enemies[enemy].add(a)
            self._enemies[a] |= enemies
            for stale in (a, b):  # tables may contradict themselves: joined groups are no longer kept apart
                self._enemies[a].discard(stale)

    def keep_apart(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Prevent ``join_where_allowed`` from joining the groups of each pair."""
        for i, j in pairs:
            a, b = self._of[i], self._of[j]
            if a != b:
                self._enemies[a].add(b)
                self._enemies[b].add(a)

    def join_where_allowed(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Join the groups of each pair, unless some of their members must stay apart."""
        for i, j in pairs:
            if self._of[j] not in self._enemies[self._of[i]]:
                self.join([(i, j)])

    def together(self, i: int, j: int) -> bool:
        """Tell whether two members are in one group."""
        return self._of[i] == self._of[j]

    def groups(self, members: Iterable[int] | None = None) -> list[list[int]]:
        """Return the groups of these members, or all groups, in order of their smallest member."""
        wanted = sorted(range(len(self._of)) if members is None else members)
        return list(grouped((self._of[member], member) for member in wanted).values())
