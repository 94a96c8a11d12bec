"""Checked plans, kept as long as they are likely to be used again."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from treefold.bounded_cache import BoundedCache
from treefold.plan import Plan


class PlanCache:
    """The most recently used plans, by everything that they depend on. Safe to use from many threads."""

    def __init__(self, max_plans: int = 64) -> None:
        """Start empty."""
        self._plans: BoundedCache[Hashable, Plan] = BoundedCache(max_plans)

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return the plan for ``key``, made now if it is not there. Two threads may make the same plan at once."""
        plan = self._plans.get(key)
        if plan is None:
            plan = make()
        self._plans.put(key, plan)  # also one that was found: the most recently used stay
        return plan
