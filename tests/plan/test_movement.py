import dataclasses
import os
import subprocess
import sys

import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.plan import Movement
from treefold.plan.ir import Goal, Leaf
from treefold.planners import LeafWork, PlanBuilder, add_concat
from treefold.planners.method import one_array
from treefold.planners.star import star, two_shot
from treefold.planners.two_level import two_level
from treefold.testing import owned

GPUS = ("gpu:0", "gpu:1", "gpu:2")
PRINT_DIGEST = """
from treefold.planners import LeafWork, PlanBuilder, add_concat
from treefold.planners.method import one_array
from treefold.planners.star import two_shot
print(two_shot(["gpu:0", "gpu:1", "gpu:2"]).movement(one_array(["gpu:0", "gpu:1", "gpu:2"], 100)).digest)
"""


def made(devices=GPUS, length=100, dtype="float32", method=None):
    return (method or two_shot(devices)).movement(one_array(devices, length, dtype))


def plan(ops=None, name="w"):
    """Return the plan of a mean of three replicas, each with one array by this name."""
    value = PerReplica([{name: owned(r, (100,))} for r in range(3)])
    return (ops or HierarchicalCopyAllReduce(2)).plan(value, value, walked=True)


def changed(movement, step, action, **changes):
    """Return the steps of a movement with one action changed."""
    actions = list(movement.steps[step].actions)
    actions[action] = dataclasses.replace(actions[action], **changes)
    steps = list(movement.steps)
    steps[step] = dataclasses.replace(steps[step], actions=tuple(actions))
    return tuple(steps)


def gathered(goal):
    builder = PlanBuilder([LeafWork(Leaf("float32", goal), (2, 3), GPUS[:2], GPUS[:2])])
    add_concat(builder, 0, "gpu:0")
    return builder.movement()


class TestMovement:
    def test_counts_its_packs(self):
        assert made().num_packs == 3
        assert made(length=1).num_packs == 1

    def test_is_equal_if_it_moves_the_same(self):
        assert made() == made()
        assert made() != made(length=101)


class TestDigest:
    def test_is_128_bits_in_hexadecimal(self):
        assert len(made().digest) == 32
        assert int(made().digest, 16) < 2**128

    def test_is_written_down(self):
        """Ranks compare it between processes, maybe with different versions of Python, so its value is fixed here."""
        assert made(("gpu:0", "gpu:1"), 4, method=star("gpu:0")).digest == "297f328c9062350e5abf96accdc4c958"

    def test_of_the_same_request_is_the_same(self):
        assert made().digest == made().digest

    @pytest.mark.parametrize("seed", ["0", "1", "random"])
    def test_of_the_same_request_in_another_process_is_the_same(self, seed):
        """Nothing in it depends on Python's hashes of text, which every process seeds anew."""
        done = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", PRINT_DIGEST],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.split() == [made().digest]

    @pytest.mark.parametrize(
        "other",
        [
            made(length=101),
            made(dtype="float64"),
            made(("gpu:0", "gpu:1", "gpu:3")),
            made(("gpu:1", "gpu:0", "gpu:2")),
            made(method=two_level()),
            made(method=star("gpu:0")),
        ],
        ids=["length", "dtype", "device", "order", "packs", "method"],
    )
    def test_changes_with_what_moves(self, other):
        assert other.digest != made().digest

    def test_changes_with_every_action(self):
        movement = made()
        numbers = [(s, a) for s, step in enumerate(movement.steps) for a in range(len(step.actions))]
        others = [dataclasses.replace(movement, steps=changed(movement, s, a, pack=7)) for s, a in numbers]
        assert len({movement.digest, *(other.digest for other in others)}) == len(numbers) + 1

    def test_changes_with_the_order_of_steps(self):
        """Actions that were put into another step are another movement, even if it holds as well."""
        work = dataclasses.replace(one_array(("gpu:0",), 4)[0], destinations=("gpu:0", "gpu:1", "gpu:2"))
        movement = star("gpu:0").movement([work])
        [fold, spread] = movement.steps
        apart = [dataclasses.replace(spread, actions=(action,)) for action in spread.actions]
        assert dataclasses.replace(movement, steps=(fold, *apart)).digest != movement.digest

    def test_changes_with_the_goal(self):
        parts = dataclasses.replace(gathered(Goal.ROWS), leaves=(Leaf("float32", Goal.GATHER),))
        assert parts.digest == gathered(Goal.GATHER).digest != gathered(Goal.ROWS).digest

    def test_does_not_change_with_the_names_of_buffers(self):
        movement = made()
        buffers = tuple(dataclasses.replace(b, name=f"buffer {n}") for n, b in enumerate(movement.buffers))
        assert dataclasses.replace(movement, buffers=buffers).digest == movement.digest

    def test_of_a_plan_is_that_of_its_movement(self):
        """How it runs here is not compared: words, kernel, notes, and where its leaves stand."""
        mine = plan()
        digest = Movement(leaves=mine.leaves, buffers=mine.buffers, steps=mine.steps).digest
        for changes in (
            {"kernel": "native"},
            {"notes": ("A sentence.",)},
            {"paths": ("elsewhere",)},
            {"algorithm": "another word"},
            {"collective": "reduce"},
            {"executor": "nccl"},
            {"accumulate": "native"},
        ):
            assert dataclasses.replace(mine, **changes).digest == digest
        assert plan(name="another").digest == digest
        assert plan(ReductionToOneDevice()).digest != digest
