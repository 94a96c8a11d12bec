import json
import re

import pytest

from treefold import AllReduceCrossDeviceOps, HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.errors import PlanError
from treefold.plan import from_json
from treefold.testing import FakeBackend, owned

OPS = (
    ReductionToOneDevice(),
    HierarchicalCopyAllReduce(),
    HierarchicalCopyAllReduce("auto"),
    AllReduceCrossDeviceOps("nccl", 3),
    AllReduceCrossDeviceOps("hierarchical_copy", 0),
    AllReduceCrossDeviceOps("hierarchical_copy", 0, agg_small_grads_max_bytes=64),
)


def written(**changes):
    value = PerReplica([owned(r, (4,)) for r in range(2)])
    return json.dumps({**json.loads(HierarchicalCopyAllReduce().plan(value, value, walked=True).to_json()), **changes})


def batch(count, place):
    """Return pairs of every kind: arrays of several dtypes, sparse rows, none at all, one to another place."""
    shapes = (("float32", (3, 5)), ("int32", (7,)), ("float32", (2,)), ("float64", (0, 3)), ("float32", ()))
    tree = PerReplica([{f"{i}": place(owned(r, s, d), r) for i, (d, s) in enumerate(shapes)} for r in range(count)])
    slices = [(place(owned(r, (2, 2)), r), place(owned(r, (2,), "int64"), r)) for r in range(count)]
    rows = PerReplica([IndexedSlices(values, indices) for values, indices in slices])
    return [(tree, tree), (rows, rows), (tree, rows.devices[-1:])]


class TestToJson:
    @pytest.mark.filterwarnings("ignore:NCCL is not used")
    @pytest.mark.parametrize("count", range(1, 18))
    @pytest.mark.parametrize("ops", OPS, ids=repr)
    def test_is_read_back_as_the_same_plan(self, ops, count):
        hosts = batch(count, lambda array, _: array)
        tree = PerReplica([value["0"] for value in hosts[0][0]])
        with additional_backend(FakeBackend(count)) as fake:
            gpus = batch(count, lambda array, r: fake.array(array, f"gpu:{r}"))
            plans = [ops.plan(hosts), ops.plan(hosts, walked=True), ops.plan(gpus), ops.gather(tree, tree, 0).plan]
            plans.append(ops.broadcast(gpus[0][0][0], fake.devices).plan)
        for plan in plans:
            again = from_json(plan.to_json())
            assert again == plan
            assert (again.guarantee, again.hops, str(again)) == (plan.guarantee, plan.hops, str(plan))

    def test_is_plain(self):
        value = PerReplica([owned(r, (4,)) for r in range(2)])
        plan = HierarchicalCopyAllReduce().plan(value, value, walked=True)
        assert json.loads(plan.to_json()) == {
            "treefold_plan": 1,
            "collective": "all_reduce",
            "algorithm": "HierarchicalCopyAllReduce(num_packs=1)",
            "executor": "local",
            "kernel": "",
            "accumulate": "wide",
            "num_packs": 1,
            "notes": [],
            "leaves": [["", "float32", "fold"]],
            "buffers": [
                ["in0.0", "cpu:0", 4, "input", 0, 0],
                ["in0.1", "cpu:1", 4, "input", 0, 1],
                ["out0.0", "cpu:0", 4, "output", 0, 0],
                ["out0.1", "cpu:1", 4, "output", 0, 1],
                ["scratch4", "cpu:0", 4, "scratch", 0, -1],
            ],
            "steps": [
                [["copy", 0, [1, 0, 4], [4, 0, 4]]],
                [["combine", 0, True, [[0, 0, 4], [4, 0, 4]], [2, 0, 4]]],
                [["copy", 0, [2, 0, 4], [3, 0, 4]]],
            ],
        }


class TestFromJson:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "Expecting value: line 1 column 1 (char 0)"),
            (None, "it is None, not text"),
            (b"{}", "it is b'{}', not text"),
            ("[" * 100_000, None),
            ("[]", "it is not an object with treefold_plan: 1"),
            ("{}", "it is not an object with treefold_plan: 1"),
            (written(treefold_plan=2), "it is not an object with treefold_plan: 1"),
            (written(treefold_plan=True), "it is not an object with treefold_plan: 1"),
            (written(treefold_plan=1.0), "it is not an object with treefold_plan: 1"),
            (written(extra=1), "fields ['extra'] are missing or unknown"),
            (json.dumps({"treefold_plan": 1, **dict.fromkeys(["steps", "notes"])}), None),
            ('{"notes": [], "notes": []}', "a field stands in it twice"),
            (written(algorithm=3), "3 stands where text is meant"),
            (written(num_packs=1.0), "1.0 stands where a whole number is meant"),
            (written(num_packs=True), "True stands where a whole number is meant"),
            (written(num_packs=2**63), "9223372036854775808 stands where a whole number is meant"),
            (written(num_packs=float("nan")), "nan stands where a whole number is meant"),
            (written(num_packs=2), "num_packs is 2, and its steps carry 1"),
            (written(notes="abc"), "'abc' stands where a list is meant"),
            (written(notes=[None]), "None stands where text is meant"),
            (written(leaves={"abc": 1}), "a dict stands where a list is meant"),
            (written(leaves=["abc"]), "'abc' stands where a list of 3 is meant"),
            (
                written(leaves=[["", "float32", "melt"]]),
                '\'melt\' stands where one of "fold", "rows", "gather" or "copy" is meant',
            ),
            (written(buffers=[[1, 2, 3]]), "[1, 2, 3] stands where a list of 6 is meant"),
            (
                written(buffers=[["in", "cpu:0", 4, "storage", 0, 0]]),
                '\'storage\' stands where one of "input", "output", "scratch", "partial", "exact" or "result" is meant',
            ),
            (written(steps=5), "5 stands where a list is meant"),
            (written(steps=[5]), "5 stands where a list is meant"),
            (written(steps=[[5]]), "5 stands where a list is meant"),
            (written(steps=[[[]]]), 'None stands where one of "copy", "combine" or "concat" is meant'),
            (
                written(steps=[[["teleport", 0]]]),
                '\'teleport\' stands where one of "copy", "combine" or "concat" is meant',
            ),
            (written(steps=[[["copy", 0]]]), "['copy', 0] stands where a list of 4 is meant"),
            (written(steps=[[["copy", 0, [0, 0], [1, 0, 4]]]]), "[0, 0] stands where a list of 3 is meant"),
            (written(steps=[[["copy", 0, [0, "0", 4], [1, 0, 4]]]]), "'0' stands where a whole number is meant"),
            (written(steps=[[["combine", 0, 1, [], [0, 0, 4]]]]), "1 stands where true or false is meant"),
            (written(steps=[[["combine", 0, True, "ab", [0, 0, 4]]]]), "'ab' stands where a list is meant"),
        ],
    )
    def test_refuses_what_is_no_plan(self, text, problem):
        sentence = ".*" if problem is None else re.escape(problem)
        whole = rf"^This text is no plan: {sentence}\. Write plans with plan\.to_json\(\)\.$"
        with pytest.raises(PlanError, match=whole):
            from_json(text)

    def test_refuses_what_is_too_long(self, monkeypatch):
        monkeypatch.setattr("treefold.plan.serialize._MAX_CHARACTERS", 3)
        sentence = r"^This text is no plan: it has 4 characters, more than 3\. Write plans with plan\.to_json\(\)\.$"
        with pytest.raises(PlanError, match=sentence):
            from_json("    ")

    def test_proves_what_it_reads(self):
        steps = json.loads(written())["steps"]
        sentence = r"^The plan does not hold: in step 1, elements 0:4 of scratch4 are read before they are written\.$"
        with pytest.raises(PlanError, match=sentence):
            from_json(written(steps=steps[1:]))
