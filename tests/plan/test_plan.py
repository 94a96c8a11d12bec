import copy
import dataclasses
import pickle

import numpy as np
import pytest

from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.errors import PlanError
from treefold.execution import Operand, execute
from treefold.fold import Fold
from treefold.plan import Plan, PlanDraft, finish, from_json
from treefold.plan.ir import Hop, draft_fields
from treefold.reduce_op import ReduceOp
from treefold.testing import FakeBackend, owned

UNPROVED = r"^A Plan comes from treefold\.plan\.finish\(draft\), which proves it\. Make a PlanDraft and finish it\.$"


def made(num_replicas=3, length=8, ops=None, *, walked=True):
    """Return the plan for an all-reduce of one float32 array per replica."""
    value = PerReplica([owned(r, (length,)) for r in range(num_replicas)])
    return (ops or HierarchicalCopyAllReduce()).plan(value, value, walked=walked)


class TestPlan:
    def test_is_frozen(self):
        """No field can be set, on the plan or on anything inside."""
        plan = made()
        for part in (plan, plan.leaves[0], plan.buffers[0], plan.steps[0], plan.steps[0].actions[0], plan.hops[0]):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, dataclasses.fields(part)[0].name, None)

    def test_holds_tuples_only(self):
        """There is no list inside that could be changed."""
        plan = made()
        inside = [plan.leaves, plan.buffers, plan.steps, plan.notes, plan.steps[0].actions, plan.hops]
        assert {type(part) for part in inside} == {tuple}

    def test_is_equal_if_it_means_the_same(self):
        """Two ops objects plan the same call alike, and the plans can stand for each other in a set."""
        assert made() == made()
        assert made() is not made()
        assert {made(), made(), made(5)} == {made(), made(5)}

    @pytest.mark.parametrize(
        "other", [made(5), made(length=9), made(ops=HierarchicalCopyAllReduce(2)), made(ops=ReductionToOneDevice())]
    )
    def test_is_different_if_it_means_something_else(self, other):
        """Replicas, lengths, packs and planners all count."""
        assert made() != other

    def test_does_not_depend_on_the_values(self):
        """Other numbers of the same shape and dtype give the same plan, and one plan serves every op."""
        ops = HierarchicalCopyAllReduce()
        values = [PerReplica([owned(r + k, (8,)) for r in range(3)]) for k in range(2)]
        plans = [ops.reduce(op, value, value).plan for op in ("sum", "max") for value in values]
        assert plans == [made(walked=False)] * 4

    def test_cannot_be_made_by_hand(self):
        """A plan without a proof does not exist."""
        fields = draft_fields(made())
        with pytest.raises(PlanError, match=UNPROVED):
            Plan(**fields, guarantee="replica_order", proof=None)
        with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'proof'$"):
            Plan(**fields, guarantee="replica_order")

    def test_cannot_be_changed_by_replace(self):
        """``dataclasses.replace`` needs the proof, which nobody has."""
        with pytest.raises(ValueError, match=r"^InitVar 'proof' must be specified with replace\(\)$"):
            dataclasses.replace(made(), steps=())
        with pytest.raises(PlanError, match=UNPROVED):
            dataclasses.replace(made(), steps=(), proof=object())

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])  # noqa: S301
    def test_survives_copying(self, duplicate):
        """A copy of a proved plan is the same plan."""
        assert duplicate(made()) == made()

    def test_is_proved_again_from_its_draft(self):
        """The fields of a plan, finished again, give the plan."""
        assert finish(PlanDraft(**draft_fields(made()))) == made()

    def test_names_its_devices_in_order(self):
        """The devices are those of the buffers, each once."""
        assert made(3).devices == ("cpu:0", "cpu:1", "cpu:2")

    def test_lists_its_hops(self):
        """A hop is a copy between two devices, with its step, its pack and its bytes."""
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
            (PlanDraft(**draft_fields(made())), "a PlanDraft"),
            (None, "None"),
            ("plan", "'plan'"),
            (made().to_json, "a method"),
        ],
    )
    def test_takes_nothing_but_a_plan(self, stranger, shown):
        """A draft, or anything else, is refused before anything moves."""
        sentence = rf"^An executor runs a proved Plan and got {shown}\. Call treefold\.plan\.finish\(draft\) first\.$"
        with pytest.raises(PlanError, match=sentence):
            execute(stranger, [], Fold(ReduceOp.SUM))

    def test_does_not_take_a_subclass(self):
        """A class that only looks like a plan has no proof."""
        disguised = object.__new__(type("Disguised", (Plan,), {}))
        with pytest.raises(PlanError, match=r"^An executor runs a proved Plan and got a Disguised\. "):
            execute(disguised, [])

    def test_runs_a_plan_that_was_read_from_json(self):
        """What is read back runs like what was written."""
        with additional_backend(FakeBackend(3)) as fake:
            arrays = tuple(fake.array(owned(r, (8,)), f"gpu:{r}") for r in range(3))
            plan = HierarchicalCopyAllReduce().plan(PerReplica(arrays), fake.devices)
            [results] = execute(from_json(plan.to_json()), [Operand(fake, arrays, (8,))], Fold(ReduceOp.SUM))
        assert [result.data.tolist() for result in results] == [(owned(0, (8,)) * 7).tolist()] * 3
        assert np.array_equal(arrays[1].data, owned(1, (8,)))
