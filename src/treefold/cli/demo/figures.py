"""What the demo says about a run, as values: words and a table for the terminal, a page for the report."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from treefold.cli.demo.checks import measure_difference
from treefold.cli.demo.network import count_parameters
from treefold.cli.demo.speed import Speed
from treefold.cli.demo.train import BATCH_SIZE, DemoResult
from treefold.cli.tables import Table
from treefold.errors.words import seconds_in_words
from treefold.plan import Plan
from treefold.topology.drawing.charts import Curve, draw_bars, draw_curves
from treefold.topology.drawing.page import Check, KeyFigure, Page, Section, for_screens
from treefold.topology.drawing.plan_drawing import draw_movement
from treefold.topology.drawing.svg import QUIET

_WIDE = 960.0


def describe_work(result: DemoResult) -> str:
    """Return what was trained, and who held which examples."""
    parameters = count_parameters(result.alone.parameters[0])
    return (
        f"A network of {parameters:,} weights learns handwritten digits, {result.steps:,} steps of {BATCH_SIZE}"
        f" examples: on one device, and on {len(result.devices)} that sum their gradients. {_describe_dealing(result)}"
    )


def _describe_dealing(result: DemoResult) -> str:
    if result.digits is None:
        return "Every device gets its part of each step's examples at random."
    held = ", ".join(f"device {number} holds {in_runs(digits)}" for number, digits in enumerate(result.digits))
    return f"Of the digits, {held}."


def in_runs(digits: Sequence[int]) -> str:
    """Return digits in a row as its ends.

    >>> in_runs((7, 8, 9)), in_runs((4,))
    ('7–9', '4')
    """
    return f"{digits[0]}–{digits[-1]}" if len(digits) > 1 else str(digits[0])


def tabulate(result: DemoResult) -> Table:
    """Return the three trainings side by side."""
    trainings = (result.alone, result.treefold, result.tensorflow)
    rows = [["test accuracy", *(f"{training.accuracy:.1%}" for training in trainings)]]
    if result.digits is not None:
        name = f"… of {in_runs(result.digits[-1])}, on the last device"
        rows.append([name, *(f"{training.accuracy_last:.1%}" for training in trainings)])
    rows.append(["loss of the last step", *(f"{training.losses[-1]:.4f}" for training in trainings)])
    apart = (f"{measure_difference(result, training):.2g}" for training in trainings[1:])
    rows.append(["largest difference of a weight", "–", *apart])
    return Table(("", *name_trainings(result)), tuple(map(tuple, rows)))


def name_trainings(result: DemoResult) -> tuple[str, str, str]:
    """Return what the three trainings are called."""
    many = f"{len(result.devices)} devices"
    return "one device", f"{many}, treefold", f"{many}, TensorFlow's rule"


def make_page(
    result: DemoResult, speed: Speed, checks: tuple[Check, ...], *, facts: tuple[tuple[str, str], ...]
) -> Page:
    """Return the report of a run; ``facts`` are its small print."""
    plan, count = result.plan, len(result.devices)
    loss, apart = _draw_curves(result)
    loses = f"TensorFlow's rule loses device {count - 1}" if result.loses_one else "so does TensorFlow's rule"
    return Page(
        title=f"On {count} devices treefold trains the weights of one device; {loses}",
        summary=describe_work(result),
        figures=_list_figures(result, speed),
        checks=checks,
        sections=(
            Section("Loss of each step", "The mean cross-entropy of all examples of the step.", drawing=loss),
            Section(
                "How far the weights are from those of one device",
                "The largest difference of any weight after each step. Rounding of float32 is about 1e-07.",
                drawing=apart,
                table=tabulate(result),
            ),
            Section(
                "Speed",
                f"The sum of {speed.what}, in place, on this machine; the loop goes array by array.",
                drawing=_draw_speed(speed),
            ),
            Section(
                "The plan",
                _explain_plan(plan),
                drawing=draw_movement(result.tree, title=f"{plan.collective} by {result.tree.algorithm}"),
                verbatim=str(plan),
            ),
        ),
        facts=facts,
        is_picture_first=True,
    )


def _draw_curves(result: DemoResult) -> tuple[str, str]:
    """Return the losses of the three trainings, and how far two of them are from the first."""
    trainings = (result.alone, result.treefold, result.tensorflow)
    named = list(zip(name_trainings(result), trainings, (QUIET, 0, 1), strict=True))
    losses = [Curve(name, training.losses, tone) for name, training, tone in named]
    apart = [Curve(name, training.apart, tone) for name, training, tone in named[1:]]
    pictures = ((losses, "Loss of each step"), (apart, "Largest difference of a weight"))
    loss, difference = (
        for_screens(functools.partial(draw_curves, curves, title=title), wide=_WIDE) for curves, title in pictures
    )
    return loss, difference


def _list_figures(result: DemoResult, speed: Speed) -> tuple[KeyFigure, ...]:
    ours, theirs = (measure_difference(result, training) for training in (result.treefold, result.tensorflow))
    on_one = f"{result.alone.accuracy:.1%} on one device"
    lost = ""
    if result.digits is not None and result.loses_one:
        lost = f"{result.tensorflow.accuracy_last:.1%} of {in_runs(result.digits[-1])}, which the last device holds"
    return (
        KeyFigure("Test accuracy, treefold", f"{result.treefold.accuracy:.1%}", on_one),
        KeyFigure("Test accuracy, TensorFlow's rule", f"{result.tensorflow.accuracy:.1%}", lost or on_one),
        KeyFigure("Largest difference of a weight", f"{ours:.2g}", f"{theirs:.2g} with TensorFlow's rule"),
        KeyFigure("Speed", f"{speed.ratio:.1f}×", f"a NumPy loop: {seconds_in_words(speed.loop_s)}"),
    )


def _explain_plan(plan: Plan) -> str:
    if plan.traits.shares_memory:
        return (
            "What goes where in one step of training. All of these devices share the host's memory, so the result is"
            " computed in one pass, in replica order; on devices of their own the values would travel as drawn."
        )
    return "What goes where in one step of training, as it ran."


def _draw_speed(speed: Speed) -> str:
    times = {"treefold": speed.treefold_s, "NumPy loop": speed.loop_s}
    return for_screens(functools.partial(draw_bars, times, title="Seconds of a sum"), wide=640.0)
