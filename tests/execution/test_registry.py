"""Executors: one file and one line, and no other module that knows them by name."""

import ast
from pathlib import Path

import pytest

import treefold
from treefold import CommunicationOptions, HierarchicalCopyAllReduce, PerReplica
from treefold.backends import additional_backend
from treefold.errors import ArgumentError, PlanError
from treefold.execution import LOCAL, Executor, _executors, additional_executor
from treefold.plan import ExecutorTraits, from_json
from treefold.testing import FakeBackend

SOURCES = Path(treefold.__file__).parent
TRAITS = ExecutorTraits(own_promise="what was dreamt of elsewhere", manner="far away")


class Elsewhere(Executor):
    """An executor that treefold does not know: it takes the arrays of fake devices, and notes what it is given."""

    name = "elsewhere"
    honours_timeout = True

    def __init__(self):
        self.timeouts = []

    def refusal(self, call):
        return "" if set(call.frameworks) == {"fake"} and len(call.routes[0][0]) == 2 else "it dreams of fakes"

    def run(self, plan, inputs, fold, out):
        return LOCAL.run(plan, inputs, fold, out)

    def run_within(self, timeout_s, plan, inputs, fold, out):
        self.timeouts.append(timeout_s)
        return self.run(plan, inputs, fold, out)


@pytest.fixture
def fake():
    with additional_backend(FakeBackend(3)) as backend:
        yield backend


@pytest.fixture
def elsewhere():
    with additional_executor(Elsewhere(), TRAITS) as executor:
        yield executor


def replicas(fake, count=2):
    """Return a value on the first devices: replica r brings 2**r."""
    return PerReplica([fake.array([2.0**r], fake.devices[r]) for r in range(count)])


class TestAdditionalExecutor:
    def test_runs_the_calls_that_it_does_not_refuse(self, fake, elsewhere):
        value = replicas(fake)
        result = HierarchicalCopyAllReduce().reduce("sum", value, value, CommunicationOptions(timeout_seconds=3))
        assert [component.data.tolist() for component in result] == [[3.0]] * 2
        assert elsewhere.timeouts == [3]
        assert result.plan.executor == "elsewhere"

    def test_leaves_other_calls_to_others(self, fake, elsewhere):
        value = replicas(fake, 3)
        assert HierarchicalCopyAllReduce().plan(value, value).executor == "local"
        assert HierarchicalCopyAllReduce().plan(PerReplica([1.0, 2.0]), ["cpu:0", "cpu:1"]).executor == "host"
        assert elsewhere.timeouts == []

    @pytest.mark.usefixtures("elsewhere")
    def test_says_what_it_promises(self, fake):
        value = replicas(fake)
        lines = str(HierarchicalCopyAllReduce().plan(value, value)).splitlines()
        assert lines[1:3] == [
            "executor:  elsewhere, far away",
            "guarantee: per_plan - what was dreamt of elsewhere",
        ]

    @pytest.mark.usefixtures("elsewhere")
    def test_honours_what_it_says(self, fake):
        value = replicas(fake)
        sentence = r"^implementation=RING cannot be honoured by the elsewhere executor, which runs this plan\. "
        with pytest.raises(ArgumentError, match=sentence):
            HierarchicalCopyAllReduce().reduce("sum", value, value, CommunicationOptions(implementation="RING"))

    def test_is_known_inside_the_block_only(self, fake):
        value = replicas(fake)
        with additional_executor(Elsewhere(), TRAITS):
            plan = HierarchicalCopyAllReduce().plan(value, value)
            assert from_json(plan.to_json()) == plan
        with pytest.raises(
            PlanError,
            match='executor \'elsewhere\' is not "host", "local", "graph", "cuda", "nccl", "shared_memory" or "hosts"',
        ):
            from_json(plan.to_json())
        assert plan.traits == TRAITS
        assert "elsewhere, far away" in str(plan)

    def test_has_a_name_of_its_own(self, elsewhere):
        with pytest.raises(ValueError, match="elsewhere"), additional_executor(Elsewhere()):
            pass
        assert _executors["elsewhere"] is elsewhere


def mentions(text):
    """Return the lines on which an executor's name is compared, handed on or kept as one."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare | ast.keyword | ast.Assign | ast.AnnAssign | ast.Subscript | ast.Call):
            near = [inner for child in ast.iter_child_nodes(node) for inner in (child, *ast.iter_child_nodes(child))]
            words = {inner.value for inner in near if isinstance(inner, ast.Constant)}
            if words & _executors.keys() and "executor" in ast.unparse(node).lower():
                found.add(ast.unparse(node))
    return found


class TestNames:
    def test_are_their_own_modules_alone(self):
        """An executor's file names it, and ``plan.py`` what plans say of it; nobody compares."""
        own = {"execution/host_memory.py", "execution/gpus.py", "plan/plan.py"}
        texts = {
            path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")
        }
        assert {name: found for name, text in texts.items() if name not in own and (found := mentions(text))} == {}

    @pytest.mark.parametrize(
        "line",
        [
            'plan.executor == "host"',
            'request.executor in {"host", "cuda"}',
            'draft(executor="local")',
            'EXECUTORS = ("cuda", "local")',
            '_EXECUTORS = {"host": 1}',
            'chosen_executor("nccl")',
            'executors["nccl"]',
        ],
    )
    def test_are_found_wherever_they_decide(self, line):
        assert mentions(line)
