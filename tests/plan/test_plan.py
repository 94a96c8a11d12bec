import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest

from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.errors import PlanError
from treefold.execution import Operand, execute
from treefold.fold import Fold
from treefold.plan import Movement, Plan, from_json
from treefold.plan.ir import Hop
from treefold.reduce_op import ReduceOp
from treefold.testing import FakeBackend, owned

BROKEN = r"^The plan does not hold: out0\.0 does not end up with its 8 elements of the result\.$"
WORDS = [
    ({"collective": "scatter"}, 'collective \'scatter\' is not "all_reduce", "reduce", "broadcast" or "gather".'),
    (
        {"executor": "moon"},
        'executor \'moon\' is not "host", "local", "graph", "cuda", "nccl", "shared_memory" or "hosts".',
    ),
    (
        {"kernel": "fast"},
        'kernel \'fast\' is not "native", "native-flag", "native-integers", "native-none", "numpy" or "".',
    ),
    ({"accumulate": "narrow"}, 'accumulate \'narrow\' is not "exact", "wide", "native" or "callback".'),
    ({"paths": ("a", "b")}, "the number of paths is 2, that of leaves 1."),
    ({"accumulate": "callback"}, "accumulation_fn takes the whole arrays of all replicas at once."),
]


def made(num_replicas=3, length=8, ops=None, *, walked=True):
    value = PerReplica([owned(r, (length,)) for r in range(num_replicas)])
    return (ops or HierarchicalCopyAllReduce()).plan(value, value, walked=walked)


def movement_of(plan):
    return Movement(leaves=plan.leaves, buffers=plan.buffers, steps=plan.steps)


class TestPlan:
    def test_holds_tuples_only(self):
        plan = made()
        inside = [plan.leaves, plan.buffers, plan.steps, plan.notes, plan.steps[0].actions, plan.hops]
        assert {type(part) for part in inside} == {tuple}

    def test_is_equal_if_it_means_the_same(self):
        assert made() == made()
        assert made() is not made()
        assert {made(), made(), made(5)} == {made(), made(5)}

    @pytest.mark.parametrize(
        "other", [made(5), made(length=9), made(ops=HierarchicalCopyAllReduce(2)), made(ops=ReductionToOneDevice())]
    )
    def test_is_different_if_it_means_something_else(self, other):
        assert made() != other

    def test_does_not_depend_on_the_values(self):
        ops = HierarchicalCopyAllReduce()
        values = [PerReplica([owned(r + k, (8,)) for r in range(3)]) for k in range(2)]
        plans = [ops.reduce(op, value, value).plan for op in ("sum", "max") for value in values]
        assert plans == [made(walked=False)] * 4

    def test_is_proved_as_it_is_made(self):
        fields = {field.name: getattr(made(), field.name) for field in dataclasses.fields(Plan) if field.init}
        assert Plan(**fields) == made()
        with pytest.raises(PlanError, match=BROKEN):
            Plan(**{**fields, "steps": ()})
        with pytest.raises(PlanError, match=BROKEN):
            dataclasses.replace(made(), steps=())

    def test_has_no_proof_but_its_own(self):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'proof'$"):
            Plan(**{field.name: getattr(made(), field.name) for field in dataclasses.fields(Plan)})

    @pytest.mark.parametrize(("changes", "sentence"), WORDS)
    def test_refuses_how_it_cannot_run(self, changes, sentence):
        with pytest.raises(PlanError, match=rf"^The plan does not hold: {re.escape(sentence)}$"):
            dataclasses.replace(made(), **changes)

    def test_refuses_an_executor_that_does_not_reach_its_devices(self):
        """The host executor has host memory, and the others fold on one device at a time."""
        plan = made(walked=False)
        with pytest.raises(PlanError, match=r"^The plan does not hold: the local executor cannot fold or concatenate"):
            dataclasses.replace(plan, executor="local")
        buffers = tuple(dataclasses.replace(buffer, device="gpu:0") for buffer in plan.buffers)
        with pytest.raises(PlanError, match=r"^The plan does not hold: the host executor cannot reach gpu:0\.$"):
            dataclasses.replace(plan, buffers=buffers)

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])  # noqa: S301
    def test_survives_copying(self, duplicate):
        assert duplicate(made()) == made()

    def test_names_the_leaves_of_its_own_call(self):
        """Calls that move the same from other structures do not share a plan: errors name leaves by their paths."""
        ops = HierarchicalCopyAllReduce()
        values = [PerReplica([{name: owned(r, (8,))} for r in range(2)]) for name in ("a", "b")]
        plans = [ops.plan(value, value) for value in (*values, values[0])]
        assert [plan.paths for plan in plans] == [("['a']",), ("['b']",), ("['a']",)]
        assert plans[0].digest == plans[1].digest

    def test_names_its_devices_in_order(self):
        assert made(3).devices == ("cpu:0", "cpu:1", "cpu:2")

    def test_lists_its_hops(self):
        plan = made(3, 4, AllReduceCrossDeviceOps("hierarchical_copy", num_packs=2))
        assert plan.hops == (
            Hop(1, 0, "cpu:1", "cpu:0", 8),
            Hop(1, 1, "cpu:0", "cpu:1", 8),
            Hop(3, 0, "cpu:2", "cpu:0", 8),
            Hop(3, 1, "cpu:2", "cpu:1", 8),
            Hop(5, 0, "cpu:0", "cpu:2", 8),
            Hop(5, 1, "cpu:1", "cpu:2", 8),
            Hop(6, 0, "cpu:0", "cpu:1", 8),
            Hop(6, 1, "cpu:1", "cpu:0", 8),
        )


class TestExecute:
    @pytest.mark.parametrize(
        ("stranger", "shown"),
        [
            (movement_of(made()), "a Movement"),
            (None, "None"),
            ("plan", "'plan'"),
            (made().to_json, "a method"),
        ],
    )
    def test_takes_nothing_but_a_plan(self, stranger, shown):
        sentence = rf"^An executor runs a Plan and got {shown}\. Make one with ops\.plan or treefold\.plan\.Plan\.$"
        with pytest.raises(PlanError, match=sentence):
            execute(stranger, [], Fold(ReduceOp.SUM))

    def test_does_not_take_a_subclass(self):
        """A class that only looks like a plan has no proof."""
        disguised = object.__new__(type("Disguised", (Plan,), {}))
        with pytest.raises(PlanError, match=r"^An executor runs a Plan and got a Disguised\. "):
            execute(disguised, [])

    def test_runs_a_plan_that_was_read_from_json(self):
        with additional_backend(FakeBackend(3)) as fake:
            arrays = tuple(fake.array(owned(r, (8,)), f"gpu:{r}") for r in range(3))
            plan = HierarchicalCopyAllReduce().plan(PerReplica(arrays), fake.devices)
            [results] = execute(from_json(plan.to_json()), [Operand(fake, arrays, (8,))], Fold(ReduceOp.SUM))
        assert [result.data.tolist() for result in results] == [(owned(0, (8,)) * 7).tolist()] * 3
        assert np.array_equal(arrays[1].data, owned(1, (8,)))
