"""What the demo says about a run, as values: a table for the terminal, a page for the report."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from treefold.cli.demo.checks import measure_difference
from treefold.cli.demo.network import count_parameters
from treefold.cli.demo.train import BATCH_SIZE, DemoResult
from treefold.errors.words import seconds_in_words
from treefold.plan import Plan
from treefold.plan.executors import executor_traits
from treefold.report.curves import Curve, draw_curves
from treefold.report.page import Check, Figure, Page, Section
from treefold.report.plan_drawing import draw_movement
from treefold.report.tables import plain_table


@dataclass(frozen=True, slots=True)
class Reducing:
    """The time that reductions took: in all, of the median step, and as a share of the data-parallel training."""

    total_s: float
    median_step_s: float
    share: float

    def __str__(self) -> str:
        """Return the times in one line."""
        total, step = seconds_in_words(self.total_s), seconds_in_words(self.median_step_s)
        return f"{total}, {step} a step (median), {self.share:.1%} of the run"


def measure_reducing(result: DemoResult) -> Reducing:
    """Return what the reductions of a run took."""
    total = sum(result.reduce_seconds)
    return Reducing(total, statistics.median(result.reduce_seconds), total / result.replicas.seconds)


def name_devices(count: int) -> str:
    """Return how many devices there are, in words.

    >>> name_devices(1), name_devices(8)
    ('1 device', '8 devices')
    """
    return f"{count} device{'' if count == 1 else 's'}"


def describe_work(result: DemoResult) -> str:
    """Return what was trained, in one sentence."""
    parameters = count_parameters(result.alone.parameters[0])
    return (
        f"A network of {parameters:,} parameters on handwritten digits: {result.steps:,} steps of {BATCH_SIZE}"
        f" examples, on {name_devices(len(result.devices))} through treefold and on one without it."
    )


def tabulate(result: DemoResult) -> str:
    """Return both trainings side by side, as plain text."""
    both = (result.replicas, result.alone)
    rows = [
        ["test accuracy", *(f"{training.accuracy:.2%}" for training in both)],
        ["last loss", *(f"{training.losses[-1]:.4f}" for training in both)],
        ["training", *(f"{training.seconds:.2f} s" for training in both)],
    ]
    return plain_table(["", name_devices(len(result.devices)), "without treefold"], rows)


def make_page(result: DemoResult, checks: tuple[Check, ...], *, facts: tuple[tuple[str, str], ...]) -> Page:
    """Return the report of a run; ``facts`` are its small print."""
    plan = result.plan
    drawing = draw_movement(result.tree, title=f"{plan.collective} by {result.tree.algorithm}")
    return Page(
        title=f"treefold demo: {name_devices(len(result.devices))}",
        summary=describe_work(result),
        figures=_list_figures(result),
        checks=checks,
        sections=(
            Section(
                "Loss of each step",
                "The mean cross-entropy of the global batch. Both trainings see the same batches from the same first"
                " parameters, so the curves lie on each other.",
                drawing=_draw_losses(result),
            ),
            Section("The plan", _explain_plan(plan), drawing=drawing, verbatim=str(plan)),
        ),
        facts=facts,
    )


def _draw_losses(result: DemoResult) -> str:
    alone = Curve("without treefold", result.alone.losses)
    replicas = Curve(name_devices(len(result.devices)), result.replicas.losses)
    return draw_curves([alone, replicas], title="Loss of each step")


def _list_figures(result: DemoResult) -> tuple[Figure, ...]:
    reducing = measure_reducing(result)
    return (
        Figure("Test accuracy", f"{result.replicas.accuracy:.2%}", f"{result.alone.accuracy:.2%} without treefold"),
        Figure("Largest difference", f"{measure_difference(result):.2g}", "between parameters of the two trainings"),
        Figure("Reducing", seconds_in_words(reducing.median_step_s), "a step (median)"),
        Figure(
            "Share of the run", f"{reducing.share:.1%}", f"{reducing.total_s:.3f} of {result.replicas.seconds:.2f} s"
        ),
    )


def _explain_plan(plan: Plan) -> str:
    if executor_traits(plan.executor).shares_memory:
        return (
            "What goes where in one step of training. All of these devices share the host's memory, so the result is"
            " computed in one pass, in replica order; on devices of their own the values would travel as drawn."
        )
    return "What goes where in one step of training, as it ran."
