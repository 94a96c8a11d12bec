import sys

import numpy as np
import pytest

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice


def calls_of(work):
    """Return how many Python functions a piece of work calls: its cost, whatever else the machine does."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def first_call(num_replicas):
    """Return the cost of the first short form of a shape that no call has had before."""
    values = [np.full(num_replicas, r % 7, np.int64) for r in range(num_replicas)]
    treefold.all_reduce([np.int8(1)])  # what only the first call of a process does
    return calls_of(lambda: treefold.all_reduce(values))


class TestAllReduce:
    def test_of_a_thousand_replicas_is_right(self):
        values = list(np.eye(1000, dtype=np.int64) + np.arange(1000)[:, None])
        results = treefold.all_reduce(values)
        assert len(results) == 1000
        assert all((result == 1 + 999 * 500).all() for result in results)

    def test_costs_what_the_replicas_cost(self):
        assert first_call(1200) < 2.2 * first_call(600)

    def test_plans_no_packs_that_nobody_walks(self):
        values = PerReplica([np.full(4, r) for r in range(300)])
        plan = HierarchicalCopyAllReduce("auto").plan(values, values)
        assert sum(len(step.actions) for step in plan.steps) == 300
        assert (plan.num_packs, plan.hops) == (0, ())


class TestPlan:
    @pytest.mark.parametrize("ops", [ReductionToOneDevice(), HierarchicalCopyAllReduce(2)], ids=repr)
    def test_of_many_devices_costs_what_its_actions_cost(self, ops):
        costs = []
        for count in (100, 200):
            value = PerReplica([np.zeros(8)] * count)
            costs.append(calls_of(lambda value=value: ops.plan(value, value, walked=True)))
        assert costs[1] < 2.2 * costs[0]
