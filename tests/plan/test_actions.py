import pytest

from treefold.fold import Fold
from treefold.plan.actions import buffers_of_leaves, cut, dtype_in, fills
from treefold.plan.ir import Combine, Concat, Copy, Goal, Leaf, Range, Role
from treefold.planners.method import one_array
from treefold.planners.star import star
from treefold.reduce_op import ReduceOp

COPY = Copy(Range(0, 4, 10), Range(1, 14, 20), pack=3)
COMBINE = Combine((Range(0, 4, 10), Range(2, 0, 6)), Range(1, 14, 20), pack=3, final=True)
CONCAT = Concat((Range(0, 4, 6), Range(2, 0, 4)), Range(1, 14, 20), pack=3, final=True)


class TestFills:
    @pytest.mark.parametrize("action", [COPY, COMBINE])
    def test_all_of_the_target_by_each_source_of_a_copy_or_a_fold(self, action):
        assert list(fills(action)) == [(source, action.target) for source in action.sources]

    def test_the_target_of_a_concatenation_part_by_part(self):
        assert list(fills(CONCAT)) == [(Range(0, 4, 6), Range(1, 14, 16)), (Range(2, 0, 4), Range(1, 16, 20))]


class TestCut:
    def test_takes_the_same_elements_of_every_source_of_a_fold(self):
        assert cut(COMBINE, 1, 3) == Combine((Range(0, 5, 7), Range(2, 1, 3)), Range(1, 15, 17), pack=3, final=True)

    def test_takes_the_elements_of_a_copy(self):
        assert cut(COPY, 1, 3) == Copy(Range(0, 5, 7), Range(1, 15, 17), pack=3)

    def test_leaves_out_sources_of_a_concatenation_of_which_nothing_is_taken(self):
        assert cut(CONCAT, 2, 5).sources == (Range(2, 0, 3),)
        assert cut(CONCAT, 1, 5).sources == (Range(0, 5, 6), Range(2, 0, 3))

    @pytest.mark.parametrize("action", [COPY, COMBINE, CONCAT])
    def test_gives_back_the_whole(self, action):
        assert cut(action, 0, 6) == action


class TestBuffersOfLeaves:
    def test_are_counted_by_the_movement(self):
        movement = star("gpu:0").movement(one_array([f"gpu:{r}" for r in range(3)], 6))
        for role in (Role.INPUT, Role.OUTPUT):
            (found,) = buffers_of_leaves(movement, role)
            assert [(movement.buffers[index].role, movement.buffers[index].position) for index in found] == [
                (role, position) for position in range(3)
            ]


class TestDtypeIn:
    @pytest.mark.parametrize(
        ("role", "goal", "expected"),
        [
            (Role.INPUT, Goal.FOLD, "int8"),
            (Role.SCRATCH, Goal.FOLD, "int8"),
            (Role.PARTIAL, Goal.FOLD, "int64"),
            (Role.RESULT, Goal.FOLD, "float32"),
            (Role.OUTPUT, Goal.FOLD, "float32"),
            (Role.OUTPUT, Goal.ROWS, "float32"),
            (Role.OUTPUT, Goal.GATHER, "int8"),
            (Role.OUTPUT, Goal.COPY, "int8"),
        ],
    )
    def test_follows_from_what_a_buffer_is_for(self, role, goal, expected):
        """Under a MEAN of small integers contributions, partial folds and results are of three dtypes."""
        result = Fold(ReduceOp.MEAN).result_dtype("int8")
        assert dtype_in(role, Leaf("int8", goal), Fold(ReduceOp.MEAN)) == expected.replace("float32", result)

    def test_is_the_leafs_own_where_nothing_is_folded(self):
        assert {dtype_in(role, Leaf("int8", Goal.COPY), None) for role in Role} == {"int8"}

    def test_may_be_the_frameworks_own_for_results(self):
        leaf = Leaf("int8", Goal.FOLD)
        assert dtype_in(Role.OUTPUT, leaf, Fold(ReduceOp.MEAN), result="float16") == "float16"
        assert dtype_in(Role.PARTIAL, leaf, Fold(ReduceOp.MEAN), result="float16") == "int64"
