"""Checked plans, kept as long as they are likely to be used again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from treefold.plan import Plan


class PlanCache:
    """The most recently used plans, by everything that they depend on. Safe to use from many threads."""

    def __init__(self, max_plans: int = 64) -> None:
        """Start empty."""
        self._max_plans = max_plans
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return the plan for ``key``, made now if it is not there. Two threads may make the same plan at once."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        plan = make()
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > self._max_plans:
                self._plans.popitem(last=False)
        return plan
