import pytest

from treefold.plan import Plan
from treefold.plan.ir import Combine, Concat, Copy, Goal, Leaf, Range, Step
from treefold.planners import LeafWork, PlanBuilder, add_one_pass

DEVICES = ("cpu:0", "cpu:1", "cpu:2")
HEAD = {"collective": "all_reduce", "algorithm": "test", "executor": "host", "paths": ("",)}


def planned(goal, lengths, results):
    """Return the proved plan of one leaf, with a replica for each length, on host memory."""
    work = LeafWork(Leaf("float32", goal), lengths, DEVICES[: len(lengths)], DEVICES[:results])
    builder = PlanBuilder([work])
    add_one_pass(builder, 0)
    return Plan(leaves=builder.leaves, buffers=builder.buffers, steps=builder.steps, **HEAD)


class TestAddOnePass:
    def test_folds_into_the_first_output_and_copies_to_the_others(self):
        plan = planned(Goal.FOLD, (4, 4, 4), 3)
        sources = tuple(Range(replica, 0, 4) for replica in range(3))
        first = Range(3, 0, 4)
        assert plan.steps == (
            Step((Combine(sources, first, -1, final=True),)),
            Step((Copy(first, Range(4, 0, 4), -1), Copy(first, Range(5, 0, 4), -1))),
        )
        assert (plan.num_packs, plan.hops, plan.guarantee) == (0, (), "replica_order")

    @pytest.mark.parametrize("goal", [Goal.ROWS, Goal.GATHER])
    def test_lays_what_there_is_behind_each_other(self, goal):
        plan = planned(goal, (2, 0, 3), 1)
        assert plan.steps == (Step((Concat((Range(0, 0, 2), Range(2, 0, 3)), Range(3, 0, 5), -1, final=True),)),)

    def test_copies_one_value(self):
        plan = planned(Goal.COPY, (4,), 2)
        first = Range(1, 0, 4)
        assert plan.steps == (Step((Copy(Range(0, 0, 4), first, -1),)), Step((Copy(first, Range(2, 0, 4), -1),)))

    @pytest.mark.parametrize("goal", [Goal.FOLD, Goal.ROWS])
    def test_does_nothing_for_values_without_elements(self, goal):
        assert planned(goal, (0, 0), 2).steps == ()
