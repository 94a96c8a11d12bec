import dataclasses
import re

import pytest

from treefold.errors import PlanError
from treefold.plan import Movement
from treefold.plan.check import Proof
from treefold.plan.ir import Buffer, Combine, Concat, Copy, Goal, Leaf, Range, Role, Step

FOLD, ROWS, COPY = (Leaf("float32", goal) for goal in (Goal.FOLD, Goal.ROWS, Goal.COPY))
IN0, IN1 = Buffer("in0", "gpu:0", 4, Role.INPUT, 0, 0), Buffer("in1", "gpu:0", 4, Role.INPUT, 0, 1)
OUT = Buffer("out", "gpu:0", 4, Role.OUTPUT, 0, 0)
OUT1 = Buffer("out1", "gpu:0", 4, Role.OUTPUT, 0, 1)
AWAY = Buffer("away", "gpu:1", 4, Role.SCRATCH, 0)
HERE = Buffer("here", "gpu:0", 4, Role.SCRATCH, 0)
EXACT = Buffer("exact", "gpu:0", 4, Role.EXACT, 0)
SUM, DONE = Buffer("sum", "gpu:0", 4, Role.PARTIAL, 0), Buffer("done", "gpu:0", 4, Role.RESULT, 0)


def parts_of(*steps, buffers=(IN0, IN1, OUT), leaves=(FOLD,)):
    index = {buffer.name: number for number, buffer in enumerate(buffers)}
    made = tuple(Step(tuple(_numbered(action, index) for action in step)) for step in steps)
    return {"leaves": leaves, "buffers": buffers, "steps": made}


def prove(*steps, **parts):
    return Movement(**parts_of(*steps, **parts))


def at(name, start=0, stop=4):
    return name, start, stop


def copy(source, target):
    return Copy(source, target, 0)


def combine(*sources, to, final=True):
    return Combine(sources, to, 0, final)


def concat(*sources, to, final=False):
    return Concat(sources, to, 0, final)


def _numbered(action, index):
    def place(where):
        return Range(index.get(where[0], where[0]), *where[1:])

    if isinstance(action, Copy):
        return Copy(place(action.source), place(action.target), action.pack)
    return dataclasses.replace(action, sources=tuple(map(place, action.sources)), target=place(action.target))


WHOLE = combine(at("in0"), at("in1"), to=at("out"))
BUFFERS = [
    ({"buffers": (IN0, IN0, OUT)}, "two buffers have the same name."),
    (
        {"buffers": (IN0, IN1, OUT, Buffer("x", "gpu:0", 4, Role.SCRATCH, 1))},
        "buffer x has no such leaf or a negative length.",
    ),
    (
        {"buffers": (IN0, IN1, OUT, Buffer("x", "gpu:0", -1, Role.SCRATCH, 0))},
        "buffer x has no such leaf or a negative length.",
    ),
    (
        {"buffers": (IN0, dataclasses.replace(IN1, position=2), OUT)},
        "leaf 0 has inputs at positions [0, 2], not 0, 1, 2 ….",
    ),
    ({"buffers": (IN0, IN1)}, "leaf 0 has outputs at positions [], not 0, 1, 2 …."),
    (
        {"buffers": (IN0, dataclasses.replace(IN1, length=3), OUT)},
        "leaf 0 has inputs of lengths [4, 3].",
    ),
    ({"leaves": (COPY,)}, "leaf 0 has inputs of lengths [4, 4]."),
]
TWICE = "finishes what is finished already, or what must be folded or copied"
STEPS = [
    ((), "it has no actions."),
    ((copy(at("in0"), at(9)),), "there is no buffer 9."),
    ((copy(at("in0", 0, 5), at("here", 0, 5)),), "0:5 is outside in0."),
    ((copy(at("in0", -1, 3), at("here")),), "-1:3 is outside in0."),
    ((copy(at("in0", 3, 1), at("here", 3, 1)),), "3:1 is outside in0."),
    ((copy(at("in0", 2, 2), at("here", 2, 2)),), "it acts on no elements."),
    ((combine(at("in0", 2, 2), to=at("out", 2, 2)),), "it acts on no elements."),
    ((dataclasses.replace(WHOLE, pack=-2),), "there is no pack -2."),
    ((copy(at("in0", 0, 3), at("here")),), "it copies 3 elements into 4."),
    ((copy(at("in0"), at("sum")),), "moving cannot turn contributions into partial folds, or back."),
    ((concat(at("in0"), to=at("sum")),), "moving cannot turn contributions into partial folds, or back."),
    ((concat(at("in0", 0, 3), to=at("here")),), "the parts of a concatenation do not fill its target."),
    ((concat(at("in0"), to=at("out"), final=True),), f"it {TWICE}."),
    ((combine(at("in0"), at("in1", 0, 3), to=at("out")),), "it combines 3 elements into 4."),
    ((combine(at("in0"), at("in1"), to=at("out", 0, 3)),), "it combines 4 elements into 3."),
    ((copy(at("in0"), at("here", 0, 3)),), "it copies 4 elements into 3."),
    ((concat(at("in0"), to=at("here", 0, 3)),), "the parts of a concatenation do not fill its target."),
    (
        (combine(at("in0"), at("in1"), to=at("here"), final=False),),
        "a fold that is not the last one makes partial folds, and goes elsewhere.",
    ),
    (
        (combine(at("in0"), at("in0"), to=at("out")),),
        "the contribution of replica 0 is added twice.",
    ),
    (
        (combine(at("in1"), at("in0"), to=at("out")),),
        "contributions starting at replicas [1, 0] are not combined in replica order.",
    ),
    ((combine(at("in1"), to=at("out")),), "the result of leaf 0 is finished without replica 0."),
    (
        (combine(at("in0", 0, 3), at("in1", 1, 4), to=at("out", 0, 3)),),
        "contributions to different elements are combined at element 0 of leaf 0.",
    ),
    ((copy(at("here"), at("out")),), "elements 0:4 of here are read before they are written."),
    ((copy(at("in0"), at("in1")),), "it writes into the input in1."),
    ((copy(at("in0"), at("out")),), "out, of role output, cannot hold this."),
    ((copy(at("in0"), at("done")),), "done, of role result, cannot hold this."),
    ((combine(at("in0"), at("in1"), to=at("sum")),), "sum, of role partial, cannot hold this."),
    ((combine(to=at("out")),), "it has no sources."),
    (
        (copy(at("in0"), at("here")), copy(at("in1", 0, 2), at("here", 2, 4))),
        "elements 2:4 of here are written while another action of the step uses them.",
    ),
    (
        (WHOLE, copy(at("out", 1, 3), at("done", 1, 3))),
        "elements 1:3 of out are written while another action of the step uses them.",
    ),
]
_WHOLE = "exact partial sums travel whole"
ALL = (IN0, IN1, OUT, AWAY, HERE, SUM, DONE)


class TestProve:
    def test_proves_a_movement_that_holds(self):
        assert prove([WHOLE]).proof == Proof(is_flat=True, folds_whole=True, reaches_across=False)

    @pytest.mark.parametrize(("changes", "sentence"), BUFFERS)
    def test_refuses_wrong_buffers(self, changes, sentence):
        with pytest.raises(PlanError, match=rf"^The plan does not hold: {re.escape(sentence)}$"):
            prove([WHOLE], **changes)

    @pytest.mark.parametrize(("step", "sentence"), STEPS)
    def test_refuses_a_wrong_step(self, step, sentence):
        with pytest.raises(PlanError, match=rf"^The plan does not hold: in step 1, {re.escape(sentence)}$"):
            prove(step, buffers=ALL)

    def test_refuses_to_fold_a_result(self):
        again = combine(at("done"), at("in1"), to=at("out"))
        steps = [combine(at("in0"), at("in1"), to=at("done"))], [again]
        sentence = "in step 2, it folds what is already a result, or what must not be folded."
        with pytest.raises(PlanError, match=rf"^The plan does not hold: {re.escape(sentence)}$"):
            prove(*steps, buffers=(IN0, IN1, OUT, DONE))

    def test_refuses_to_divide_rows_twice(self):
        out = dataclasses.replace(OUT, length=8)
        steps = (
            [concat(at("in0"), to=at("done"), final=True)],
            [concat(at("done"), at("in1"), to=at("out", 0, 8), final=True)],
        )
        with pytest.raises(PlanError, match=rf"^The plan does not hold: in step 2, it {TWICE}\.$"):
            prove(*steps, buffers=(IN0, IN1, out, DONE), leaves=(ROWS,))

    def test_refuses_to_overwrite_what_is_still_needed(self):
        steps = [copy(at("in0"), at("here"))], [copy(at("in1"), at("here"))]
        sentence = r"^The plan does not hold: in step 2, elements 0:4 of here are overwritten before they are read\.$"
        with pytest.raises(PlanError, match=sentence):
            prove(*steps, buffers=ALL)

    def test_refuses_work_for_nobody(self):
        sentence = r"^The plan does not hold: elements 0:4 of here are computed and never used\.$"
        with pytest.raises(PlanError, match=sentence):
            prove([WHOLE, copy(at("in0"), at("here"))], buffers=(IN0, IN1, OUT, HERE))

    def test_refuses_work_of_which_a_part_is_for_nobody(self):
        """A read of some elements does not count for their neighbours, though all were written at once."""
        halves = [
            combine(at("here", 0, 2), at("in1", 0, 2), to=at("out", 0, 2)),
            combine(at("in0", 2, 4), at("in1", 2, 4), to=at("out", 2, 4)),
        ]
        sentence = r"^The plan does not hold: elements 2:4 of here are computed and never used\.$"
        with pytest.raises(PlanError, match=sentence):
            prove([copy(at("in0"), at("here"))], halves, buffers=(IN0, IN1, OUT, HERE))

    def test_refuses_an_incomplete_output(self):
        half = combine(at("in0", 0, 2), at("in1", 0, 2), to=at("out", 0, 2))
        sentence = r"^The plan does not hold: out does not end up with its 4 elements of the result\.$"
        with pytest.raises(PlanError, match=sentence):
            prove([half])

    def test_refuses_elements_in_the_wrong_place(self):
        halves = [
            combine(at("in0", a, a + 2), at("in1", a, a + 2), to=at("out", b, b + 2)) for a, b in ((0, 2), (2, 0))
        ]
        with pytest.raises(PlanError, match=r"^The plan does not hold: out does not end up with its 4 elements"):
            prove(halves)

    def test_refuses_results_that_differ_in_their_bits(self):
        """A partial fold that was rounded on its way is another result than a fold at once."""
        steps = [[WHOLE, combine(at("in0"), at("in1"), to=at("sum"), final=False)], [combine(at("sum"), to=at("out1"))]]
        sentence = r"^The plan does not hold: the destinations of leaf 0 get results of different associations\.$"
        with pytest.raises(PlanError, match=sentence):
            prove(*steps, buffers=(IN0, IN1, OUT, OUT1, SUM))

    @pytest.mark.parametrize(
        "stranger", [Leaf("int32", Goal.FOLD), Leaf("float32", Goal.ROWS), Leaf("float32", Goal.FOLD)]
    )
    def test_refuses_a_buffer_of_another_kind_of_leaf(self, stranger):
        """The leaf of a buffer decides dtype, goal and the number that MEAN divides by, so all three must agree."""
        others = (
            Buffer("b0", "gpu:0", 4, Role.INPUT, 1, 0),
            Buffer("bout", "gpu:0", 4, Role.OUTPUT, 1, 0),
            Buffer("bdone", "gpu:0", 4, Role.RESULT, 1),
        )
        steps = [combine(at("in0"), at("in1"), to=at("bdone"))], [copy(at("bdone"), at("out"))]
        sentence = "in step 1, it puts another dtype, goal or number of replicas into bdone."
        with pytest.raises(PlanError, match=rf"^The plan does not hold: {re.escape(sentence)}$"):
            prove(*steps, buffers=(IN0, IN1, OUT, *others), leaves=(FOLD, stranger))

    def test_finds_folds_of_parts(self):
        """A callback is called once per leaf, with whole arrays, so the proof says where it cannot be."""
        halves = [combine(at("in0", a, b), at("in1", a, b), to=at("out", a, b)) for a, b in ((0, 2), (2, 4))]
        partial = [combine(at("in0"), at("in1"), to=at("sum"), final=False)], [combine(at("sum"), to=at("out"))]
        for steps in ([halves], partial):
            assert not prove(*steps, buffers=(IN0, IN1, OUT, SUM)).proof.folds_whole

    def test_finds_folds_across_devices(self):
        away = dataclasses.replace(IN1, device="gpu:1")
        assert prove([WHOLE], buffers=(IN0, away, OUT)).proof.reaches_across

    def test_allows_folding_into_its_own_source(self):
        third = Buffer("in2", "gpu:0", 4, Role.INPUT, 0, 2)
        steps = (
            [combine(at("in0"), at("in1"), to=at("sum"), final=False)],
            [combine(at("sum"), at("in2"), to=at("sum"), final=False)],
            [combine(at("sum"), to=at("out"))],
        )
        assert prove(*steps, buffers=(IN0, IN1, third, OUT, SUM)).proof == Proof(
            is_flat=False, folds_whole=False, reaches_across=False
        )

    def test_a_fold_of_exact_partial_sums_is_as_if_their_contributions_met(self):
        third = Buffer("in2", "gpu:0", 4, Role.INPUT, 0, 2)
        away = dataclasses.replace(EXACT, name="away", device="gpu:1")
        steps = (
            [combine(at("in0"), at("in2"), to=at("exact"), final=False)],
            [copy(at("exact"), at("away"))],
            [copy(at("away"), at("back"))],
            [combine(at("back"), at("in1"), to=at("out"))],
        )
        back = dataclasses.replace(EXACT, name="back")
        proof = prove(*steps, buffers=(IN0, IN1, third, OUT, EXACT, away, back)).proof
        assert proof == Proof(is_flat=True, folds_whole=False, reaches_across=False, has_exact=True)

    @pytest.mark.parametrize(
        ("first", "second", "sentence"),
        [
            (combine(at("in0"), at("in1"), to=at("exact"), final=False), concat(at("exact"), to=at("here")), _WHOLE),
            (combine(at("in0", 0, 2), at("in1", 0, 2), to=at("exact", 0, 2), final=False), None, _WHOLE),
            (
                combine(at("in0"), at("in1"), to=at("exact"), final=False),
                combine(at("exact"), to=at("sum"), final=False),
                "only the last fold takes exact partial sums",
            ),
            (
                combine(at("in0"), at("in1"), to=at("sum"), final=False),
                combine(at("sum"), to=at("exact"), final=False),
                "exact, of role exact, cannot hold this",
            ),
            (
                combine(at("in0"), at("in1"), to=at("exact"), final=False),
                copy(at("exact"), at("sum")),
                "moving cannot turn contributions into partial folds, or back",
            ),
        ],
    )
    def test_refuses_what_exact_partial_sums_do_not_bear(self, first, second, sentence):
        steps = [[first]] if second is None else [[first], [second]]
        with pytest.raises(PlanError, match=rf"^The plan does not hold: in step {len(steps)}, {sentence}\.$"):
            prove(*steps, buffers=(*ALL, EXACT))

    def test_accepts_a_leaf_without_elements(self):
        buffers = tuple(dataclasses.replace(buffer, length=0) for buffer in (IN0, IN1, OUT))
        assert prove(buffers=buffers).steps == ()

    def test_a_fold_of_one_contribution_is_that_contribution(self):
        other = Buffer("other", "gpu:0", 4, Role.OUTPUT, 0, 1)
        alone = [combine(at("in0"), to=at("sum"), final=False)]
        both = [combine(at("sum"), at("in1"), to=at("out")), combine(at("in0"), at("in1"), to=at("other"))]
        assert prove(alone, both, buffers=(IN0, IN1, OUT, other, SUM)).proof.is_flat
