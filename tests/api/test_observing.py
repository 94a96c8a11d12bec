"""Calls that can be seen: lines in the log of ``treefold``, ranges in the profilers of the frameworks."""

import logging
import os
import re
import subprocess
import sys
import threading
from fractions import Fraction

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.observing import OBSERVER

LOGGER = logging.getLogger("treefold")
NBYTES = 24  # of six float32, which one replica brings


def value():
    """Return three replicas; replica r brings 2**r."""
    return PerReplica([np.full(6, 2**r, np.float32) for r in range(3)])


def seen_by_torch(call, _):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return [event.name for event in profiler.events()]


def seen_by_tensorflow(call, folder):
    tf.profiler.experimental.start(str(folder))
    call()
    tf.profiler.experimental.stop()
    return names_in(folder)


def seen_by_jax(call, folder):
    with jax.profiler.trace(folder):
        call()
    return names_in(folder)


def names_in(folder):
    """Return the names of all events in a trace of TensorFlow or JAX, which share a format."""
    [trace] = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    return [event.name for plane in planes for line in plane.lines for event in line.events]


PROFILERS = {"torch": seen_by_torch, "tensorflow": seen_by_tensorflow, "jax": seen_by_jax}


@pytest.mark.parametrize("profiler", PROFILERS)
class TestProfile:
    def test_marks_first_and_repeated_calls(self, profiler, tmp_path):
        ops, given = HierarchicalCopyAllReduce(), value()

        def call():
            with treefold.profile():
                for _ in range(3):
                    ops.reduce("mean", given, given)
                ops.batch_reduce("sum", [(given, given)])
                ops.broadcast(given.values[0], ["cpu:0", "cpu:1"])

        found = [name for name in PROFILERS[profiler](call, tmp_path) if name.startswith("treefold.")]
        digest = ops.reduce("mean", given, given).plan.digest[:16]
        moved = ops.broadcast(given.values[0], ["cpu:0", "cpu:1"]).plan.digest[:16]
        assert found == [
            *[f"treefold.all_reduce MEAN, {NBYTES} bytes, plan {digest}"] * 3,
            f"treefold.all_reduce SUM, {NBYTES} bytes, plan {digest}",
            f"treefold.broadcast, {NBYTES} bytes, plan {moved}",
        ]

    def test_marks_nothing_outside_its_block(self, profiler, tmp_path):
        with treefold.profile():
            treefold.all_reduce(value())
        found = PROFILERS[profiler](lambda: treefold.all_reduce(value()), tmp_path)
        assert not [name for name in found if name.startswith("treefold.")]


class TestProfileBlocks:
    def test_nest(self):
        with treefold.profile():
            with treefold.profile():
                pass
            assert OBSERVER.is_on
        assert not OBSERVER.is_on

    def test_end_with_an_error(self):
        with pytest.raises(KeyError), treefold.profile():
            raise KeyError
        assert not OBSERVER.is_on

    def test_count_for_all_threads(self):
        seen = []
        with treefold.profile():
            thread = threading.Thread(target=lambda: seen.append(OBSERVER.is_on))
            thread.start()
            thread.join()
        assert seen == [True]

    @pytest.mark.parametrize(("setting", "is_on"), [("1", True), ("0", False), ("", False)])
    def test_are_not_needed_with_the_variable(self, setting, is_on):
        code = "import treefold.observing; print(treefold.observing.OBSERVER.profiles)"
        environment = {**os.environ, "TREEFOLD_PROFILE": setting}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)  # noqa: S603 - ours
        assert done.stdout == f"{int(is_on)}\n"


class TestLog:
    def test_has_a_line_for_each_call_at_debug(self, caplog):
        given, ops = value(), HierarchicalCopyAllReduce()
        with caplog.at_level(logging.DEBUG, "treefold"):
            for _ in range(3):
                plan = ops.reduce("sum", given, given).plan
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
        words = f"treefold.all_reduce SUM, {NBYTES} bytes, plan {plan.digest[:16]}"
        assert len(lines) == 3
        assert all(re.fullmatch(rf"{words}: \d+\.\d us", line) for line in lines)

    def test_begins_and_ends_with_the_level_in_calls_that_are_known(self, caplog):
        given, ops = value(), HierarchicalCopyAllReduce()
        for _ in range(3):
            ops.reduce("sum", given, given)
        with caplog.at_level(logging.DEBUG, "treefold"):
            ops.reduce("sum", given, given)
        ops.reduce("sum", given, given)
        assert len(caplog.records) == 1

    def test_heeds_the_level_of_the_root_from_the_next_plan_on(self, caplog):
        with caplog.at_level(logging.DEBUG):
            HierarchicalCopyAllReduce().reduce("sum", value(), value())
        assert [record.levelname for record in caplog.records if record.name == "treefold"] == ["INFO", "DEBUG"]

    def test_has_a_line_for_each_plan_at_info(self, caplog):
        given, ops = value(), HierarchicalCopyAllReduce()
        with caplog.at_level(logging.INFO, "treefold"):
            plans = [ops.reduce("sum", given, given).plan for _ in range(3)]
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"plan {plans[0].digest[:16]}: {plans[0]!r}, executor host ")

    def test_warns_of_what_is_slow(self, caplog):
        weights = [Fraction(1, 3), Fraction(2**60 + 1), 1]
        with caplog.at_level(logging.WARNING, "treefold"):
            HierarchicalCopyAllReduce().reduce("mean", value(), "cpu:0", weights=weights)
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("WARNING", "weights of more than 53 bits: every element is folded in whole numbers, which is slow")
        ]

    def test_is_silent_where_logging_is_not_configured(self):
        code = (
            "import numpy as np, treefold\n"
            "given = treefold.PerReplica([np.float32([1]), np.float32([2])])\n"
            "treefold.HierarchicalCopyAllReduce().reduce('mean', given, 'cpu:0', weights=[1, 2**60 + 1])\n"
            "treefold.observing.LOG.error('an error')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - ours
        assert done.stdout + done.stderr == ""
