"""The claims that the demo checks about its own run; its exit code is 0 only if all hold."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import treefold
from treefold.cli.demo.network import Parameters, digest, find_largest_difference
from treefold.cli.demo.train import DemoResult, Training
from treefold.errors import PlanError
from treefold.plan import from_json
from treefold.topology.drawing.page import Check

#: Trainings on one device and on many are the same mathematics; in float32 they add a batch's examples in another
#: order. Measured: at most 1e-6 for 2 to 10 devices, dealt by digit or at random, four seeds, up to 2,000 steps. Losing
#: one device, as a wrong reduction does, makes it 1e-3 after the first step. The bound stands far from both.
LARGEST_DIFFERENCE = 1e-5
#: Orders in which gradients are summed.
ORDERS = 50


def check_result(result: DemoResult) -> tuple[Check, ...]:
    """Return the demo's claims, each held against the run."""
    return (
        _check_plan(result),
        _check_same_bits(result),
        _check_any_order(result),
        _check_treefold(result),
        _check_tensorflow(result),
    )


def _check_plan(result: DemoResult) -> Check:
    claim = "The plan gives every device every gradient exactly once"
    try:
        from_json(result.tree.to_json())  # which proves what it reads
    except PlanError as error:
        return Check(claim, holds=False, found=str(error))
    return Check(claim, holds=True, found=f"proved again on {len(result.tree.steps)} steps read back from JSON")


def _check_same_bits(result: DemoResult) -> Check:
    digests = [digest(parameters) for parameters in result.treefold.parameters]
    same = digests.count(digests[0])
    return Check(
        f"All {len(digests)} devices end with the same bits",
        same == len(digests),
        f"SHA-256 of the weights is {digests[0][:16]}… on {same} of {len(digests)}",
    )


def _check_any_order(result: DemoResult) -> Check:
    rng = np.random.default_rng(0)
    orders = [[result.parts[index] for index in rng.permutation(len(result.parts))] for _ in range(ORDERS)]
    ours = {digest(treefold.all_reduce(order)[0]) for order in orders}
    loops = {digest(_add_in_order(order)) for order in orders}
    return Check(
        f"The sum of {len(result.parts)} gradients has the same bits in any order",
        len(ours) == 1,
        f"SHA-256 {min(ours)[:16]}…; {ORDERS} orders give {len(ours)} with treefold, {len(loops)} with a NumPy loop",
    )


def _add_in_order(gradients: list[Parameters]) -> Any:
    """Add float32 one after the other, as a loop does."""
    return {
        layer: {name: functools.reduce(np.add, [one[layer][name] for one in gradients]) for name in arrays}
        for layer, arrays in gradients[0].items()
    }


def _check_treefold(result: DemoResult) -> Check:
    """Both are compared at the end, so that the claim holds after any number of steps."""
    difference = measure_difference(result, result.treefold)
    return Check(
        f"With treefold, {len(result.devices)} devices train the weights of one device",
        difference <= LARGEST_DIFFERENCE,
        f"{describe_difference(difference)}; {result.treefold.accuracy:.1%} of the test is right,"
        f" {result.alone.accuracy:.1%} on one device",
    )


def _check_tensorflow(result: DemoResult) -> Check:
    difference = measure_difference(result, result.tensorflow)
    found = f"{describe_difference(difference)}; {result.tensorflow.accuracy:.1%} of the test is right"
    count = len(result.devices)
    if result.loses_one:
        claim = f"With TensorFlow's rule they do not: it never reads device {count - 1}, and raises no error"
        return Check(claim, difference > LARGEST_DIFFERENCE, found)
    claim = f"TensorFlow's rule trains them, too, as {count} is an even number; of 3, 5 or 7 devices it loses one"
    return Check(claim, difference <= LARGEST_DIFFERENCE, found)


def describe_difference(difference: float) -> str:
    """Return in words how far weights are apart.

    >>> describe_difference(0.0), describe_difference(2.4e-7), describe_difference(0.634)
    ('the same bits', '2.4e-07 apart at most, which is rounding', '0.63 apart')
    """
    if not difference:
        return "the same bits"
    is_rounding = difference <= LARGEST_DIFFERENCE
    return f"{difference:.2g} apart" + (" at most, which is rounding" if is_rounding else "")


def measure_difference(result: DemoResult, training: Training) -> float:
    """Return the largest absolute difference between a weight of any replica and the one trained on one device."""
    alone = result.alone.parameters[0]
    return max(find_largest_difference(parameters, alone) for parameters in training.parameters)
